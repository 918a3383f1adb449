"""timm's Vision Transformers, and Meta's original files with the same names: DeiT, DINO, MAE, DINOv2.

Models that compute different things have the same tensor names. The missing settings come from the architecture, which
config.json of the Hub states, and often the file name. Checked against every entry of timm 1.0.31's
`vision_transformer`, `deit` and `eva` modules.
"""

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from vit.checkpoints.families.clip import MEAN as CLIP_MEAN
from vit.checkpoints.families.clip import STD as CLIP_STD
from vit.checkpoints.families.family import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    Family,
    Recognised,
    Tensors,
    check_stated,
    concatenate,
    needed,
    with_position_bias,
)
from vit.checkpoints.families.target import Target, Written, apart
from vit.errors import InvalidCheckpoint
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.untrusted import brief

# ours, theirs
BLOCKS = (
    ("blocks.{i}.norm1", "blocks.{i}.norm1"),
    ("blocks.{i}.attn.qkv", "blocks.{i}.attn.qkv"),
    *((f"blocks.{{i}}.attn.{letter}", f"blocks.{{i}}.attn.{letter}_proj") for letter in "qkv"),
    ("blocks.{i}.attn.q.bias", "blocks.{i}.attn.q_bias"),
    ("blocks.{i}.attn.v.bias", "blocks.{i}.attn.v_bias"),
    ("blocks.{i}.attn.position_bias", "blocks.{i}.attn.relative_position_bias_table"),
    ("blocks.{i}.attn.norm", "blocks.{i}.attn.norm"),
    ("blocks.{i}.attn.norm", "blocks.{i}.attn.inner_attn_ln"),  # EVA-02's original, and BEiT-3's
    ("blocks.{i}.attn.proj", "blocks.{i}.attn.proj"),
    ("blocks.{i}.scale1", "blocks.{i}.ls1.gamma"),
    ("blocks.{i}.scale2", "blocks.{i}.ls2.gamma"),
    ("blocks.{i}.scale1", "blocks.{i}.gamma_1"),
    ("blocks.{i}.scale2", "blocks.{i}.gamma_2"),
    ("blocks.{i}.norm2", "blocks.{i}.norm2"),
    ("blocks.{i}.mlp.fc1", "blocks.{i}.mlp.fc1"),
    ("blocks.{i}.mlp.fc2", "blocks.{i}.mlp.fc2"),
    ("blocks.{i}.mlp.norm", "blocks.{i}.mlp.norm"),
    ("blocks.{i}.mlp.norm", "blocks.{i}.mlp.ffn_ln"),
    ("blocks.{i}.mlp.gate", "blocks.{i}.mlp.fc1_g"),
    ("blocks.{i}.mlp.up", "blocks.{i}.mlp.fc1_x"),
    ("blocks.{i}.mlp.fc1", "blocks.{i}.mlp.w12"),  # Meta's DINOv2
    ("blocks.{i}.mlp.gate", "blocks.{i}.mlp.w1"),  # Meta's DINOv3
    ("blocks.{i}.mlp.up", "blocks.{i}.mlp.w2"),
    ("blocks.{i}.mlp.fc2", "blocks.{i}.mlp.w3"),
)
KEYS = (
    ("patch_embed", "patch_embed.proj"),
    ("prefix.cls", "cls_token"),
    ("prefix.dist", "dist_token"),
    ("prefix.reg", "reg_token"),
    ("prefix.reg", "register_tokens"),
    ("pos_embed", "pos_embed"),
    ("position_bias", "rel_pos_bias.relative_position_bias_table"),
    ("rope.freqs", "rope.freqs"),
    ("norm_pre", "norm_pre"),
    *BLOCKS,
    ("norm", "norm"),
    ("fc_norm", "fc_norm"),
    ("pool.probe", "attn_pool.latent"),
    *((f"pool.{part}", f"attn_pool.{part}") for part in ("q", "kv", "proj", "norm", "mlp.fc1", "mlp.fc2")),
    ("pre_logits", "pre_logits.fc"),
    ("head", "head"),
    ("head_dist", "head_dist"),
)

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
_DINO = r"(^|[^a-z])dino_(deit|vit)"  # Meta's first DINO
_DEIT3 = r"deit_?3"

