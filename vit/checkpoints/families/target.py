"""Describe what a class of another library can compute, and convert our models for it.

Classes differ in which settings they support. `Target.can` lists the supported values; anything else is an obstacle,
and a model with an obstacle is not converted, because a file that loads and computes something else is worse than none.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from vit.checkpoints.families.tensor_shapes import Tensors
from vit.images.preprocess import Preprocess
from vit.model.config import PositionResize, ViTConfig


class ConvertedModel(NamedTuple):
    """Content of config.json, and the tensors under the other library's names."""

    document: dict[str, Any]
    tensors: Tensors


# Traits of a plain class; traits that are not listed may have any value.
PLAIN: Mapping[str, tuple[Any, ...]] = {
    "prefix": ("cls",),
    "pool": ("cls",),
    "norm": ("before_pool",),
    "norm_pre": (False,),
    "patch_bias": (True,),
    "gated_mlp": (False,),
    "layer_scale": (False,),
    "positions": ("learnt",),
    "places": ("centred",),
    "position_bias": (False,),
    "post_norm": (False,),
    "attn_norm": (False,),
    "mlp_norm": (False,),
    "pool_sizes": (True,),
    "pre_logits": (False,),
    "head": (True,),
}


@dataclass(frozen=True)
class Target:
    """One class of another library.

    Attributes:
        name: of the class.
        write: (config, tensors of a `VisionTransformer`, labels, preprocess) -> content of its files.
        can: trait -> supported values, where they differ from `PLAIN`.
        resizes: how it interpolates positions for pictures of another size; None if it does not.
        also: returns a further obstacle, as a sentence about "it"; "" for none.
    """

    name: str
    write: Callable[[ViTConfig, Tensors, Sequence[str], Preprocess], ConvertedModel]
    can: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    resizes: PositionResize | None = None
    also: Callable[[ViTConfig, Preprocess], str] = lambda config, preprocess: ""

    def obstacles(
        self, config: ViTConfig, tensors: Tensors | None = None, preprocess: Preprocess | None = None
    ) -> tuple[str, ...]:
        """Return why the class cannot compute this model, as sentences about "it"; empty if it can.

        Without tensors and preprocessing, what only they show is not compared.
        """
        can = {**PLAIN, **self.can}
        sentences = [
            _SENTENCES[trait](value, config)
            for trait, value in _traits(config, tensors or {}).items()
            if trait in can and value not in can[trait]
        ]
        also = self.also(config, preprocess) if preprocess else ""
        return (*sentences, also) if also else tuple(sentences)


def _traits(config: ViTConfig, tensors: Tensors) -> dict[str, Any]:
    """Return the properties of a model in which the libraries' classes differ."""
    special = tuple(name for name in config.prefix if name in ("cls", "dist"))
    registers = tuple(f"reg{i + 1}" for i in range(len(config.prefix) - len(special)))
    standard = config.prefix == special + registers and special == ("cls", "dist")[: len(special)]
    prefix = " ".join((*special, *(["reg"] if registers else []))) if standard else "other"
    learnt = tensors.get("pos_embed")
    positions = "learnt" if config.rope is None else "rotary" if learnt is None or not learnt.any() else "both"
    single = config.pool == "cls" and config.norm == "after_pool"  # for a single token, both orders give the same
    return {
        "prefix": prefix,
        "pool": config.pool,
        "norm": "before_pool" if single else config.norm,
        "norm_pre": config.norm_pre,
        "patch_bias": config.patch_bias,
        "qkv_bias": config.qkv_bias,
        "gated_mlp": config.gated_mlp,
        "layer_scale": config.layer_scale is not None,
        "positions": positions,
        "places": config.rope_places,
        "position_bias": config.position_bias is not None,
        "post_norm": config.post_norm,
        "attn_norm": config.attn_norm,
        "mlp_norm": config.mlp_norm,
        "pool_sizes": not (config.pool_heads or config.pool_mlp_dim),
        "pre_logits": config.pre_logits > 0,
        "head": config.num_classes > 0,
        "regression": config.regression,
        "head_bias": bool("head.bias" in tensors and tensors["head.bias"].any()),
        "square": config.image_size[0] == config.image_size[1],
        "channels": config.channels,
        "activation": config.activation,
        "eps": config.eps,
    }


