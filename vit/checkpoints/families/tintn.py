"""tintn's tutorial, github.com/tintn/vision-transformer-from-scratch: no final LayerNorm, one Linear per head.

Its config.json, if present, resembles transformers': `num_attention_heads`, `image_size`, ...
"""

import re
from typing import Any

import torch

from vit.checkpoints.families.family import Family
from vit.checkpoints.families.tensor_shapes import Tensors, concatenate
from vit.errors import InvalidCheckpoint
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig

# ours, theirs
KEYS = (
    ("patch_embed", "embedding.patch_embeddings.projection"),
    ("prefix.cls", "embedding.cls_token"),
    ("pos_embed", "embedding.position_embeddings"),
    ("blocks.{i}.norm1", "encoder.blocks.{i}.layernorm_1"),
    ("blocks.{i}.attn.qkv", "encoder.blocks.{i}.attention.qkv_projection"),
    *(
        (f"blocks.{{i}}.attn.{letter}.{{h}}", f"encoder.blocks.{{i}}.attention.heads.{{h}}.{name}")
        for letter, name in (("q", "query"), ("k", "key"), ("v", "value"))
    ),
    ("blocks.{i}.attn.proj", "encoder.blocks.{i}.attention.output_projection"),
    ("blocks.{i}.norm2", "encoder.blocks.{i}.layernorm_2"),
    ("blocks.{i}.mlp.fc1", "encoder.blocks.{i}.mlp.dense_1"),
    ("blocks.{i}.mlp.fc2", "encoder.blocks.{i}.mlp.dense_2"),
    ("head", "classifier"),
)
_PER_HEAD = re.compile(r"(blocks\.\d+\.attn\.[qkv])\.(\d+)\.(weight|bias)")


def _join_heads(tensors: Tensors) -> tuple[Tensors, dict[str, Any]]:
    """Concatenate the layers of single heads, and return the number of heads."""
    joined: Tensors = {}
    groups: dict[str, dict[int, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        if match := _PER_HEAD.fullmatch(name):
            groups.setdefault(f"{match[1]}.{match[3]}", {})[int(match[2])] = tensor
        else:
            joined[name] = tensor
    counts = {len(group) for group in groups.values()}
    complete = all(set(group) == set(range(len(group))) for group in groups.values())
    if len(counts) > 1 or not complete:
        raise InvalidCheckpoint("The weights are incomplete: the blocks differ in their number of attention heads.")
    joined |= {name: concatenate([group[h] for h in range(len(group))]) for name, group in groups.items()}
    return joined, {"heads": counts.pop()} if counts else {}


def _preprocess(config: ViTConfig, file: str) -> tuple[Preprocess, str]:
    half = (0.5,) * config.channels
    why = "The file does not state its preprocessing; the tutorial's is used: squeezed, mean and deviation 0.5."
    return Preprocess(config.image_size, "squash", None, "bilinear", half, half), why


FAMILY = Family(
    name="tintn",
    signature=r"^embedding\.patch_embeddings\.projection\.",
    keys=KEYS,
    fixed={"eps": 1e-5, "activation": "gelu_tanh", "position_resize": "bicubic", "pool": "cls"},
    config_names={"heads": "num_attention_heads", "image_size": "image_size", "depth": "num_hidden_layers"},
    adjust=_join_heads,
    preprocess=_preprocess,
)
FAMILIES = (FAMILY,)