# Rotary positions of timm's models. Source: timm 1.0.31, `models/eva.py`.
_DINOV3 = {"rope": 100.0, "eps": 1e-5}
_EVA02 = {"rope": 1e4, "rope_places": "rows", "rope_grid": (16, 16), "eps": 1e-6}
_ROPE_VIT = {"rope": 100.0, "rope_places": "columns", "eps": 1e-6}
_MIXED = {"rope": 10.0, "rope_places": "mixed"}
_CORE_GRIDS = {192: 24, 384: 24, 768: 14, 1024: 24, 1536: 32}  # of Perception Encoder's core models, by width
_ROTARY = (
    (r"dinov3", _DINOV3 | {"pool": "mean"}),
    (r"lingbot", _DINOV3),
    (r"^eva02_(?!enormous)|_rope_reg\d_gap_", _EVA02),
    (r"_rope_mixed_", _MIXED),
    (r"_rope_", _ROPE_VIT),
)


def by_name(name: str) -> dict[str, Any]:
    """Infer config fields from the name of a file or folder; none of them follow from tensors."""
    fields = _named(name.lower())
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


_POOLS = {"token": "cls", "avg": "mean", "map": "map"}
_ACTIVATIONS = {
    "gelu": "gelu", "gelu_tanh": "gelu_tanh", "quick_gelu": "quick_gelu", "quickgelu": "quick_gelu", "silu": "silu",
    "swish": "silu",
}  # fmt: skip
# Names in config.json.
_CALLED = {
    "heads": "num_heads", "depth": "depth", "dim": "embed_dim", "image_size": "img_size",
    "rope": "rope_temperature", "rope_grid": "ref_feat_shape", "pool_heads": "attn_pool_num_heads",
}  # fmt: skip


def _read_timm_config(document: Mapping[str, Any]) -> dict[str, Any]:
    """Read config.json of the Hub or of timm's `save_for_hf`: the architecture, and the arguments that override it."""
    architecture, args = document.get("architecture"), document.get("model_args") or {}
    if not isinstance(architecture, str) or not isinstance(args, Mapping):
        if "model_type" in document and document["model_type"] != "timm_wrapper":
            raise InvalidCheckpoint(
                f'config.json says that this is a "{brief(document["model_type"])}" model of transformers, and the '
                "weights are timm's. Put the config.json that belongs to the weights beside them."
            )
        return {}
    stated = by_architecture(architecture)
    if document.get("global_pool") in _POOLS:
        stated["pool"] = _POOLS[document["global_pool"]]
    if args.get("global_pool") in _POOLS:
        stated["pool"] = _POOLS[args["global_pool"]]
    for ours, theirs in _CALLED.items():
        if args.get(theirs) is not None:
            check_stated(ours, args[theirs], theirs)
            stated[ours] = tuple(args[theirs]) if isinstance(args[theirs], list) else args[theirs]
    if args.get("act_layer") is not None:
        if args["act_layer"] not in _ACTIVATIONS:
            raise InvalidCheckpoint(
                f"Config field act_layer is {brief(args['act_layer'])}, which is not computed here."
            )
        stated["activation"] = _ACTIVATIONS[args["act_layer"]]
    return stated


