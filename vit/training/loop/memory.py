"""Estimate the memory of a training step, and the number of micro-batches that make it fit."""

from dataclasses import replace

import torch

from vit.errors import InvalidConfig
from vit.model.attention import EXPLICIT_TOKENS
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer
from vit.training.loop.config import BACKBONE, TrainConfig

MEMORY_FACTOR = 1.6  # measured memory is within this factor of the estimate


def parameters_of(model: ViTConfig) -> int:
    """Count a model's parameters without allocating them."""
    with torch.device("meta"):
        return sum(parameter.numel() for parameter in VisionTransformer(model).parameters())


def _count_weights(model: ViTConfig, config: TrainConfig, half: bool) -> int:
    """Estimate weights, their bfloat16 copies, their average, and gradients and moments of the trained ones [bytes]."""
    learning = _learning_blocks(model, config) / model.depth if not config.lora_rank else 0
    states = 2 if config.optimizer == "muon" else 3  # gradients and moments; Muon has one for nearly all matrices
    return int(4 * parameters_of(model) * (1 + half / 2 + (config.ema > 0) + learning * states))


def _count_step(model: ViTConfig, config: TrainConfig, batch: int, half: bool, parts: int) -> int:
    """Estimate what a step of `parts` micro-batches stores for its backward pass [bytes].

    For each block that the backward pass reaches: the residual stream twice, both norms, queries, keys and values, the
    heads' output, the MLP before and after its activation, and the attention matrices if they are small.
    During the backward pass, one block also has the gradients of its matrices.
    """
    activations = model.tokens * (8 * model.dim + (3 if model.gated_mlp else 2) * model.mlp_dim)
    held = model.tokens <= EXPLICIT_TOKENS
    matrices = 2 * model.heads * model.tokens**2 if held else 0  # before and after the softmax
    if model.position_bias:  # adds a channel per token to queries and keys, see `with_biases`
        matrices += 2 * model.heads * model.tokens**2
    blocks = max(_learning_blocks(model, config), 1)
    pixels = 4 * model.channels * model.image_size[0] * model.image_size[1]
    each = (2 if half else 4) * (blocks * (activations + matrices) + matrices)
    copies = 9 if config.operations else 4  # of the whole batch, while it is augmented
    return batch * copies * pixels + -(-batch // parts) * each


def _learning_blocks(model: ViTConfig, config: TrainConfig) -> int:
    """Return the number of blocks that the backward pass goes through."""
    if config.freeze == BACKBONE:
        return 0
    return int(config.freeze.partition(":")[2]) if config.freeze else model.depth


def parts_that_fit(model: ViTConfig, config: TrainConfig, batch: int, free: int, half: bool = False) -> int:
    """Return into how many micro-batches a CPU has to split each batch; a GPU finds out by running out of memory.

    Args:
        batch: pictures per process.
        half: whether activations are bfloat16.
        free: free memory [bytes]; 0 if unknown.

    Raises:
        InvalidConfig: even one picture at a time does not fit.
    """
    weights = _count_weights(model, config, half)

    def needed(model: ViTConfig, batch: int, parts: int) -> int:
        return weights + _count_step(model, config, batch, half, parts)

    parts = 1
    if not free:
        return parts
    while parts < batch and MEMORY_FACTOR * needed(model, batch, parts) > free:
        parts = min(2 * parts, batch)
    least = needed(model, batch, batch)
    if least <= MEMORY_FACTOR * free:
        return parts
    side, patch = min(model.image_size), model.patch_size
    sides = (one for one in range(side - patch, 0, -patch) if needed(_with_side(model, one), batch, batch) <= free)
    batches = (one for one in (batch >> bit for bit in range(1, batch.bit_length())) if needed(model, one, one) <= free)
    if fewer := next(batches, None):
        help_ = f"Set batch_size to {fewer}, which fits."
    elif smaller := next(sides, None):
        help_ = f"Set image_size to {smaller}, which fits."
    else:
        help_ = "Choose a smaller model."
    raise InvalidConfig(
        f"A step takes about {least / 1e9:.1f} GB of memory, even with one picture at a time, "
        f"and {free / 1e9:.1f} GB are free. {help_}"
    )


def _with_side(model: ViTConfig, side: int) -> ViTConfig:
    return replace(model, image_size=(side, side))
