"""Cost of forward passes: multiply-adds, seconds and memory, and batch sizes that fit."""

import math
import time
from collections.abc import Callable

import torch

from vit.model.config import ViTConfig
from vit.model.cpu import onednn
from vit.model.transformer import VisionTransformer

Size = tuple[int, int]  # (height, width) [px]
Progress = Callable[[float], object]  # called with the fraction of work that is done, 0 to 1

PASS_BYTES = 1 << 29  # memory budget of a batch in a forward pass without gradients [bytes]
CACHED_NUMBERS = 1 << 20  # residual stream elements per batch; 4 MB, which fit into CPU caches with the MLP's

_TIMED_TOKENS = 2048  # maximum number of tokens in the batch that is timed
_TIMED_PRODUCTS = 10e9  # maximum multiply-adds of that batch; larger pictures are timed at a smaller size
_TIMED_SIDES = (16, 8)  # sides of these smaller sizes [patches]
_rates: dict[object, float] = {}  # seconds per multiply-add of this process's models


def size_of(pixels: torch.Tensor) -> Size:
    """Return the height and width of a batch (B, channels, height, width)."""
    return pixels.shape[2], pixels.shape[3]


def products(config: ViTConfig, size: Size) -> float:
    """Return the multiply-adds of a pass; those of attention are weighted by 1.3, since they are slower."""
    tokens = count_tokens(config, size)
    matrices = 4 * config.dim + (3 if config.gated_mlp else 2) * config.mlp_dim
    return config.depth * config.dim * (2 * tokens * matrices + 1.3 * 4 * tokens**2)


def pass_seconds(model: VisionTransformer, size: Size, passes: float = 1) -> float:
    """Estimate the duration of forward passes on this machine [s].

    The first call for an architecture times a batch three times, at a smaller input size if one pass takes long. The
    fastest counts: the first one includes set-up, and other programs use the machine.

    Args:
        passes: number of pictures that pass through the whole model, in batches: small ones take three times as long
            one by one.
    """
    config, weight = model.config, next(model.parameters())
    sides = (patches * config.patch_size for patches in _TIMED_SIDES)
    smaller = [(min(size[0], side), min(size[1], side)) for side in sides]
    timed = next((one for one in (size, *smaller) if products(config, one) <= _TIMED_PRODUCTS), smaller[-1])
    most = min(_TIMED_TOKENS // count_tokens(config, timed), int(_TIMED_PRODUCTS / products(config, timed)))
    count = max(1, most)
    key = config, weight.device, weight.dtype, timed  # not the weights: a reloaded model is not timed again
    if key not in _rates:
        pixels = torch.zeros(count, config.channels, *timed, device=weight.device, dtype=weight.dtype)
        _rates[key] = min(_timed(model, pixels) for _ in range(3)) / (count * products(config, timed))
    return passes * products(config, size) * _rates[key]


@torch.inference_mode()
def _timed(model: VisionTransformer, pixels: torch.Tensor) -> float:
    started = time.perf_counter()
    with onednn():
        model(pixels).logits.sum().item()  # waits for a GPU, whose kernels run asynchronously
    return time.perf_counter() - started


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