def _adjust(tensors: Tensors) -> tuple[Tensors, dict[str, Any]]:
    tensors, fields = with_position_bias(tensors, "progression")
    if "pos_embed" in tensors and tensors["pos_embed"].ndim == 4:  # (1, rows, cols, D)
        tensors["pos_embed"] = tensors["pos_embed"].flatten(1, 2)
    if "fc_norm.weight" in tensors:
        fields |= {"norm": "after_pool", "pool": "mean"}
        for end in ("weight", "bias"):
            if f"fc_norm.{end}" in tensors:
                tensors[f"norm.{end}"] = tensors.pop(f"fc_norm.{end}")
    for name in [name for name in tensors if name.endswith(".attn.q.bias")]:  # keys have no bias
        block = name.removesuffix("q.bias")
        q, v = tensors.pop(name), tensors.pop(f"{block}v.bias", None)
        if v is None or q.shape != v.shape:
            raise InvalidCheckpoint(f"Queries, keys and values do not go together in `{brief(block[:-1])}`.")
        tensors[f"{block}qkv.bias"] = concatenate([q, torch.zeros_like(q), v])
        fields["activation"] = "gelu"
    if _gated(tensors):
        fields["activation"] = "silu"
    if "rope.freqs" in tensors:  # (2, L, H, K / 2)
        speeds = needed(tensors, "rope.freqs", 4)
        tensors |= {f"blocks.{i}.attn.speeds": one for i, one in enumerate(tensors.pop("rope.freqs").unbind(1))}
        fields |= _MIXED | {"heads": speeds.shape[2]}
    return tensors, fields


def _gated(tensors: Tensors) -> bool:
    fc1, fc2 = tensors.get("blocks.0.mlp.fc1.weight"), tensors.get("blocks.0.mlp.fc2.weight")
    halves = fc1 is not None and fc2 is not None and fc1.ndim == fc2.ndim == 2 and fc1.shape[0] == 2 * fc2.shape[1]
    return halves or "blocks.0.mlp.gate.weight" in tensors


# Sizes of SigLIP models that use tanh GELU: width, patch size and, if that is ambiguous, number of patches.
_TANH_SIZES = {(1536, 16), (1152, 16), (768, 32), (1024, 16, 1024)}
# Widths of LingBot's models, which have the same tensors as DINOv3's and use another token.
_LINGBOT = {384, 768, 1024}


def _by_tensors(tensors: Tensors, names: Collection[str], name: str) -> Recognised:
    """Recognise timm's models by their tensors."""
    patches = needed(tensors, "patch_embed.weight", 4)
    dim, has = patches.shape[0], tensors.keys()
    if {"rope.freqs", "position_bias", "blocks.0.attn.position_bias"} & has:
        return Recognised()
    if "pos_embed" not in has:
        return _without_positions(tensors, names, dim)
    if "norm_pre.weight" in has:
        return _with_norm_pre(tensors, dim)
    if "blocks.0.attn.q.bias" in has:
        return _without_key_bias(tensors, dim)
    if "blocks.0.attn.norm.weight" in has and "blocks.0.mlp.norm.weight" in has:
        return Recognised({"eps": 1e-5}, "BEiT-3")
    if "blocks.0.gamma_1" in names and not re.search(_DEIT3, name.lower()):
        rows, own = needed(tensors, "pos_embed", 3).shape[1], "prefix.cls" in has
        if own and math.isqrt(rows) ** 2 == rows:
            raise _either("Meta's DeiT-III", "timm's vit_*_rope_ape, whose positions are rotary too")
    if "prefix.cls" in has or "prefix.reg" in has or "blocks.0.scale1" in has:
        return Recognised()
    if "fc_norm.weight" in has and "blocks.0.attn.qkv.bias" not in has:
        if dim == 768:
            return Recognised({"post_norm": True}, "timm's vit_base_patch16_rpn")
        raise _either("a plain Vision Transformer", "one whose LayerNorms come after attention and MLP, as timm's rpn")
    if not {"norm.weight", "fc_norm.weight"} & has:
        raise _either("one without a last LayerNorm", "the vision encoder of Qwen3-VL, whose positions are rotary too")
    return _siglip(tensors, dim, patches.shape[2]) if "fc_norm.weight" not in has else Recognised()


