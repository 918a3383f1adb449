"""Which of timm's architectures a file holds, from a name or from its tensors.

Models that compute different things have the same tensor names. The missing settings come from the architecture, which
config.json of the Hub states, and often the file name. Checked against every entry of timm 1.0.31's
`vision_transformer`, `deit` and `eva` modules.
"""

import math
import re
from collections.abc import Collection
from typing import Any

from vit.checkpoints.families.family import InferredModel
from vit.checkpoints.families.tensor_shapes import Tensors, needed
from vit.errors import InvalidCheckpoint
from vit.untrusted import brief

# Settings implied by an architecture's name; the first match wins.
_NOT_PLAIN = (
    (r"sapiens", "its keys and values have fewer heads than its queries, and RMSNorm"),
    (r"_dwee_|_dlittle_|_dpwee_", "it has differential attention"),
    (r"_xp_|18x2|_d?pwee_", "its blocks are parallel"),
    (r"aimv2|test_vit4", "it has RMSNorm"),
    (r"relpos|samvit", "its positions are relative"),
    (r"naflexvit", "it is made for pictures of any shape"),
    (r"^vit_(tiny|small|base|large)_(r\d*_|r\d+|resnet|mci)", "it begins with convolutions"),
)
_HEADS = (
    (r"giant_patch14_(reg\d_)?(dinov2|tipsv2)|giant_patch16_(radio|lingbot)", 24),
    (r"huge_plus_patch16_dinov3", 20),
    (r"vit_7b_patch16_dinov3", 32),
    (r"base_patch\d+_plus_", 14),
    (r"base_patch16_gap_", 16),
    (r"test_vit3", 3),
    (r"test_vit", 2),
    *(
        (rf"_{size}_(plus_|distilled_)?patch|flexivit_{size}\b", heads)
        for size, heads in (
            ("tiny", 3), ("xsmall", 4), ("small", 6), ("little", 5), ("medium", 8), ("mediumd", 8), ("base", 12),
            ("betwixt", 10), ("large", 16), ("huge", 16), ("giant", 16), ("gigantic", 16), ("giantopt", 16),
            ("enormous", 16),
            ("so150m", 14), ("so150m2", 13), ("so400m", 16), ("intern300m", 16),
        )
    ),
)  # fmt: skip
_TANH = r"giantopt_|so400m_patch16_siglip|base_patch32_siglip|large_patch16_siglip_(gap_)?512"
_ARCHITECTURE = re.compile(
    r"(vit|deit3?|eva|eva02|beit|beitv2|beit3)_[a-z0-9]+_(\w+_)?patch\d+|flexivit_[a-z]+|test_vit\d?|vit_7b_patch16"
)
_MAX_NAME = 500  # [characters]; matching takes the square of it
_DINO = r"(^|[^a-z])dino_(deit|vit)"  # Meta's first DINO
_DEIT3 = r"deit_?3"

# Rotary positions of timm's models. Source: timm 1.0.31, `models/eva.py`.
_DINOV3 = {"rope": 100.0, "eps": 1e-5}
_EVA02 = {"rope": 1e4, "rope_places": "rows", "rope_grid": (16, 16), "eps": 1e-6}
_ROPE_VIT = {"rope": 100.0, "rope_places": "columns", "eps": 1e-6}
MIXED = {"rope": 10.0, "rope_places": "mixed"}
_CORE_GRIDS = {192: 24, 384: 24, 768: 14, 1024: 24, 1536: 32}  # of Perception Encoder's core models, by width
_ROTARY = (
    (r"dinov3", _DINOV3 | {"pool": "mean"}),
    (r"lingbot", _DINOV3),
    (r"^eva02_(?!enormous)|_rope_reg\d_gap_", _EVA02),
    (r"_rope_mixed_", MIXED),
    (r"_rope_", _ROPE_VIT),
)


def by_name(name: str) -> dict[str, Any]:
    """Infer config fields from the name of a file or folder; none of them follow from tensors."""
    fields = _named(name.lower()[:_MAX_NAME])
    fields.pop("eps", None)
    return fields