_POOLS = {
    "cls": "the class token",
    "mean": "the mean of the patches",
    "all": "the mean of all tokens",
    "cls_mean": "the class token and the mean of the patches",
    "cls_dist": "the class and the distillation token",
    "map": "what a learnt query gathers",
    "map_patches": "what a learnt query gathers from the patches",
}
_SENTENCES: dict[str, Callable[[Any, ViTConfig], str]] = {
    "prefix": lambda value, config: f"its prefix tokens are {', '.join(config.prefix) or 'none'}",
    "pool": lambda value, config: f"its head reads {_POOLS[value]}",
    "norm": lambda value, config: {
        "before_pool": "its final LayerNorm comes before the pool",
        "after_pool": "its final LayerNorm comes after the pool",
        "none": "it has no final LayerNorm",
    }[value],
    "norm_pre": lambda value, config: f"it has {'a' if value else 'no'} LayerNorm before the first block",
    "patch_bias": lambda value, config: f"its patch embedding has {'a' if value else 'no'} bias",
    "qkv_bias": lambda value, config: f"its queries, keys and values have {'a' if value else 'no'} bias",
    "gated_mlp": lambda value, config: f"its MLP is {'' if value else 'not '}gated",
    "layer_scale": lambda value, config: f"it has {'' if value else 'no '}LayerScale",
    "positions": lambda value, config: {
        "learnt": "its positions are learnt",
        "rotary": "its positions are rotary",
        "both": "its positions are rotary and learnt at once",
    }[value],
    "places": lambda value, config: "its rotary positions count patches",
    "position_bias": lambda value, config: "its attention has biases by relative position",
    "post_norm": lambda value, config: "its LayerNorms come after attention and MLP",
    "attn_norm": lambda value, config: "its attention ends with a LayerNorm",
    "mlp_norm": lambda value, config: "its MLP has a LayerNorm inside",
    "pool_sizes": lambda value, config: "its learnt query has other heads or another MLP than the blocks",
    "pre_logits": lambda value, config: "it has a layer before the head",
    "head": lambda value, config: f"it has {'a' if value else 'no'} classification head",
    "regression": lambda value, config: "its outputs are numbers, and its file could not tell them from classes",
    "head_bias": lambda value, config: "its head has a bias",
    "square": lambda value, config: f"its pictures of {config.image_size[0]} x {config.image_size[1]} px are no square",
    "channels": lambda value, config: f"its pictures have {value} channel{'s' if value > 1 else ''}",
    "activation": lambda value, config: f"its activation is {value}",
    "eps": lambda value, config: f"the eps of its LayerNorms is {value:g}",
}


def split_prefix(config: ViTConfig, tensors: Tensors, rows: bool = True) -> Tensors:
    """Split the prefix tokens into `prefix.cls`, `prefix.dist` and `prefix.reg`.

    Args:
        rows: add position embeddings for class and distillation token. They are zero, because our tokens include them.
    """
    tensors = dict(tensors)
    prefix = tensors.pop("prefix_tokens")
    special = [name for name in ("cls", "dist") if name in config.prefix]
    for index, name in enumerate(special):
        tensors[f"prefix.{name}"] = prefix[:, index : index + 1]
    if prefix.shape[1] > len(special):
        tensors["prefix.reg"] = prefix[:, len(special) :]
    if rows:
        tensors["pos_embed"] = torch.cat([torch.zeros_like(prefix[:, : len(special)]), tensors["pos_embed"]], 1)
    return tensors


def split_qkv(config: ViTConfig, tensors: Tensors) -> Tensors:
    """Split queries, keys and values into `attn.q`, `attn.k`, `attn.v`."""
    tensors = dict(tensors)
    for i in range(config.depth):
        for end in ("weight", "bias") if config.qkv_bias else ("weight",):
            parts = tensors.pop(f"blocks.{i}.attn.qkv.{end}").chunk(3)
            tensors |= {f"blocks.{i}.attn.{letter}.{end}": part for letter, part in zip("qkv", parts, strict=True)}
    return tensors


def scaled(config: ViTConfig, tensors: Tensors) -> Tensors:
    """Add a LayerScale of ones if the model has none, which changes no result."""
    ones = {f"blocks.{i}.scale{k}": tensors["blocks.0.norm1.weight"].new_ones(config.dim)
            for i in range(config.depth) for k in (1, 2)}  # fmt: skip
    return ones | tensors