def _without_positions(tensors: Tensors, names: Collection[str], dim: int) -> Recognised:
    has = tensors.keys()
    cls, reg, scale = "prefix.cls" in has, "prefix.reg" in has, "blocks.0.gamma_1" in names
    bias, partly = "blocks.0.attn.qkv.bias" in has, "blocks.0.attn.q.bias" in has
    if scale and cls and not reg and bias:
        return Recognised(_ROPE_VIT, "timm's vit_*_rope")
    if scale and reg and not cls and not bias and "fc_norm.weight" in has:
        return Recognised(_EVA02 | {"image_size": 256}, "timm's vit_*_rope_reg_gap")
    if not (scale and cls and reg and not bias):
        raise InvalidCheckpoint(
            "The file has no position embeddings, and its tensors are those of no model that is known to do without: "
            "put the config.json beside it that names the architecture."
        )
    if _gated(tensors) and dim == 1536 and not partly:
        return Recognised(_DINOV3 | {"pool": "cls", "image_size": 512}, "LingBot-Vision")
    if partly and not _gated(tensors) and dim in _LINGBOT and "fc_norm.weight" not in has:
        raise _either("timm's DINOv3, which reads the mean of the patches", "LingBot-Vision, which the class token")
    heads = {"heads": 20} if dim == 1280 else {}
    return Recognised(_DINOV3 | {"pool": "mean", "image_size": 256} | heads, "timm's DINOv3")


def _with_norm_pre(tensors: Tensors, dim: int) -> Recognised:
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
        return Recognised(fields | {"rope_grid": (side, side), "pool_heads": 8}, "Perception Encoder")
    if not {"norm.weight", "fc_norm.weight"} & has:
        return Recognised(fields | {"rope_grid": (32, 32), "pool": "mean"}, "Perception Encoder")
    return Recognised({"eps": 1e-5}, "CLIP")


def _without_key_bias(tensors: Tensors, dim: int) -> Recognised:
    """EVA, and models based on BEiT's code."""
    has = tensors.keys()
    if _gated(tensors):
        return Recognised(_EVA02, "EVA-02")
    if "blocks.0.scale1" in has or "fc_norm.weight" in has or dim == 1408:
        return Recognised()
    if dim == 1792:
        return Recognised({"post_norm": True, "eps": 1e-6}, "EVA-02 enormous")
    raise _either("an EVA", "an EVA-02 of the enormous kind, whose LayerNorms come after attention and MLP")


def _siglip(tensors: Tensors, dim: int, patch: int) -> Recognised:
    fields: dict[str, Any] = {}
    if {(dim, patch), (dim, patch, needed(tensors, "pos_embed", 3).shape[1])} & _TANH_SIZES:
        fields["activation"] = "gelu_tanh"
    if dim == 1536:
        fields["heads"] = 16
    if (dim, patch) == (768, 16) and "pool.probe" not in tensors:
        fields["heads"] = None  # 12 in SigLIP's, 16 in vit_base_patch16_gap_224
    return Recognised(fields, "SigLIP")


def _either(one: str, other: str) -> InvalidCheckpoint:
    return InvalidCheckpoint(
        f"By its tensors this may be {one}, or {other}: put the config.json beside it that names the architecture."
    )


def _preprocess(config: ViTConfig, name: str) -> tuple[Preprocess, str]:
    clip = "clip" in name.lower() and config.channels == 3
    imagenet = re.search(r"deit|dino|mae|eva|tipsv2|beitv2", name.lower()) and config.channels == 3
    half = (0.5,) * config.channels
    mean, std = (CLIP_MEAN, CLIP_STD) if clip else (IMAGENET_MEAN, IMAGENET_STD) if imagenet else (half, half)
    shorter = int(min(config.image_size) / _default_crop(name.lower(), min(config.image_size)))
    why = (
        f"The file does not state its preprocessing; timm's usual one is used: shorter side to {shorter} px, the "
        f"centre, bicubic, mean and deviation of {'CLIP' if clip else 'ImageNet' if imagenet else '0.5'}."
    )
    return Preprocess(config.image_size, "shortest", shorter, "bicubic", mean, std), why


