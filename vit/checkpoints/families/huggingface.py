"""transformers' ViT, DeiT, ViT-MSN, ViT-MAE and I-JEPA: the layout of the Hub, and our own.

transformers 5 renamed its modules but still writes the old names to files. Both are read; the file's are written. A
model that `ViTForImageClassification` cannot express uses the same layout with the names in `EXTRA`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch

from vit.checkpoints.families.family import Family, check_stated
from vit.checkpoints.families.target import ConvertedModel, Target, split_prefix, split_qkv
from vit.checkpoints.families.tensor_shapes import Tensors
from vit.errors import InvalidCheckpoint
from vit.images.preprocess import Preprocess
from vit.model.config import PositionResize, ViTConfig
from vit.untrusted import brief

# ours, theirs on disk, after the model's prefix ("vit.", "deit.", ...)
ON_DISK = (
    ("patch_embed", "embeddings.patch_embeddings.projection"),
    ("prefix.cls", "embeddings.cls_token"),
    ("pos_embed", "embeddings.position_embeddings"),
    ("blocks.{i}.norm1", "encoder.layer.{i}.layernorm_before"),
    ("blocks.{i}.attn.q", "encoder.layer.{i}.attention.attention.query"),
    ("blocks.{i}.attn.k", "encoder.layer.{i}.attention.attention.key"),
    ("blocks.{i}.attn.v", "encoder.layer.{i}.attention.attention.value"),
    ("blocks.{i}.attn.proj", "encoder.layer.{i}.attention.output.dense"),
    ("blocks.{i}.norm2", "encoder.layer.{i}.layernorm_after"),
    ("blocks.{i}.mlp.fc1", "encoder.layer.{i}.intermediate.dense"),
    ("blocks.{i}.mlp.fc2", "encoder.layer.{i}.output.dense"),
    ("norm", "layernorm"),
    ("head", "classifier"),
)
# ours, theirs in a `state_dict()` of transformers 5, where they differ
IN_MEMORY = (
    ("blocks.{i}.norm1", "layers.{i}.layernorm_before"),
    ("blocks.{i}.attn.q", "layers.{i}.attention.q_proj"),
    ("blocks.{i}.attn.k", "layers.{i}.attention.k_proj"),
    ("blocks.{i}.attn.v", "layers.{i}.attention.v_proj"),
    ("blocks.{i}.attn.proj", "layers.{i}.attention.o_proj"),
    ("blocks.{i}.norm2", "layers.{i}.layernorm_after"),
    ("blocks.{i}.mlp.fc1", "layers.{i}.mlp.fc1"),
    ("blocks.{i}.mlp.fc2", "layers.{i}.mlp.fc2"),
)
# DeiT's distillation token. `DeiTForImageClassification` has it, too, but only one head, on the class token.
DISTILLED = (
    ("prefix.dist", "embeddings.distillation_token"),
    ("head", "cls_classifier"),
    ("head_dist", "distillation_classifier"),
)
# Names that only our own files use.
EXTRA = (
    ("prefix", "embeddings.prefix_tokens"),
    ("blocks.{i}.scale1", "encoder.layer.{i}.layer_scale1"),
    ("blocks.{i}.scale2", "encoder.layer.{i}.layer_scale2"),
    ("blocks.{i}.attn.norm", "encoder.layer.{i}.attention.norm"),
    ("blocks.{i}.attn.speeds", "encoder.layer.{i}.attention.speeds"),
    ("blocks.{i}.attn.position_bias", "encoder.layer.{i}.attention.position_bias"),
    ("blocks.{i}.mlp.norm", "encoder.layer.{i}.mlp_norm"),
    ("norm_pre", "norm_pre"),
    ("pre_logits", "pre_logits"),
    ("pool.probe", "pool.probe"),
    *((f"pool.{part}", f"pool.{part}") for part in ("q", "kv", "proj", "norm", "mlp.fc1", "mlp.fc2")),
)


class ModelDefaults(NamedTuple):
    """transformers' defaults for one `model_type`, used where config.json lacks a field."""

    eps: float
    activation: str = "gelu"
    patch_size: int = 16
    dim: int = 768
    heads: int = 12
    mlp_dim: int | None = 3072  # None: not stated in the config
    prefix: tuple[str, ...] | None = ("cls",)  # None: differs between models
    patch_bias: bool = True
    image_size: int = 224
    position_resize: PositionResize | None = None  # None: that of the family


KINDS = {
    "vit": ModelDefaults(1e-12),
    "deit": ModelDefaults(1e-12, prefix=("cls", "dist")),
    "vit_msn": ModelDefaults(1e-6),
    "vit_mae": ModelDefaults(1e-12),
    "ijepa": ModelDefaults(1e-12, prefix=()),
    "flava_image_model": ModelDefaults(1e-12),
    "dpt": ModelDefaults(1e-12, image_size=384, position_resize="bilinear"),
}
# Fields of config.json for the part that sees pictures, in models of several parts.
_TOWERS = ("vision_config", "image_config", "backbone_config", "encoder", "vlm_config", "thinker_config")

