"""The image tower of SigLIP, from transformers: no class token; a learned query pools all patches.

transformers' `SiglipForImageClassification` reads the mean of the patches instead.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from vit.checkpoints.families.clip import KEYS as CLIP_KEYS
from vit.checkpoints.families.clip import classified, flat, table
from vit.checkpoints.families.family import Family
from vit.checkpoints.families.huggingface import CONFIG_NAMES, ModelDefaults, assumed, document, read_config, tower
from vit.checkpoints.families.target import ConvertedModel, Target, split_prefix, split_qkv
from vit.checkpoints.families.tensor_shapes import Tensors, needed
from vit.errors import InvalidCheckpoint
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig

_SIGLIP = ModelDefaults(1e-6, "gelu_tanh", prefix=())
_ROUNDED = dict.fromkeys(("idefics3_vision", "smolvlm_vision"), _SIGLIP._replace(patch_size=32, dim=1152, heads=16))
KINDS = {"siglip_vision_model": _SIGLIP, "granite_docling_vision": _SIGLIP._replace(image_size=512), **_ROUNDED}

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


def _read_config(document: Mapping[str, Any]) -> dict[str, Any]:
    """Read the config fields; refuses grids in which transformers' Idefics 3 gives two patches the same position.

    Source: `Idefics3VisionEmbeddings` of transformers 5.23, which rounds a patch's share of the picture in float32.
    """
    stated = {field: value for field, value in read_config(document, KINDS).items() if field != "qkv_bias"}
    if tower(document).get("model_type") in tuple(_ROUNDED) and isinstance(size := stated["image_size"], int):
        side = max(1, size // stated["patch_size"])
        shares, edges = torch.arange(side) * (1 / torch.tensor(side)), torch.arange(1 / side, 1, 1 / side)
        if torch.bucketize(shares, edges, right=True).unique().numel() < side:
            raise InvalidCheckpoint(f"In this model some of {side} x {side} patches share a position, unlike here.")
    return stated


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
    read_config=_read_config,
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
