"""transformers' ViTForImageClassification: the layout of the Hub, and our own.

transformers 5 renamed its modules, yet still writes the old names to files: both dialects are read, the file's
is written. A model that `ViTForImageClassification` cannot express keeps this layout and adds `EXTRA`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from vit.errors import InvalidCheckpoint
from vit.families.family import Family, Tensors, check_field, shown
from vit.images import Preprocess
from vit.model import ViTConfig

# ours, theirs on disk
ON_DISK = (
    ("patch_embed", "vit.embeddings.patch_embeddings.projection"),
    ("prefix.cls", "vit.embeddings.cls_token"),
    ("pos_embed", "vit.embeddings.position_embeddings"),
    ("blocks.{i}.norm1", "vit.encoder.layer.{i}.layernorm_before"),
    ("blocks.{i}.attn.q", "vit.encoder.layer.{i}.attention.attention.query"),
    ("blocks.{i}.attn.k", "vit.encoder.layer.{i}.attention.attention.key"),
    ("blocks.{i}.attn.v", "vit.encoder.layer.{i}.attention.attention.value"),
    ("blocks.{i}.attn.proj", "vit.encoder.layer.{i}.attention.output.dense"),
    ("blocks.{i}.norm2", "vit.encoder.layer.{i}.layernorm_after"),
    ("blocks.{i}.mlp.fc1", "vit.encoder.layer.{i}.intermediate.dense"),
    ("blocks.{i}.mlp.fc2", "vit.encoder.layer.{i}.output.dense"),
    ("norm", "vit.layernorm"),
    ("head", "classifier"),
)
# ours, theirs in a `state_dict()` of transformers 5, where it differs
IN_MEMORY = (
    ("blocks.{i}.norm1", "vit.layers.{i}.layernorm_before"),
    ("blocks.{i}.attn.q", "vit.layers.{i}.attention.q_proj"),
    ("blocks.{i}.attn.k", "vit.layers.{i}.attention.k_proj"),
    ("blocks.{i}.attn.v", "vit.layers.{i}.attention.v_proj"),
    ("blocks.{i}.attn.proj", "vit.layers.{i}.attention.o_proj"),
    ("blocks.{i}.norm2", "vit.layers.{i}.layernorm_after"),
    ("blocks.{i}.mlp.fc1", "vit.layers.{i}.mlp.fc1"),
    ("blocks.{i}.mlp.fc2", "vit.layers.{i}.mlp.fc2"),
)
# What only our own files hold: prefixes other than one class token, and LayerScale.
EXTRA = (
    ("prefix", "vit.embeddings.prefix_tokens"),
    ("blocks.{i}.scale1", "vit.encoder.layer.{i}.layer_scale1"),
    ("blocks.{i}.scale2", "vit.encoder.layer.{i}.layer_scale2"),
)

# ours, theirs, transformers' default
_FIELDS: tuple[tuple[str, str, Any], ...] = (
    ("dim", "hidden_size", 768),
    ("depth", "num_hidden_layers", 12),
    ("heads", "num_attention_heads", 12),
    ("mlp_dim", "intermediate_size", 3072),
    ("eps", "layer_norm_eps", 1e-12),
    ("image_size", "image_size", 224),
    ("patch_size", "patch_size", 16),
    ("channels", "num_channels", 3),
    ("qkv_bias", "qkv_bias", True),
)
CALLED = {ours: theirs for ours, theirs, _ in _FIELDS} | {"activation": "hidden_act"}
_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_pytorch_tanh", "quick_gelu": "quick_gelu"}
_ACTIVATIONS_READ = {theirs: ours for ours, theirs in _ACTIVATIONS.items()} | {
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
}


def read_config(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that a config.json of transformers states; an absent one means transformers' default."""
    kind = document.get("model_type", "vit")
    if kind != "vit":
        raise InvalidCheckpoint(
            f'config.json says that this is a "{shown(kind)}" model. Of transformers\' models this app reads "vit".'
        )
    values = {ours: document.get(theirs, default) for ours, theirs, default in _FIELDS}
    for name in ("image_size", "patch_size"):
        if isinstance(values[name], list) and len(values[name]) == 2 and values[name][0] == values[name][1]:
            values[name] = values[name][0]
    for name, value in values.items():
        check_field(name, value, CALLED[name])
    activation = document.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in _ACTIVATIONS_READ:
        raise InvalidCheckpoint(
            f"Config field hidden_act is {shown(activation)}; this app computes {', '.join(_ACTIVATIONS_READ)}."
        )
    return values | {"activation": _ACTIVATIONS_READ[activation]}


