"""torchvision's `vit_b_16`, `vit_b_32`, `vit_l_16`, `vit_l_32`, `vit_h_14` and others of its VisionTransformer.

The files contain tensors only. torchvision's code defines the rest: exact GELU, eps 1e-6, positions resized with
aligned corners, and, for the published files, the preprocessing and the class names.
"""

import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from vit.checkpoints.families.family import IMAGENET_MEAN, IMAGENET_STD, Family
from vit.checkpoints.families.target import ConvertedModel, Target, split_prefix
from vit.checkpoints.families.tensor_shapes import Tensors
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig

# ours, theirs
KEYS = (
    ("patch_embed", "conv_proj"),
    ("prefix.cls", "class_token"),
    ("pos_embed", "encoder.pos_embedding"),
    ("blocks.{i}.norm1", "encoder.layers.encoder_layer_{i}.ln_1"),
    ("blocks.{i}.attn.qkv.weight", "encoder.layers.encoder_layer_{i}.self_attention.in_proj_weight"),
    ("blocks.{i}.attn.qkv.bias", "encoder.layers.encoder_layer_{i}.self_attention.in_proj_bias"),
    ("blocks.{i}.attn.proj", "encoder.layers.encoder_layer_{i}.self_attention.out_proj"),
    ("blocks.{i}.norm2", "encoder.layers.encoder_layer_{i}.ln_2"),
    ("blocks.{i}.mlp.fc1", "encoder.layers.encoder_layer_{i}.mlp.0"),
    ("blocks.{i}.mlp.fc2", "encoder.layers.encoder_layer_{i}.mlp.3"),
    ("blocks.{i}.mlp.fc1", "encoder.layers.encoder_layer_{i}.mlp.linear_1"),  # before torchvision 0.13
    ("blocks.{i}.mlp.fc2", "encoder.layers.encoder_layer_{i}.mlp.linear_2"),
    ("norm", "encoder.ln"),
    ("pre_logits", "heads.pre_logits"),
    ("head", "heads.head"),
    ("head", "heads.0"),
)


@cache
def _published() -> dict[str, Any]:
    """Return the published files: name -> torchvision's enum member."""
    from torchvision import models  # noqa: PLC0415 # imports torch's compiler, which takes 2 s

    sizes = ("B_16", "B_32", "L_16", "L_32", "H_14")
    return {Path(weights.url).name: weights for size in sizes for weights in getattr(models, f"ViT_{size}_Weights")}


def _preprocess(config: ViTConfig, file: str) -> tuple[Preprocess, str]:
    mean, std = IMAGENET_MEAN, IMAGENET_STD
    file = file.rsplit("/")[-1]
    if file in _published():
        transforms = _published()[file].transforms()
        crop = transforms.crop_size[0]
        how: Any = transforms.interpolation.value
        preprocess = Preprocess(
            (crop, crop),
            "shortest",
            transforms.resize_size[0],
            how,
            tuple(transforms.mean),
            tuple(transforms.std),
            rounding="even",
        )
        return (
            preprocess,
            f"The preprocessing is the one that torchvision publishes with a file of this name, {file}.",
        )
    if config.channels == 1:
        mean, std = (0.5,), (0.5,)  # type: ignore[assignment]
    size, shorter = config.image_size, min(config.image_size) * 256 // 224
    why = (
        f"The file does not state its preprocessing; torchvision's usual one is used: shorter side to {shorter} px, "
        "the centre, bilinear, ImageNet's mean and deviation."
    )
    return Preprocess(size, "shortest", shorter, "bilinear", mean, std, rounding="even"), why


def imagenet_labels() -> tuple[str, ...]:
    """Return the 1000 class names of ImageNet-1k, in the order of all published models."""
    return tuple(_published()["vit_b_16-c867db91.pth"].meta["categories"])


_HEADS = {"vit_b_16": 12, "vit_b_32": 12, "vit_l_16": 16, "vit_l_32": 16, "vit_h_14": 16}


def _by_name(name: str) -> dict[str, Any]:
    """Infer the number of heads from the name of a published file, such as "vit_b_16-c867db91.pth"."""
    match = re.search(r"(?:^|/)(vit_[blh]_\d\d)(?=[-_.@]|$)", name.lower())
    return {"heads": _HEADS[match[1]]} if match and match[1] in _HEADS else {}


FAMILY = Family(
    name="torchvision ViT",
    signature=r"^conv_proj\.|^encoder\.layers\.encoder_layer_0\.",
    keys=KEYS,
    fixed={"eps": 1e-6, "activation": "gelu", "position_resize": "bicubic_corners", "pool": "cls"},
    preprocess=_preprocess,
    by_name=_by_name,
)
FAMILIES = (FAMILY,)


# --- Writing --------------------------------------------------------------------------------------------------


def _write_tensors(
    config: ViTConfig, tensors: Tensors, labels: Sequence[str], preprocess: Preprocess
) -> ConvertedModel:
    """Return the arguments for torchvision's class, which its files do not store, and the tensors."""
    arguments = {
        "image_size": config.image_size[0],
        "patch_size": config.patch_size,
        "num_layers": config.depth,
        "num_heads": config.heads,
        "hidden_dim": config.dim,
        "mlp_dim": config.mlp_dim,
        "num_classes": config.num_classes,
    }
    arguments |= {"representation_size": config.pre_logits} if config.pre_logits else {}
    return ConvertedModel(arguments, FAMILY.rename_back(split_prefix(config, tensors)))


TARGETS = (
    Target(
        "VisionTransformer",
        _write_tensors,
        {
            "qkv_bias": (True,),
            "pre_logits": (True, False),
            "square": (True,),
            "channels": (3,),
            "activation": ("gelu",),
            "eps": (1e-6,),
            "regression": (False,),
        },
    ),
)
