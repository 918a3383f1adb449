"""DINOv3, from transformers and Meta: rotary positions instead of position embeddings.

Source: arXiv 2508.10104; transformers' `modeling_dinov3_vit.py`.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vit.checkpoints.families.dinov2 import _preprocess
from vit.checkpoints.families.family import Family
from vit.checkpoints.families.huggingface import CONFIG_NAMES, ModelDefaults, assumed, document, read_config
from vit.checkpoints.families.target import ConvertedModel, Target, scaled, split_prefix, split_qkv
from vit.checkpoints.families.tensor_shapes import Tensors
from vit.checkpoints.families.timm import BLOCKS
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig

KINDS = {"dinov3_vit": ModelDefaults(1e-5, dim=384, heads=6, mlp_dim=1536, prefix=None)}

# ours, theirs
KEYS = (
    ("patch_embed", "embeddings.patch_embeddings"),
    ("prefix.cls", "embeddings.cls_token"),
    ("prefix.reg", "embeddings.register_tokens"),
    ("blocks.{i}.norm1", "layer.{i}.norm1"),
    ("blocks.{i}.attn.q", "layer.{i}.attention.q_proj"),
    ("blocks.{i}.attn.k", "layer.{i}.attention.k_proj"),
    ("blocks.{i}.attn.v", "layer.{i}.attention.v_proj"),
    ("blocks.{i}.attn.proj", "layer.{i}.attention.o_proj"),
    ("blocks.{i}.scale1", "layer.{i}.layer_scale1.lambda1"),
    ("blocks.{i}.norm2", "layer.{i}.norm2"),
    ("blocks.{i}.mlp.gate", "layer.{i}.mlp.gate_proj"),
    ("blocks.{i}.mlp.up", "layer.{i}.mlp.up_proj"),
    ("blocks.{i}.mlp.fc2", "layer.{i}.mlp.down_proj"),
    ("blocks.{i}.scale2", "layer.{i}.layer_scale2.lambda1"),
    ("norm", "norm"),
)
META_KEYS = (
    ("patch_embed", "patch_embed.proj"),
    ("prefix.cls", "cls_token"),
    ("prefix.reg", "storage_tokens"),
    *BLOCKS,
    ("norm", "norm"),
)
_ROTARY = {"rope": 100.0, "pool": "cls", "position_resize": "bicubic", "image_size": 224}


def _read_dinov3_config(document: Mapping[str, Any]) -> dict[str, Any]:
    stated = read_config(document, KINDS)
    stated.pop("qkv_bias", None)  # stated separately for queries, keys and values; a missing bias is zero
    return stated | {"rope": document.get("rope_theta", 100.0)}


def _adjust(tensors: Tensors) -> tuple[Tensors, dict[str, Any]]:
    """Add the zero bias of keys; rename the first layer of a plain MLP, which has the name of a gated MLP's second."""
    if not any(".mlp.gate." in name for name in tensors):
        tensors = {name.replace(".mlp.up.", ".mlp.fc1."): tensor for name, tensor in tensors.items()}
    biases = {name: tensor for name, tensor in tensors.items() if name.endswith(".attn.q.bias")}
    zeros = {name.replace(".q.bias", ".k.bias"): torch.zeros_like(tensor) for name, tensor in biases.items()}
    return zeros | tensors, {}


def _without_key_bias(tensors: Tensors) -> tuple[Tensors, dict[str, Any]]:
    """Set the bias of keys to zero: Meta stores one, with a mask of zeros that is NaN in an untrained model."""
    fitted = {}
    for name, tensor in tensors.items():
        if name.endswith(".attn.qkv.bias") and tensor.ndim == 1 and len(tensor) % 3 == 0:
            tensor = tensor.clone()
            tensor.unflatten(0, (3, -1))[1] = 0
        fitted[name] = tensor
    return fitted, {}


FAMILY = Family(
    name="DINOv3",
    signature=r"^embeddings\.patch_embeddings\.weight$",
    keys=KEYS,
    ignored=r"^embeddings\.mask_token$|^rope_embed",
    fixed=_ROTARY,
    assumed=assumed(KINDS["dinov3_vit"], "transformers"),
    config_names=CONFIG_NAMES,
    read_config=_read_dinov3_config,
    adjust=_adjust,
    preprocess=_preprocess,
)
META = Family(
    name="Meta DINOv3",
    signature=r"^storage_tokens$|^rope_embed\.periods$",
    keys=META_KEYS,
    ignored=r"^mask_token$|^rope_embed\.|\.bias_mask$|^(dino|ibot)_head\.",
    fixed=_ROTARY | {"eps": 1e-5},
    assumed={"activation": ("gelu", "The activation is not in the file; exact GELU is DINOv3's.")},
    adjust=_without_key_bias,
    preprocess=_preprocess,
)
FAMILIES, MODEL_TYPES = (FAMILY, META), tuple(KINDS)


# --- Writing, for transformers --------------------------------------------------------------------------------


def _write_tensors(
    config: ViTConfig, tensors: Tensors, labels: Sequence[str], preprocess: Preprocess
) -> ConvertedModel:
    tensors = split_prefix(config, split_qkv(config, scaled(config, tensors)), rows=False)
    del tensors["pos_embed"]  # zero for rotary positions
    biases = [name for name in tensors if name.endswith(".attn.k.bias")]
    key_bias = any(bool(tensors[name].any()) for name in biases)
    for name in [] if key_bias else biases:
        del tensors[name]
    for name in [name for name in tensors if ".mlp.fc1." in name]:
        if config.gated_mlp:
            gate, up = tensors.pop(name).chunk(2)
            tensors |= {name.replace("fc1", "gate"): gate, name.replace("fc1", "up"): up}
        else:
            tensors[name.replace("fc1", "up")] = tensors.pop(name)
    stated = document(config, labels, "dinov3_vit", "DINOv3ViTModel") | {
        "rope_theta": config.rope,
        "query_bias": config.qkv_bias,
        "key_bias": key_bias,
        "value_bias": config.qkv_bias,
        "use_gated_mlp": config.gated_mlp,
        "num_register_tokens": len(config.prefix) - 1,
        "layerscale_value": 1.0,
    }
    mask = {"embeddings.mask_token": torch.zeros(1, 1, config.dim)}  # only used in pretraining
    return ConvertedModel(stated, FAMILY.rename_back(tensors) | mask)


TARGETS = (
    Target(
        "DINOv3ViTModel",
        _write_tensors,
        {
            "prefix": ("cls reg",),
            "gated_mlp": (True, False),
            "layer_scale": (True, False),
            "positions": ("rotary",),
            "head": (False,),
        },
    ),
)
