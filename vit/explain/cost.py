"""Memory of a forward pass, and batch sizes that fit."""

import math
from collections.abc import Callable

from torch import Tensor

from vit.model.config import ViTConfig

Size = tuple[int, int]  # (height, width) [px]
Progress = Callable[[float], object]  # called with the fraction of work that is done, 0 to 1

PASS_BYTES = 1 << 29  # memory budget of a batch in a forward pass without gradients [bytes]
CACHED_NUMBERS = 1 << 20  # residual stream elements per batch; 4 MB, which fit into CPU caches with the MLP's


def size_of(pixels: Tensor) -> Size:
    """Return the height and width of a batch (B, channels, height, width)."""
    return pixels.shape[2], pixels.shape[3]


def images_per_batch(config: ViTConfig, size: Size) -> int:
    """Return the batch size at which a block runs fastest: its activations stay in the CPU's caches."""
    patches = (size[0] // config.patch_size) * (size[1] // config.patch_size)
    return max(1, CACHED_NUMBERS // (patches * config.dim))


def count_tokens(config: ViTConfig, size: Size) -> int:
    """Return the number of tokens N for an input size.

    Raises:
        ValueError: the size is not a multiple of the patch size.
    """
    if any(side < config.patch_size or side % config.patch_size for side in size):
        raise ValueError(f"An input of {size[1]} x {size[0]} px is not made of whole patches of {config.patch_size}.")
    return len(config.prefix) + math.prod(side // config.patch_size for side in size)


def pass_memory(config: ViTConfig, tokens: int) -> int:
    """Return the peak memory of one picture in a forward pass [bytes]."""
    return 4 * tokens * (10 * config.dim + (3 if config.gated_mlp else 2) * config.mlp_dim)


def images_in_memory(config: ViTConfig, size: Size, most: int) -> int:
    """Return the largest batch size that fits into `PASS_BYTES`, at most `most`.

    It depends on the model only, not on free memory, because the last digits of results depend on the batch size.
    """
    pixels = 12 * config.channels * math.prod(size)  # three float32 copies: resized, scaled to [0, 1], normalised
    return max(1, min(most, PASS_BYTES // (pixels + pass_memory(config, count_tokens(config, size)))))
