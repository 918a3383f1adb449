"""transformers' BEiT and Data2Vec: each head adds a learned bias per relative position of two patches to its scores.

Source: Bao et al. 2021, arXiv 2106.08254; transformers' `modeling_beit.py`.
"""

from collections.abc import Mapping
from typing import Any

import torch

from vit.checkpoints.families.family import Family
from vit.checkpoints.families.huggingface import CONFIG_NAMES, IN_MEMORY, ON_DISK, ModelDefaults, assumed, read_config
from vit.checkpoints.families.huggingface import FAMILY as PLAIN
from vit.checkpoints.families.tensor_shapes import Tensors, with_position_bias

KINDS = {"beit": ModelDefaults(1e-12), "data2vec-vision": ModelDefaults(1e-12)}

# ours, theirs after "beit." or "data2vec_vision."
_TABLE = "relative_position_bias.relative_position_bias_table"
KEYS = (
    *ON_DISK,
    *IN_MEMORY,
    ("blocks.{i}.scale1", "encoder.layer.{i}.lambda_1"),
    ("blocks.{i}.scale2", "encoder.layer.{i}.lambda_2"),
    ("blocks.{i}.attn.position_bias", f"encoder.layer.{{i}}.attention.attention.{_TABLE}"),
    ("position_bias", f"encoder.{_TABLE}"),
    ("blocks.{i}.scale1", "layers.{i}.lambda_1"),
    ("blocks.{i}.scale2", "layers.{i}.lambda_2"),
    ("blocks.{i}.attn.position_bias", f"layers.{{i}}.{_TABLE}"),
    ("position_bias", "shared_position_bias.relative_position_bias_table"),
    ("pooler", "pooler.layernorm"),
)


def _read_config(document: Mapping[str, Any]) -> dict[str, Any]:
    stated = read_config(document, KINDS)
    stated.pop("qkv_bias", None)  # queries and values have a bias, keys have none
    return stated


def _adjust(tensors: Tensors) -> tuple[Tensors, dict[str, Any]]:
    tensors, fields = with_position_bias(tensors, "bilinear")
    biases = {name: tensor for name, tensor in tensors.items() if name.endswith(".attn.q.bias")}
    tensors |= {name.replace(".q.bias", ".k.bias"): torch.zeros_like(tensor) for name, tensor in biases.items()}
    fields["pool"] = "cls"
    if "pooler.weight" in tensors:
        tensors |= {
            f"norm.{end}": tensors.pop(f"pooler.{end}") for end in ("weight", "bias") if f"pooler.{end}" in tensors
        }
        fields |= {"norm": "after_pool", "pool": "mean"}
    return tensors, fields


FAMILY = Family(
    name="transformers BEiT",
    signature=r"\.lambda_1$|\.relative_position_bias_table$",
    without=r"^blocks\.",  # timm's naming
    keys=KEYS,
    ignored=r"^embeddings\.mask_token$|\.relative_position_index$|^lm_head\.",
    fixed={"position_resize": "bicubic"},
    assumed=assumed(KINDS["beit"], "transformers"),
    config_names=CONFIG_NAMES,
    read_config=_read_config,
    adjust=_adjust,
    preprocess=PLAIN.preprocess,
)
FAMILIES, MODEL_TYPES = (FAMILY,), tuple(KINDS)
