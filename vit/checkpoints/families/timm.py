"""timm's Vision Transformers, and Meta's original files with the same names: DeiT, DINO, MAE, DINOv2.

The architecture, which decides what the tensors leave open, is found by `timm_architectures`.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from vit.checkpoints.families import timm_preprocess
from vit.checkpoints.families.family import Family, check_stated
from vit.checkpoints.families.target import ConvertedModel, Target, split_prefix
from vit.checkpoints.families.tensor_shapes import Tensors, concatenate, needed, with_position_bias
from vit.checkpoints.families.timm_architectures import (
    MIXED,
    by_architecture,
    by_name,
    by_tensors,
    is_gated,
    query_reads_prefix,
)
from vit.errors import InvalidCheckpoint
from vit.images.preprocess import Preprocess
from vit.model.config import SIZES, ViTConfig
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

# timm's name -> our pools without and with `pool_include_prefix`
_POOLS = {"token": ("cls", "cls"), "avg": ("mean", "all"), "map": ("map_patches", "map")}
_ACTIVATIONS = {
    "gelu": "gelu", "gelu_tanh": "gelu_tanh", "quick_gelu": "quick_gelu", "quickgelu": "quick_gelu", "silu": "silu",
    "swish": "silu",
}  # fmt: skip
# Names in config.json.
_CONFIG_NAMES = {
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
    pool = document.get("global_pool") if args.get("global_pool") is None else args["global_pool"]
    if pool:  # "": no pooling, in models without classes
        stated["pool"] = _pool(pool, args.get("pool_include_prefix"), architecture)
    for ours, theirs in _CONFIG_NAMES.items():
        if args.get(theirs) is not None:
            check_stated(ours, args[theirs], theirs)
            stated[ours] = tuple(args[theirs]) if isinstance(args[theirs], list) else args[theirs]
    if args.get("act_layer") is not None:
        if args["act_layer"] not in tuple(_ACTIVATIONS):
            raise InvalidCheckpoint(
                f"Config field act_layer is {brief(args['act_layer'])}, which is not computed here."
            )
        stated["activation"] = _ACTIVATIONS[args["act_layer"]]
    return stated


def _pool(stated: object, include_prefix: object, architecture: str) -> str:
    if not isinstance(stated, str) or stated not in _POOLS:
        raise InvalidCheckpoint(
            f"The model pools by {brief(stated)} (timm's global_pool), which is not computed here; "
            f"computed are {', '.join(_POOLS)}."
        )
    if include_prefix is None:
        include_prefix = stated == "map" and query_reads_prefix(architecture)
    return _POOLS[stated][bool(include_prefix)]


def _adjust(tensors: Tensors) -> tuple[Tensors, dict[str, Any]]:
    tensors, fields = with_position_bias(tensors, "progression")
    if "pos_embed" in tensors and tensors["pos_embed"].ndim == 4:  # (1, rows, cols, D)
        tensors["pos_embed"] = tensors["pos_embed"].flatten(1, 2)
    if "fc_norm.weight" in tensors:
        if "norm.weight" in tensors:
            raise InvalidCheckpoint(
                "The model has LayerNorms before and after the pool (`norm` and `fc_norm`), which is not computed here."
            )
        fields |= {"norm": "after_pool", "pool": "mean"}
        for end in ("weight", "bias"):
            if f"fc_norm.{end}" in tensors:
                tensors[f"norm.{end}"] = tensors.pop(f"fc_norm.{end}")
    if "pool.probe" in tensors and "norm_pre.weight" not in tensors:  # with the latter it is a Perception Encoder
        fields["pool"] = "map_patches"
    for name in [name for name in tensors if name.endswith(".attn.q.bias")]:  # keys have no bias
        block = name.removesuffix("q.bias")
        q, v = tensors.pop(name), tensors.pop(f"{block}v.bias", None)
        if v is None or q.shape != v.shape:
            raise InvalidCheckpoint(f"Queries, keys and values do not go together in `{brief(block[:-1])}`.")
        tensors[f"{block}qkv.bias"] = concatenate([q, torch.zeros_like(q), v])
        fields["activation"] = "gelu"
    if is_gated(tensors):
        fields["activation"] = "silu"
    if "rope.freqs" in tensors:  # (2, L, H, K / 2)
        speeds = needed(tensors, "rope.freqs", 4)
        tensors |= {f"blocks.{i}.attn.speeds": one for i, one in enumerate(tensors.pop("rope.freqs").unbind(1))}
        fields |= MIXED | {"heads": speeds.shape[2]}
    return tensors, fields


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
    config_names=_CONFIG_NAMES,
    read_config=_read_timm_config,
    by_name=by_name,
    adjust=_adjust,
    by_tensors=by_tensors,
    stated_size=timm_preprocess.stated_size,
    preprocess=timm_preprocess.usual_preprocess,
    stated_preprocess=timm_preprocess.stated_preprocess,
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

_POOLS_WRITTEN = {ours: theirs for theirs, both in _POOLS.items() for ours in both}
# Settings that timm's class does not take as arguments; the function of this architecture sets them.
_EPS = {1e-6: "vit_base_patch16_224", 1e-5: "vit_base_patch16_clip_224"}
_DISTILLED = "deit_base_distilled_patch16_224"
_SWIGLU = "vit_giant_patch14_dinov2"
# timm's functions by their sizes; for other sizes, that of `_EPS` with the sizes as arguments.
_NAMES = (
    "vit_tiny_patch16_224", "vit_small_patch32_224", "vit_small_patch16_224", "vit_small_patch14_dinov2",
    "vit_small_patch8_224", "vit_base_patch32_224", "vit_base_patch16_224", "vit_base_patch14_dinov2",
    "vit_base_patch8_224", "vit_large_patch32_224", "vit_large_patch16_224", "vit_large_patch14_224",
    "vit_huge_patch14_224", "vit_base_patch32_clip_224", "vit_base_patch16_clip_224", "vit_large_patch14_clip_224",
    "vit_huge_patch14_clip_224",
)  # fmt: skip
_SIZES = dict(zip(("tiny", "small", "base", "large", "huge"), SIZES.values(), strict=True))


def _write_tensors(
    config: ViTConfig, tensors: Tensors, labels: Sequence[str], preprocess: Preprocess
) -> ConvertedModel:
    """Return config.json for `timm.create_model("local-dir:...")`, and the tensors."""
    distilled = config.pool == "cls_dist"
    tensors = split_prefix(config, tensors, rows=distilled)
    if distilled:  # they average two heads, we have one with half the weights
        one, other = (2 * tensors["head.weight"]).chunk(2, 1)
        tensors |= {"head.weight": one, "head_dist.weight": other, "head_dist.bias": tensors["head.bias"]}
    after = config.norm == "after_pool" and config.pool in ("mean", "all")
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
            "pool_include_prefix": config.pool in ("map", "all"),
        }
    stated: dict[str, Any] = {
        "architecture": _DISTILLED if distilled else _SWIGLU if config.gated_mlp else _architecture(config),
        "num_classes": config.num_classes,
        "num_features": config.dim,
        "global_pool": _POOLS_WRITTEN.get(config.pool, "token"),
        "model_args": arguments,
    }
    if labels:
        stated["label_names"] = list(labels)
    if config.multi_label or config.regression:  # for transformers, which opens the folder, too
        stated["problem_type"] = "regression" if config.regression else "multi_label_classification"
    stated["pretrained_cfg"] = {
        "custom_load": False,
        **timm_preprocess.written(preprocess),
        "fixed_input_size": size == config.image_size,
        "num_classes": config.num_classes,
        "pool_size": None,
        "first_conv": "patch_embed.proj",
        "classifier": ["head", "head_dist"] if distilled else "head",
    }
    return ConvertedModel(stated, named)


def _architecture(config: ViTConfig) -> str:
    """Return the timm function of a model's size, or one whose sizes are replaced by arguments."""
    size = config.dim, config.depth, config.heads, config.mlp_dim
    begins = {f"vit_{name}_patch{config.patch_size}_" for name, sizes in _SIZES.items() if sizes == size}
    clip = config.eps == 1e-5
    same = (name for name in _NAMES if ("_clip_" in name) is clip and any(map(name.startswith, begins)))
    return next(same, _EPS[config.eps])


