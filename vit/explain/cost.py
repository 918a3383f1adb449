"""What a pass takes, by its tokens."""

import math
from collections.abc import Callable

from torch import Tensor

from vit.model.config import ViTConfig

Size = tuple[int, int]  # (height, width) [px]
Progress = Callable[[float], object]  # called with the share of work that is done

PASS_BYTES = 1 << 29  # [bytes] that a batch holds at once on its way through a model, where nothing learns from it
CACHED_NUMBERS = 1 << 20  # numbers of a residual stream in one block at once; 4 MB, which with the MLP's stay in caches


def size_of(pixels: Tensor) -> Size:
    """Height and width of a batch (B, channels, height, width)."""
    return pixels.shape[2], pixels.shape[3]


def images_per_batch(config: ViTConfig, size: Size) -> int:
    """How many pictures of a size go through a block together fastest."""
    patches = (size[0] // config.patch_size) * (size[1] // config.patch_size)
    return max(1, CACHED_NUMBERS // (patches * config.dim))


def count_tokens(config: ViTConfig, size: Size) -> int:
    """N for an input of this size.

    Raises:
        ValueError: the size is not made of whole patches.
    """
    if any(side < config.patch_size or side % config.patch_size for side in size):
        raise ValueError(f"An input of {size[1]} x {size[0]} px is not made of whole patches of {config.patch_size}.")
    return len(config.prefix) + math.prod(side // config.patch_size for side in size)


def pass_memory(config: ViTConfig, tokens: int) -> int:
    """The most that one picture takes at once on its way through a model [bytes]."""
    return 4 * tokens * (10 * config.dim + (3 if config.gated_mlp else 2) * config.mlp_dim)


def images_in_memory(config: ViTConfig, size: Size, most: int) -> int:
    """How many pictures of a size may go through a model together: `most`, or fewer that take `PASS_BYTES`.

    It depends on nothing but the model, as the last digits of what is computed depend on it.
    """
    pixels = 12 * config.channels * math.prod(size)  # as float32: shrunk, from 0 to 1, and normalised
    return max(1, min(most, PASS_BYTES // (pixels + pass_memory(config, count_tokens(config, size)))))