def _named(name: str) -> dict[str, Any]:
    if re.search(_DINO, name):
        return {"position_resize": "bicubic_offset", "activation": "gelu", "eps": 1e-6, "pool": "cls"}
    if not _ARCHITECTURE.search(name):
        return {}
    fields: dict[str, Any] = {
        "eps": 1e-5 if re.search(r"_clip_|dinov3|lingbot|vit_pe_|beit3", name) and "eva" not in name else 1e-6,
        "activation": "quick_gelu" if "quickgelu" in name else "gelu_tanh" if re.search(_TANH, name) else "gelu",
    }
    if "flexivit" in name:
        fields["position_resize"] = "bilinear"
    heads = next((heads for pattern, heads in _HEADS if re.search(pattern, name)), None)
    return fields | ({} if heads is None else {"heads": heads})


def by_architecture(name: str) -> dict[str, Any]:
    """Return the config fields of timm's architecture with this name; empty for other names.

    Raises:
        InvalidCheckpoint: not a plain Vision Transformer.
    """
    name = name[:_MAX_NAME]
    for pattern, why in _NOT_PLAIN:
        if re.search(pattern, name):
            raise InvalidCheckpoint(f"This is timm's {brief(name)}, no plain Vision Transformer: {why}.")
    fields = _named(name)
    if not fields:
        return {}
    if name.startswith("vit_pe_"):
        return fields | _perception(name)
    rotary = next((rotary for pattern, rotary in _ROTARY if re.search(pattern, name)), {"rope": None})
    return fields | rotary | {"post_norm": bool(re.search(r"_rpn_|^eva02_enormous", name))}


def _perception(name: str) -> dict[str, Any]:
    """Return the config fields of a Perception Encoder; only its largest models have no class token."""
    core, giant = "_core_" in name, "_gigantic_" in name
    side = 32 if giant or not core else 14 if "_base_" in name else 24
    fields = {"rope": 1e4, "rope_places": "columns" if giant else "columns_from_one", "rope_grid": (side, side)}
    return fields | {"eps": 1e-5} | ({"pool": "map", "pool_heads": 8} if core else {"pool": "mean"})


def query_reads_prefix(name: str) -> bool:
    """Whether the learnt query of this architecture reads class token and registers, as that of timm's Eva does."""
    return bool(re.search(r"^eva(02|_giant)|^vit_pe_|_rope_|dinov3|lingbot|^test_vit3", name))


def is_gated(tensors: Tensors) -> bool:
    """Whether the MLPs are gated: two matrices, or one of twice the width, before the activation."""
    fc1, fc2 = tensors.get("blocks.0.mlp.fc1.weight"), tensors.get("blocks.0.mlp.fc2.weight")
    halves = fc1 is not None and fc2 is not None and fc1.ndim == fc2.ndim == 2 and fc1.shape[0] == 2 * fc2.shape[1]
    return halves or "blocks.0.mlp.gate.weight" in tensors


# Sizes of SigLIP models that use tanh GELU: width, patch size and, if that is ambiguous, number of patches.
_TANH_SIZES = {(1536, 16), (1152, 16), (768, 32), (1024, 16, 1024)}
# Widths of LingBot's models, which have the same tensors as DINOv3's and use another token.
_LINGBOT = {384, 768, 1024}


def by_tensors(tensors: Tensors, names: Collection[str], name: str) -> InferredModel:
    """Recognise timm's models by their tensors."""
    patches = needed(tensors, "patch_embed.weight", 4)
    dim, has = patches.shape[0], tensors.keys()
    if {"rope.freqs", "position_bias", "blocks.0.attn.position_bias"} & has:
        return InferredModel()
    if "pos_embed" not in has:
        return _without_positions(tensors, names, dim)
    if "norm_pre.weight" in has:
        return _with_norm_pre(tensors, dim)
    if "pool.probe" in has and {"prefix.cls", "prefix.reg"} & has:
        raise _either("a model whose learnt query reads the patches", "one whose learnt query reads every token")
    if "blocks.0.attn.q.bias" in has:
        return _without_key_bias(tensors, dim)
    if "blocks.0.attn.norm.weight" in has and "blocks.0.mlp.norm.weight" in has:
        return InferredModel({"eps": 1e-5}, "BEiT-3")
    if "blocks.0.gamma_1" in names and not re.search(_DEIT3, name.lower()):
        rows, own = needed(tensors, "pos_embed", 3).shape[1], "prefix.cls" in has
        if own and math.isqrt(rows) ** 2 == rows:
            raise _either("Meta's DeiT-III", "timm's vit_*_rope_ape, whose positions are rotary too")
    if "prefix.cls" in has or "prefix.reg" in has or "blocks.0.scale1" in has:
        return InferredModel()
    if "fc_norm.weight" in has and "blocks.0.attn.qkv.bias" not in has:
        if dim == 768:
            return InferredModel({"post_norm": True}, "timm's vit_base_patch16_rpn")
        raise _either("a plain Vision Transformer", "one whose LayerNorms come after attention and MLP, as timm's rpn")
    if not {"norm.weight", "fc_norm.weight"} & has:
        raise _either("one without a last LayerNorm", "the vision encoder of Qwen3-VL, whose positions are rotary too")
    return _siglip(tensors, dim, patches.shape[2]) if "fc_norm.weight" not in has else InferredModel()