def _default_crop(name: str, side: int) -> float:
    """Return the crop ratio that most of timm's models with such a name and size use."""
    if "siglip" in name:
        return 0.9
    if side >= 300 or re.search(r"dinov[23]|_clip_", name):
        return 1.0
    return 0.95 if side in (240, 256) else 0.9


def _stated_size(document: Mapping[str, Any]) -> tuple[int, int] | None:
    stated = _stated_preprocess(document)
    return None if stated is None else (stated.size[0], stated.size[1])


def _stated_preprocess(document: Mapping[str, Any]) -> Preprocess | None:
    """Read timm's `pretrained_cfg`.

    Source: timm 1.0.31, `timm/data/transforms_factory.py`, `transforms_imagenet_eval`.
    """
    stated = document.get("pretrained_cfg")
    if not isinstance(stated, Mapping) or not isinstance(stated.get("input_size"), list | tuple):
        return None
    size = tuple(stated["input_size"])[1:]
    crop, mode = stated.get("crop_pct") or 0.875, stated.get("crop_mode") or "center"
    if type(crop) not in (int, float) or not 0.1 <= crop <= 1 or mode not in ("center", "squash", "border"):
        raise InvalidCheckpoint(f"Config field crop_pct is {brief(crop)} and crop_mode {brief(mode)}; neither is read.")
    if mode == "border" and crop < 1:
        raise InvalidCheckpoint("Config field crop_mode is border, which pads pictures; this app does not do that.")
    if len(size) != 2 or not all(type(side) is int and 0 < side <= 4096 for side in size):
        raise InvalidCheckpoint(f"Config field input_size must be channels, height and width, not {brief(size)}.")
    how: Any = stated.get("interpolation") or "bicubic"
    return Preprocess(
        size,
        "squash" if mode == "squash" else "cover" if size[0] != size[1] else "shortest",
        int(min(size) / crop),
        "bicubic" if how == "random" else how,
        _per_channel(stated.get("mean"), IMAGENET_MEAN),
        _per_channel(stated.get("std"), IMAGENET_STD),
    )


def _per_channel(value: object, default: tuple[float, ...]) -> tuple[float, ...]:
    return tuple(value) if isinstance(value, list | tuple) else default


def _stated_labels(document: Mapping[str, Any]) -> object:
    """Read `label_names`, replaced by the readable `label_descriptions` where they exist."""
    stated = document.get("pretrained_cfg")
    places = [document, stated if isinstance(stated, Mapping) else {}]
    names = next((section["label_names"] for section in places if section.get("label_names")), None)
    described = next((section["label_descriptions"] for section in places if section.get("label_descriptions")), None)
    if not isinstance(names, list):
        return None
    if isinstance(described, Mapping):
        names = [described.get(name, name) if isinstance(name, str) else name for name in names]
    return {str(i): name for i, name in enumerate(names)}


