"""Is the attention that is shown the attention that the model used? Measured on the model at hand."""

from typing import NamedTuple, cast

import torch
from torch import Tensor

from vit.explain.record import record
from vit.model.attention import HeadInputs
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
    blocks: list[tuple[Tensor, Tensor]] = []  # values (H, N, K) and what the heads gave with them (H, N, K)

    def keep(index: int, inputs: HeadInputs) -> Tensor:
        heads = inputs.mixed()
        blocks.append((inputs.v[0], heads[0]))
        return heads

    recorded = record(model, pixels, hook=keep)
    errors = []
    for index, (values, heads) in enumerate(blocks):
        project = cast("Block", model.blocks[index]).attn.proj
        mixed = torch.cat([rows @ values for _, rows in recorded.row_chunks(index)], 1)  # (H, N, K)
        again, used = (project(one.transpose(0, 1).flatten(1)) for one in (mixed, heads))
        errors.append(float((again - used).abs().max() / used.abs().max().clamp_min(torch.finfo(used.dtype).tiny)))
    worst = max(range(len(errors)), key=errors.__getitem__)
    return Verification(errors[worst], worst)