def _without_positions(tensors: Tensors, names: Collection[str], dim: int) -> InferredModel:
    has = tensors.keys()
    cls, reg, scale = "prefix.cls" in has, "prefix.reg" in has, "blocks.0.gamma_1" in names
    bias, partly = "blocks.0.attn.qkv.bias" in has, "blocks.0.attn.q.bias" in has
    if scale and cls and not reg and bias:
        return InferredModel(_ROPE_VIT, "timm's vit_*_rope")
    if scale and reg and not cls and not bias and "fc_norm.weight" in has:
        return InferredModel(_EVA02 | {"image_size": 256}, "timm's vit_*_rope_reg_gap")
    if not (scale and cls and reg and not bias):
        raise InvalidCheckpoint(
            "The file has no position embeddings, and its tensors match no known model without them: "
            "put the config.json that names the architecture next to it."
        )
    if is_gated(tensors) and dim == 1536 and not partly:
        return InferredModel(_DINOV3 | {"pool": "cls", "image_size": 512}, "LingBot-Vision")
    if partly and not is_gated(tensors) and dim in _LINGBOT and "fc_norm.weight" not in has:
        raise _either("timm's DINOv3, which reads the mean of the patches", "LingBot-Vision, which the class token")
    heads = {"heads": 20} if dim == 1280 else {}
    return InferredModel(_DINOV3 | {"pool": "mean", "image_size": 256} | heads, "timm's DINOv3")


def _with_norm_pre(tensors: Tensors, dim: int) -> InferredModel:
    has = tensors.keys()
    cls = "prefix.cls" in has
    fields: dict[str, Any] = {"rope": 1e4, "rope_places": "columns_from_one" if cls else "columns", "eps": 1e-5}
    if dim == 1536:
        fields["heads"] = 16
    if "pool.probe" in has:
        side = _CORE_GRIDS.get(dim)
        if side is None or cls == (dim == 1536):
            raise InvalidCheckpoint(
                "This is a Perception Encoder of no published size: put the config.json beside it that names the "
                "architecture, as the grid that its rotary positions refer to is not in the tensors."
            )
        return InferredModel(fields | {"rope_grid": (side, side), "pool_heads": 8}, "Perception Encoder")
    if not {"norm.weight", "fc_norm.weight"} & has:
        return InferredModel(fields | {"rope_grid": (32, 32), "pool": "mean"}, "Perception Encoder")
    return InferredModel({"eps": 1e-5}, "CLIP")


def _without_key_bias(tensors: Tensors, dim: int) -> InferredModel:
    """EVA, and models based on BEiT's code."""
    has = tensors.keys()
    if is_gated(tensors):
        published = dim in (192, 384, 768, 1024)
        grid = "an EVA-02 of no published size, whose rotary positions are taken to refer to a grid of 16 x 16"
        return InferredModel(_EVA02, "EVA-02" if published else grid)
    if "blocks.0.scale1" in has or "fc_norm.weight" in has or dim == 1408:
        return InferredModel()
    if dim == 1792:
        return InferredModel({"post_norm": True, "eps": 1e-6}, "EVA-02 enormous")
    raise _either("an EVA", "an EVA-02 of the enormous kind, whose LayerNorms come after attention and MLP")


def _siglip(tensors: Tensors, dim: int, patch: int) -> InferredModel:
    fields: dict[str, Any] = {}
    if {(dim, patch), (dim, patch, needed(tensors, "pos_embed", 3).shape[1])} & _TANH_SIZES:
        fields["activation"] = "gelu_tanh"
    if dim == 1536:
        fields["heads"] = 16
    if (dim, patch) == (768, 16) and "pool.probe" not in tensors:
        fields["heads"] = None  # 12 in SigLIP's, 16 in vit_base_patch16_gap_224
    return InferredModel(fields, "SigLIP")


def _either(one: str, other: str) -> InvalidCheckpoint:
    return InvalidCheckpoint(
        f"The tensors match {one} and {other}: put the config.json that names the architecture next to the file."
    )