FAMILY = Family(
    name="timm or Meta",
    signature=r"^blocks\.0\.(attn\.qkv|norm1)\.",
    without=r"^decoder_embed\.|^mask_token$|^storage_tokens$|^rope_embed\.periods$",  # Meta's own
    keys=KEYS,
    ignored=r"^mask_token$|^head\.(mlp|last_layer)\.|^(blocks\.\d+\.attn\.)?rope\.(?!freqs$)|\.relative_position_index$|^lm_head\.",
    square=False,
    fixed={"position_resize": "bicubic_antialias", "image_size": 224},
    assumed={
        "eps": (1e-6, "The eps of LayerNorm is not in the file; 1e-6 is timm's standard."),
        "activation": (
            "gelu",
            "The activation is not in the file; exact GELU is timm's standard. CLIP's models that timm calls quickgelu "
            'have QuickGELU: state it by a config.json beside the file, as {"architecture": '
            '"vit_base_patch32_clip_quickgelu_224"}.',
        ),
        "pool": ("cls", "Whether the head reads the class token is not in the file; it usually does."),
    },
    called=_CALLED,
    read_config=_read_timm_config,
    by_name=by_name,
    adjust=_adjust,
    by_tensors=_by_tensors,
    stated_size=_stated_size,
    preprocess=_preprocess,
    stated_preprocess=_stated_preprocess,
    stated_labels=_stated_labels,
)
MAE = replace(
    FAMILY,
    name="Meta MAE",
    square=True,
    signature=r"^decoder_embed\.",
    without=r"(?!)",
    ignored=r"^mask_token$|^decoder_",
    fixed={**FAMILY.fixed, "eps": 1e-6, "activation": "gelu", "pool": "cls"},
)


def _adjust_dinov2(tensors: Tensors) -> tuple[Tensors, dict[str, Any]]:
    tensors, fields = _adjust(tensors)
    resize = "bicubic_antialias" if "prefix.reg" in tensors else "bicubic_offset"
    return tensors, fields | {"position_resize": resize}


META_DINOV2 = replace(
    FAMILY,
    name="Meta DINOv2",
    square=True,
    keys=(*KEYS, ("head", "linear_head")),  # classifiers on class token and mean of the patches
    signature=r"^mask_token$",
    without=r"^decoder_embed\.|^storage_tokens$|^rope_embed\.periods$",  # MAE and DINOv3
    ignored=r"^mask_token$|^(dino|ibot)_head\.",
    fixed={"eps": 1e-6, "activation": "gelu", "pool": "cls"},
    adjust=_adjust_dinov2,
)
FAMILIES = (MAE, META_DINOV2, FAMILY)


# --- Writing --------------------------------------------------------------------------------------------------

_POOLS_WRITTEN = {ours: theirs for theirs, ours in _POOLS.items()}
# Settings that timm's class does not take as arguments; the function of this architecture sets them.
_EPS = {1e-6: "vit_base_patch16_224", 1e-5: "vit_base_patch16_clip_224"}
_DISTILLED = "deit_base_distilled_patch16_224"
_SWIGLU = "vit_giant_patch14_dinov2"


def _write_tensors(config: ViTConfig, tensors: Tensors, labels: Sequence[str], preprocess: Preprocess) -> Written:
    """Return config.json for `timm.create_model("local-dir:...")`, and the tensors."""
    distilled = config.pool == "cls_dist"
    tensors = apart(config, tensors, rows=distilled)
    if distilled:  # they average two heads, we have one with half the weights
        one, other = (2 * tensors["head.weight"]).chunk(2, 1)
        tensors |= {"head.weight": one, "head_dist.weight": other, "head_dist.bias": tensors["head.bias"]}
    after = config.norm == "after_pool" and config.pool == "mean"
    if after:
        tensors |= {f"fc_norm.{end}": tensors.pop(f"norm.{end}") for end in ("weight", "bias")}
    named = FAMILY.rename_back(tensors)

    size, (height, width) = preprocess.size, config.image_size
    arguments: dict[str, Any] = {
        "img_size": height if height == width else [height, width],
        "patch_size": config.patch_size,
        "in_chans": config.channels,
        "embed_dim": config.dim,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": _mlp_ratio(config),
        "qkv_bias": config.qkv_bias,
        "init_values": (config.layer_scale or 1.0) if config.layer_scale is not None else None,
        "act_layer": config.activation,
    }
    if size != config.image_size:
        arguments["dynamic_img_size"] = True
    if not distilled:
        arguments |= {
            "global_pool": _POOLS_WRITTEN[config.pool],
            "class_token": "cls" in config.prefix,
            "reg_tokens": sum(name.startswith("reg") for name in config.prefix),
            "no_embed_class": True,
            "pre_norm": config.norm_pre,
            "final_norm": config.norm != "none",
            "fc_norm": after,
            "pool_include_prefix": config.pool == "map",
        }
    stated: dict[str, Any] = {
        "architecture": _DISTILLED if distilled else _SWIGLU if config.gated_mlp else _EPS[config.eps],
        "num_classes": config.num_classes,
        "num_features": config.dim,
        "global_pool": _POOLS_WRITTEN.get(config.pool, "token"),
        "model_args": arguments,
    }
    if labels:
        stated["label_names"] = list(labels)
    if config.multi_label:  # for transformers, which opens the folder, too
        stated["problem_type"] = "multi_label_classification"
    stated["pretrained_cfg"] = {
        "custom_load": False,
        "input_size": [config.channels, *size],
        "fixed_input_size": size == config.image_size,
        "interpolation": preprocess.interpolation,
        "crop_pct": _crop_pct(preprocess),
        "crop_mode": "squash" if preprocess.resize == "squash" else "center",
        "mean": list(preprocess.mean),
        "std": list(preprocess.std),
        "num_classes": config.num_classes,
        "pool_size": None,
        "first_conv": "patch_embed.proj",
        "classifier": ["head", "head_dist"] if distilled else "head",
    }
    return Written(stated, named)