# ours, theirs
_FIELDS = {
    "dim": "hidden_size",
    "depth": "num_hidden_layers",
    "heads": "num_attention_heads",
    "mlp_dim": "intermediate_size",
    "eps": "layer_norm_eps",
    "image_size": "image_size",
    "patch_size": "patch_size",
    "channels": "num_channels",
    "qkv_bias": "qkv_bias",
}
CONFIG_NAMES = _FIELDS | {"activation": "hidden_act"}
_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "quick_gelu": "quick_gelu", "silu": "silu"}
_ACTIVATIONS_READ = {theirs: ours for ours, theirs in _ACTIVATIONS.items()} | {
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "swish": "silu",
}


def tower(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what config.json states about the part that sees pictures, in a model of several parts; else all of it."""
    while "model_type" in document:
        inner = next((document[field] for field in _TOWERS if isinstance(document.get(field), Mapping)), None)
        if inner is None:
            break
        document = {"model_type": f"{document['model_type']}_vision_model", **inner}
    return document


def read_config(document: Mapping[str, Any], kinds: Mapping[str, ModelDefaults] = KINDS) -> dict[str, Any]:
    """Read the config fields of a config.json of transformers; absent fields have transformers' defaults.

    Without `model_type` the file is not from transformers, such as a training script's own; it states only what it has.

    Args:
        kinds: possible `model_type` values for the tensors.
    """
    document = tower(document)
    whole = "model_type" in document
    name = document["model_type"] if whole else next(iter(kinds))
    if name not in tuple(kinds):
        raise InvalidCheckpoint(
            f'config.json says that this is a "{brief(name)}" model, but the names of the weights are those of '
            f'"{next(iter(kinds))}". Put the model\'s own config.json beside the weights.'
        )
    kind = kinds[name]
    defaults = kind._asdict() | {"depth": 12, "channels": 3, "qkv_bias": True}
    values = {
        ours: document.get(_FIELDS[ours], default)
        for ours, default in defaults.items()
        if ours in _FIELDS and default is not None and (whole or _FIELDS[ours] in document)
    }
    for field in ("image_size", "patch_size"):
        match values.get(field):
            case [height, width] if height == width:
                values[field] = height
    for field, value in values.items():
        check_stated(field, value, CONFIG_NAMES[field])
    if whole:
        of_kind = {"prefix": kind.prefix, "patch_bias": kind.patch_bias, "position_resize": kind.position_resize}
        values |= {field: value for field, value in of_kind.items() if value is not None}
    if document.get("use_swiglu_ffn") is True:
        return values | {"activation": "silu"}
    if not whole and "hidden_act" not in document:
        return values
    activation = document.get("hidden_act", _ACTIVATIONS[kind.activation])
    if not isinstance(activation, str) or activation not in _ACTIVATIONS_READ:
        raise InvalidCheckpoint(
            f"Config field hidden_act is {brief(activation)}; this app computes {', '.join(_ACTIVATIONS_READ)}."
        )
    return values | {"activation": _ACTIVATIONS_READ[activation]}


def assumed(kind: ModelDefaults, library: str) -> dict[str, tuple[Any, str]]:
    """Return the family's defaults for settings that tensors do not determine, with a reason for each."""
    why = f"is not in the file; %s is {library}'s standard."
    return {
        "eps": (kind.eps, f"The eps of LayerNorm {why % f'{kind.eps:g}'}"),
        "activation": (kind.activation, f"The activation {why % kind.activation}"),
    }


def _preprocess(config: ViTConfig, file: str) -> tuple[Preprocess, str]:
    half = (0.5,) * config.channels
    why = (
        "There is no preprocessor_config.json, so transformers' standard for ViT is used: "
        "the whole picture squeezed to the input's size, mean and deviation 0.5."
    )
    return Preprocess(size=config.image_size, resize="squash", mean=half, std=half), why


def _infer_pool(tensors: Tensors) -> tuple[Tensors, dict[str, Any]]:
    """Infer the pooling: the class token if there is one; I-JEPA has none, and DeiT with a teacher has two heads."""
    return tensors, {"pool": "cls"} if "prefix.cls" in tensors and "head_dist.weight" not in tensors else {}


FAMILY = Family(
    name="transformers",
    signature=r"^embeddings\.patch_embeddings\.projection\.",
    # DINOv2 and BEiT
    without=r"\.layer_scale1\.lambda1$|^embeddings\.register_tokens$|\.lambda_1$|\.relative_position_bias_table$",
    keys=ON_DISK + IN_MEMORY + DISTILLED,
    ignored=r"^pooler\.|^embeddings\.mask_token$|^decoder\.",
    fixed={"position_resize": "bicubic"},
    assumed=assumed(KINDS["vit"], "transformers"),
    config_names=CONFIG_NAMES,
    read_config=read_config,
    adjust=_infer_pool,
    preprocess=_preprocess,
)
NATIVE = replace(FAMILY, name="saved", keys=ON_DISK + EXTRA, adjust=lambda tensors: (tensors, {}))
FAMILIES, MODEL_TYPES = (FAMILY,), tuple(KINDS)


def write_config(config: ViTConfig, labels: Sequence[str]) -> dict[str, Any]:
    """Return config.json for transformers; for a model that it cannot express, one that it refuses to load."""
    names = {"id2label": {str(i): label for i, label in enumerate(labels)}}
    if PLAIN_VIT.obstacles(config):  # loading it as "vit" would silently compute something else
        return {"model_type": "vit-attention-explorer"} | names
    return document(config, labels, "vit", "ViTForImageClassification")


def document(config: ViTConfig, labels: Sequence[str], kind: str, architecture: str) -> dict[str, Any]:
    """Return config.json for a class of transformers, with class names if there are labels.

    Args:
        kind: transformers' `model_type`.
        architecture: name of the class.
    """
    stated = {theirs: getattr(config, ours) for ours, theirs in _FIELDS.items()}
    height, width = config.image_size
    names = {"id2label": {str(i): label for i, label in enumerate(labels)}} if labels else {}
    numbers = {"label2id": {label: i for i, label in enumerate(labels)}} if labels else {}
    problem = "regression" if config.regression else "multi_label_classification"
    together = {"problem_type": problem} if config.regression or config.multi_label else {}
    return stated | names | together | {
        "architectures": [architecture],
        "model_type": kind,
        "hidden_act": _ACTIVATIONS[config.activation],
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "image_size": height if height == width else [height, width],
    } | numbers | {"dtype": "float32"}  # fmt: skip


def write_tensors(config: ViTConfig, tensors: Tensors) -> Tensors:
    """Rename the tensors of a `VisionTransformer` to transformers' names, and to `EXTRA` where it has none."""
    tensors = split_qkv(config, tensors)
    prefix = tensors.pop("prefix_tokens")
    if config.prefix == ("cls",):
        tensors["prefix.cls"] = prefix
        # Our class token includes its position, so transformers' position for it is zero.
        tensors["pos_embed"] = torch.cat([torch.zeros_like(prefix), tensors["pos_embed"]], 1)
    elif config.prefix:
        tensors["prefix"] = prefix
    renamed = NATIVE.rename_back(tensors)
    return {name if name.startswith("classifier.") else f"vit.{name}": tensor for name, tensor in renamed.items()}


# --- For other classes of transformers ------------------------------------------------------------------------


def _write_tensors(
    kind: str, architecture: str, config: ViTConfig, tensors: Tensors, labels: Sequence[str], preprocess: Preprocess
) -> ConvertedModel:
    tensors = split_prefix(config, split_qkv(config, tensors))
    if architecture == TEACHER:  # they average two heads, we have one with half the weights
        one, other = (2 * tensors["head.weight"]).chunk(2, 1)
        tensors |= {"head.weight": one, "head_dist.weight": other, "head_dist.bias": tensors["head.bias"]}
        renamed = _WITH_TEACHER.rename_back(tensors)
    else:
        renamed = _WITH_DIST.rename_back(tensors)
    base = {"vit_msn": "vit"}.get(kind, kind)
    if config.num_classes:
        renamed = {name if "classifier." in name else f"{base}.{name}": tensor for name, tensor in renamed.items()}
    return ConvertedModel(document(config, labels, kind, architecture), renamed)


TEACHER = "DeiTForImageClassificationWithTeacher"
_WITH_TEACHER = replace(FAMILY, keys=DISTILLED + ON_DISK)
_WITH_DIST = replace(FAMILY, keys=ON_DISK + DISTILLED)
PLAIN_VIT = Target("ViTForImageClassification", partial(_write_tensors, "vit", "ViTForImageClassification"))
TARGETS = (
    PLAIN_VIT,
    # ViTModel has a pooling layer, for which we have no weights.
    Target("ViTMSNModel", partial(_write_tensors, "vit_msn", "ViTMSNModel"), {"head": (False,)}),
    Target(
        "DeiTForImageClassification",
        partial(_write_tensors, "deit", "DeiTForImageClassification"),
        {"prefix": ("cls dist",)},
    ),
    Target(TEACHER, partial(_write_tensors, "deit", TEACHER), {"prefix": ("cls dist",), "pool": ("cls_dist",)}),
    Target(
        "IJepaForImageClassification",
        partial(_write_tensors, "ijepa", "IJepaForImageClassification"),
        {"prefix": ("",), "pool": ("mean",)},
    ),
    Target(
        "IJepaModel", partial(_write_tensors, "ijepa", "IJepaModel"),
        {"prefix": ("",), "pool": ("mean",), "head": (False,)},
    ),
)  # fmt: skip
