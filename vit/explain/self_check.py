"""Is the attention that is shown the attention that the model used? Measured on the model at hand."""

from typing import NamedTuple, cast

import torch
from torch import Tensor

from vit.explain.record import record
from vit.model.attention import EVERY, Attention
from vit.model.transformer import Block, VisionTransformer


class Verification(NamedTuple):
    """How far shown attention and used attention are apart.

    Attributes:
        error: largest difference between what a block's attention gave and the shown attention times its values,
            relative to the largest number that it gave.
        block: where.
    """

    error: float
    block: int


@torch.inference_mode()
def verify(model: VisionTransformer, pixels: Tensor) -> Verification:
    """Recompute what every block's attention gives from the attention that the explorer shows.

    The model's own pass does not use these matrices but torch's fused attention, so a wrong scale, order or rotation
    of what is shown would be seen here. A wrong number of heads would not: that is wrong in both.

    Args:
        pixels: one picture (1, channels, height, width).
    """
    seen: list[tuple[Tensor, Tensor]] = []

    def keep(module: Attention, args: tuple[Tensor, ...], output: Tensor) -> None:
        seen.append((args[0], output))

    modules = [cast("Block", block).attn for block in model.blocks]
    handles = [attn.register_forward_hook(keep) for attn in modules]
    try:
        recorded = record(model, pixels)
    finally:
        for handle in handles:
            handle.remove()
    errors = []
    for block, (x, used) in enumerate(seen):
        attn = modules[block]
        v = attn.project(x, EVERY)[2].unflatten(-1, (attn.heads, -1)).transpose(1, 2)  # (1, H, N, K)
        mixed = torch.cat([rows @ v[0] for _, rows in recorded.row_chunks(block)], 1)  # (H, N, K)
        again = attn.proj(mixed.transpose(0, 1).flatten(1))
        errors.append(float((again - used[0]).abs().max() / used.abs().max().clamp_min(torch.finfo(used.dtype).tiny)))
    worst = max(range(len(errors)), key=errors.__getitem__)
    return Verification(errors[worst], worst)