def _mlp_ratio(config: ViTConfig) -> float:
    """Return timm's `mlp_ratio`, such that `int(dim * mlp_ratio)` is the width of the first layer of the MLP."""
    width = config.mlp_dim * (2 if config.gated_mlp else 1)
    ratio = width / config.dim
    return ratio if int(config.dim * ratio) == width else math.nextafter(ratio, math.inf)


def _crop_pct(preprocess: Preprocess) -> float | None:
    """Return timm's `crop_pct`, such that `floor(side / crop_pct)` is the resized side; None if no value fits."""
    height, width = preprocess.size
    shorter = preprocess.resize_to
    assert shorter is not None  # set by `Preprocess`
    if preprocess.resize == "shortest" and height != width:  # timm covers both sides, we resize the shorter one
        return None
    resized = [shorter * side // min(height, width) for side in (height, width)]
    about = min(height, width) / shorter
    for crop in (about, math.nextafter(about, 0.0), min(height, width) / (shorter + 0.5)):
        if [math.floor(side / crop) for side in (height, width)] == resized and crop >= 0.1:
            return crop
    return None


def _obstacle(config: ViTConfig, preprocess: Preprocess) -> str:
    if config.gated_mlp and (config.activation != "silu" or config.eps != 1e-6 or config.pool == "map"):
        return "its MLP is gated, which timm does with SiLU, an eps of 1e-06 and no learnt query only"
    if config.norm_pre == config.patch_bias:
        return "timm has either a LayerNorm before the first block or a bias in the patch embedding"
    if config.norm == "after_pool" and config.pool == "map":
        return "its final LayerNorm comes after the pool"
    if _crop_pct(preprocess) is None:
        height, width = preprocess.size
        return f"timm does not resize pictures to {height} x {width} px as it does"
    return ""


TARGETS = (
    Target(
        "VisionTransformer",
        _write_tensors,
        {
            "prefix": ("", "cls", "cls reg", "reg"),
            "pool": ("cls", "mean", "map"),
            "norm": ("before_pool", "after_pool", "none"),
            "norm_pre": (True, False),
            "patch_bias": (True, False),
            "gated_mlp": (True, False),
            "layer_scale": (True, False),
            "head": (True, False),
            "eps": tuple(_EPS),
        },
        "bicubic_antialias",
        _obstacle,
    ),
    Target(
        "VisionTransformerDistilled",
        _write_tensors,
        {"prefix": ("cls dist",), "pool": ("cls_dist",), "layer_scale": (True, False), "eps": (1e-6,)},
        "bicubic_antialias",
        _obstacle,
    ),
)