def _mlp_ratio(config: ViTConfig) -> float:
    """Return timm's `mlp_ratio`, such that `int(dim * mlp_ratio)` is the width of the first layer of the MLP."""
    width = config.mlp_dim * (2 if config.gated_mlp else 1)
    ratio = width / config.dim
    return ratio if int(config.dim * ratio) == width else math.nextafter(ratio, math.inf)


def _obstacle(config: ViTConfig, preprocess: Preprocess) -> str:
    if config.gated_mlp and (config.activation != "silu" or config.eps != 1e-6 or config.pool.startswith("map")):
        return "its MLP is gated, which timm does with SiLU, an eps of 1e-06 and no learnt query only"
    if config.norm_pre == config.patch_bias:
        return "timm has either a LayerNorm before the first block or a bias in the patch embedding"
    if config.norm == "after_pool" and config.pool.startswith("map"):
        return "its final LayerNorm comes after the pool"
    if timm_preprocess.crop_pct(preprocess) is None:
        height, width = preprocess.size
        return f"timm does not resize pictures to {height} x {width} px as it does"
    return ""


TARGETS = (
    Target(
        "VisionTransformer",
        _write_tensors,
        {
            "prefix": ("", "cls", "cls reg", "reg"),
            "pool": ("cls", "mean", "all", "map", "map_patches"),
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