def _preprocess(config: ViTConfig, file: str) -> tuple[Preprocess, str]:
    half = (0.5,) * config.channels
    why = (
        "There is no preprocessor_config.json, so transformers' standard for ViT is used: "
        "the whole picture squeezed to the input's size, mean and deviation 0.5."
    )
    return Preprocess(size=config.image_size, resize="squash", mean=half, std=half), why


def _optional_prefix(keys: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
    """`ViTModel` alone is saved without the leading "vit."."""
    return keys + tuple((ours, theirs.removeprefix("vit.")) for ours, theirs in keys if theirs.startswith("vit."))


FAMILY = Family(
    name="transformers ViT",
    signature=r"^(vit\.)?embeddings\.patch_embeddings\.projection\.",
    keys=_optional_prefix(ON_DISK + IN_MEMORY),
    ignored=r"^(vit\.)?pooler\.|^(vit\.)?embeddings\.mask_token$",
    fixed={"position_resize": "bicubic"},
    assumed={
        "eps": (1e-12, "The eps of LayerNorm is not in the file; 1e-12 is transformers' standard for ViT."),
        "activation": (
            "gelu",
            "The activation is not in the file; exact GELU is transformers' standard for ViT.",
        ),
    },
    read_config=read_config,
    preprocess=_preprocess,
)
NATIVE = replace(FAMILY, name="saved", keys=ON_DISK + EXTRA)


def obstacles(config: ViTConfig) -> tuple[str, ...]:
    """What keeps transformers' ViTForImageClassification from computing this model; empty if nothing does."""
    found = {
        "its prefix is not one class token": config.prefix != ("cls",),
        "its head reads the mean of the patches": config.pool != "cls",
        "it has no final LayerNorm": config.norm == "none",
        "it has LayerScale": config.layer_scale is not None,
        "it has no classification head": config.num_classes == 0,
    }
    return tuple(sentence for sentence, holds in found.items() if holds)


def write_config(config: ViTConfig, labels: Sequence[str]) -> dict[str, Any]:
    """config.json as transformers opens it, or, for a model that it cannot express, one that it refuses."""
    names = {"id2label": {str(i): label for i, label in enumerate(labels)}}
    if obstacles(config):  # a "vit" that loads and computes something else would be worse than an error
        return {"model_type": "vit-attention-explorer"} | names
    stated = {theirs: getattr(config, ours) for ours, theirs, _ in _FIELDS}
    height, width = config.image_size
    return stated | names | {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "hidden_act": _ACTIVATIONS[config.activation],
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "image_size": height if height == width else [height, width],
        "label2id": {label: i for i, label in enumerate(labels)},
        "dtype": "float32",
    }  # fmt: skip


def write_tensors(config: ViTConfig, tensors: Tensors) -> Tensors:
    """The tensors of a `VisionTransformer` under transformers' names, with what those lack under `EXTRA`."""
    tensors = dict(tensors)
    for i in range(config.depth):
        for end in ("weight", "bias") if config.qkv_bias else ("weight",):
            parts = tensors.pop(f"blocks.{i}.attn.qkv.{end}").chunk(3)
            tensors |= {f"blocks.{i}.attn.{letter}.{end}": part for letter, part in zip("qkv", parts, strict=True)}
    prefix = tensors.pop("prefix_tokens")
    if config.prefix == ("cls",):
        tensors["prefix.cls"] = prefix
        # Ours holds no position for the class token, it is part of the token: theirs is zero.
        tensors["pos_embed"] = torch.cat([torch.zeros_like(prefix), tensors["pos_embed"]], 1)
    elif config.prefix:
        tensors["prefix"] = prefix
    return NATIVE.rename_back(tensors)
