"""The image tower of SigLIP, from transformers: no class token; a learned query pools all patches.

transformers' `SiglipForImageClassification` reads the mean of the patches instead.
"""

from collections.abc import Sequence
from typing import Any

import torch

from vit.checkpoints.families.clip import KEYS as CLIP_KEYS
from vit.checkpoints.families.clip import classified, flat, table
from vit.checkpoints.families.family import Family
from vit.checkpoints.families.huggingface import CONFIG_NAMES, ModelDefaults, assumed, document, read_config
from vit.checkpoints.families.target import ConvertedModel, Target, split_prefix, split_qkv
from vit.checkpoints.families.tensor_shapes import Tensors, needed
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig

KINDS = {"siglip_vision_model": ModelDefaults(1e-6, "gelu_tanh", prefix=())}

# ours, theirs after "vision_model."
KEYS = (
    *(pair for pair in CLIP_KEYS if pair[0] not in ("norm_pre", "prefix.cls", "head")),
    ("pool.probe", "head.probe"),
    ("pool.qkv.weight", "head.attention.in_proj_weight"),
    ("pool.qkv.bias", "head.attention.in_proj_bias"),
    ("pool.proj", "head.attention.out_proj"),
    ("pool.norm", "head.layernorm"),
    ("pool.mlp.fc1", "head.mlp.fc1"),
    ("pool.mlp.fc2", "head.mlp.fc2"),
)


def _adjust(tensors: Tensors) -> tuple[Tensors, dict[str, Any]]:
    tensors = table(tensors)
    if "classifier.weight" in tensors:
        return classified(tensors, "pool.")
    for end, ndim in (("weight", 2), ("bias", 1)):
        if f"pool.qkv.{end}" in tensors:
            fused = needed(tensors, f"pool.qkv.{end}", ndim)
            third = len(fused) // 3
            del tensors[f"pool.qkv.{end}"]
            tensors |= {f"pool.q.{end}": fused[:third], f"pool.kv.{end}": fused[third:]}
    return tensors, {}


def _preprocess(config: ViTConfig, file: str) -> tuple[Preprocess, str]:
    why = (
        "The file does not state its preprocessing; SigLIP's is used: the whole picture squeezed to the input's size, "
        "bicubic, mean and deviation 0.5."
    )
    return Preprocess(config.image_size, "squash", None, "bicubic"), why


FAMILY = Family(
    name="SigLIP",
    signature=r"^embeddings\.patch_embedding\.bias$",
    without=r"^pre_layrnorm\.",  # CLIP
    keys=KEYS,
    ignored=r"^text_model\.|^logit_(scale|bias)$|position_ids$",
    fixed={"position_resize": "bicubic"},
    assumed=assumed(KINDS["siglip_vision_model"], "transformers"),
    config_names=CONFIG_NAMES,
    read_config=lambda document: {k: v for k, v in read_config(document, KINDS).items() if k != "qkv_bias"},
    adjust=_adjust,
    preprocess=_preprocess,
)
FAMILIES, MODEL_TYPES = (FAMILY,), tuple(KINDS)


# --- Writing --------------------------------------------------------------------------------------------------


def _write_tensors(
    config: ViTConfig, tensors: Tensors, labels: Sequence[str], preprocess: Preprocess
) -> ConvertedModel:
    tensors = flat(split_prefix(config, split_qkv(config, tensors)))
    for end in ("weight", "bias"):
        tensors[f"pool.qkv.{end}"] = torch.cat([tensors.pop(f"pool.q.{end}"), tensors.pop(f"pool.kv.{end}")])
    return ConvertedModel(
        document(config, labels, "siglip_vision_model", "SiglipVisionModel"), FAMILY.rename_back(tensors)
    )


TARGETS = (
    Target(
        "SiglipVisionModel", _write_tensors,
        {"prefix": ("",), "pool": ("map",), "head": (False,), "qkv_bias": (True,), "square": (True,)},
    ),
)  # fmt: skip
