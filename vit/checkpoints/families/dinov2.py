"""transformers' Dinov2 and Dinov2WithRegisters.

The classifier reads the concatenation of the class token and the mean of the patches. Registers are inserted after the
positions were added, so they have no positions.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import torch

from vit.checkpoints.families.family import IMAGENET_MEAN, IMAGENET_STD, Family
from vit.checkpoints.families.huggingface import CONFIG_NAMES, ModelDefaults, assumed, document, read_config
from vit.checkpoints.families.target import ConvertedModel, Target, scaled, split_prefix, split_qkv
from vit.checkpoints.families.tensor_shapes import Tensors
from vit.images.preprocess import Preprocess
from vit.model.config import PositionResize, ViTConfig

KINDS = {"dinov2": ModelDefaults(1e-6, patch_size=14, mlp_dim=None)}
KINDS_REGISTERS = {"dinov2_with_registers": ModelDefaults(1e-6, mlp_dim=None, prefix=None)}

# ours, theirs after "dinov2." or "dinov2_with_registers."
KEYS = (
    ("patch_embed", "embeddings.patch_embeddings.projection"),
    ("prefix.cls", "embeddings.cls_token"),
    ("prefix.reg", "embeddings.register_tokens"),
    ("pos_embed", "embeddings.position_embeddings"),
    ("blocks.{i}.norm1", "encoder.layer.{i}.norm1"),
    ("blocks.{i}.attn.q", "encoder.layer.{i}.attention.attention.query"),
    ("blocks.{i}.attn.k", "encoder.layer.{i}.attention.attention.key"),
    ("blocks.{i}.attn.v", "encoder.layer.{i}.attention.attention.value"),
    ("blocks.{i}.attn.proj", "encoder.layer.{i}.attention.output.dense"),
    ("blocks.{i}.attn.q", "encoder.layer.{i}.attention.q_proj"),  # transformers 5, in memory
    ("blocks.{i}.attn.k", "encoder.layer.{i}.attention.k_proj"),
    ("blocks.{i}.attn.v", "encoder.layer.{i}.attention.v_proj"),
    ("blocks.{i}.attn.proj", "encoder.layer.{i}.attention.o_proj"),
    ("blocks.{i}.scale1", "encoder.layer.{i}.layer_scale1.lambda1"),
    ("blocks.{i}.norm2", "encoder.layer.{i}.norm2"),
    ("blocks.{i}.mlp.fc1", "encoder.layer.{i}.mlp.fc1"),
    ("blocks.{i}.mlp.fc2", "encoder.layer.{i}.mlp.fc2"),
    ("blocks.{i}.mlp.fc1", "encoder.layer.{i}.mlp.weights_in"),
    ("blocks.{i}.mlp.fc2", "encoder.layer.{i}.mlp.weights_out"),
    ("blocks.{i}.mlp.gate", "encoder.layer.{i}.mlp.gate_proj"),  # transformers 5, in memory
    ("blocks.{i}.mlp.up", "encoder.layer.{i}.mlp.up_proj"),
    ("blocks.{i}.mlp.fc2", "encoder.layer.{i}.mlp.down_proj"),
    ("blocks.{i}.scale2", "encoder.layer.{i}.layer_scale2.lambda1"),
    ("norm", "layernorm"),
    ("head", "classifier"),
)


def _preprocess(config: ViTConfig, file: str) -> tuple[Preprocess, str]:
    shorter = min(config.image_size) * 256 // 224
    why = (
        "The file does not state its preprocessing; DINOv2's is used: shorter side to "
        f"{shorter} px, the centre, bicubic, ImageNet's mean and deviation."
    )
    return Preprocess(config.image_size, "shortest", shorter, "bicubic", IMAGENET_MEAN, IMAGENET_STD), why


FAMILY = Family(
    name="transformers DINOv2",
    signature=r"\.layer_scale1\.lambda1$",
    without=r"^embeddings\.(register_tokens|patch_embeddings\.weight)$",  # with registers, and DINOv3
    keys=KEYS,
    ignored=r"^embeddings\.mask_token$",
    fixed={"position_resize": "bicubic", "pool": "cls"},
    assumed=assumed(KINDS["dinov2"], "transformers"),
    config_names=CONFIG_NAMES,
    read_config=lambda document: read_config(document, KINDS),
    preprocess=_preprocess,
)
REGISTERS = replace(
    FAMILY,
    name="DINOv2 with registers",
    signature=r"^embeddings\.register_tokens$",
    without=r"^embeddings\.patch_embeddings\.weight$",  # DINOv3
    fixed={"position_resize": "bicubic_antialias", "pool": "cls"},
    assumed=assumed(KINDS_REGISTERS["dinov2_with_registers"], "transformers"),
    config_names=CONFIG_NAMES,
    read_config=lambda document: read_config(document, KINDS_REGISTERS),
)
FAMILIES, MODEL_TYPES = (REGISTERS, FAMILY), (*KINDS, *KINDS_REGISTERS)


# --- Writing --------------------------------------------------------------------------------------------------

# On disk, SwiGLU has other names than a plain MLP.
_GATED = replace(FAMILY, keys=tuple(pair for pair in KEYS if ".mlp." not in pair[0] or "weights_" in pair[1]))


def _mlp_ratio(config: ViTConfig) -> int | None:
    """Return transformers' `mlp_ratio`, from which it computes the width of the MLP; None if no integer fits."""

    def width(ratio: int) -> int:
        return (config.dim * ratio * 2 // 3 + 7) // 8 * 8 if config.gated_mlp else config.dim * ratio

    return next((ratio for ratio in range(1, 65) if width(ratio) == config.mlp_dim), None)


def _obstacle(config: ViTConfig, preprocess: Preprocess) -> str:
    if _mlp_ratio(config) is None:
        return f"its MLP is {config.mlp_dim} wide, which is no whole multiple of its width {config.dim}"
    if config.gated_mlp and config.activation != "silu":
        return f"the activation of its gated MLP is {config.activation}"
    return ""


def _teacher_head(config: ViTConfig, weight: torch.Tensor) -> torch.Tensor:
    """Pad the head (C, D) with zeros to the input (C, 2 D) of their head: class token and mean of the patches."""
    if config.pool == "cls_mean":
        return weight
    zeros = torch.zeros_like(weight)
    return torch.cat([weight, zeros] if config.pool == "cls" else [zeros, weight], 1)


def _write_tensors(
    kind: str, architecture: str, config: ViTConfig, tensors: Tensors, labels: Sequence[str], preprocess: Preprocess
) -> ConvertedModel:
    tensors = split_prefix(config, split_qkv(config, scaled(config, tensors)))
    if config.num_classes:
        tensors["head.weight"] = _teacher_head(config, tensors["head.weight"])
    renamed = (_GATED if config.gated_mlp else FAMILY).rename_back(tensors)
    renamed["embeddings.mask_token"] = torch.zeros(1, config.dim)  # only used in pretraining
    if config.num_classes:
        renamed = {name if "classifier." in name else f"{kind}.{name}": tensor for name, tensor in renamed.items()}
    stated = document(config, labels, kind, architecture)
    del stated["intermediate_size"]
    stated |= {"mlp_ratio": _mlp_ratio(config), "use_swiglu_ffn": config.gated_mlp, "layerscale_value": 1.0}
    registers = sum(name.startswith("reg") for name in config.prefix)
    return ConvertedModel(stated | ({"num_register_tokens": registers} if registers else {}), renamed)


def _make_target(kind: str, architecture: str, prefix: str, head: bool, resizes: PositionResize) -> Target:
    can = {
        "prefix": (prefix,),
        "pool": ("cls", "mean", "cls_mean") if head else ("cls",),
        "gated_mlp": (True, False),
        "layer_scale": (True, False),
        "head": (head,),
        "square": (True,),  # transformers interpolates others as if they were square
    }
    return Target(architecture, partial(_write_tensors, kind, architecture), can, resizes, _obstacle)


TARGETS = (
    _make_target("dinov2", "Dinov2ForImageClassification", "cls", True, "bicubic"),
    _make_target("dinov2", "Dinov2Model", "cls", False, "bicubic"),
    _make_target(
        "dinov2_with_registers", "Dinov2WithRegistersForImageClassification", "cls reg", True, "bicubic_antialias"
    ),
    _make_target("dinov2_with_registers", "Dinov2WithRegistersModel", "cls reg", False, "bicubic_antialias"),
)
