"""Self-check: whether the displayed attention is the attention that the model used."""

from typing import cast

import torch
from torch import Tensor

from vit.explain.record import record
from vit.model.attention import HeadInputs
from vit.model.transformer import Block, VisionTransformer


@torch.inference_mode()
def verify(model: VisionTransformer, pixels: Tensor) -> float:
    """Recompute every block's attention output from the displayed attention, and compare with the model's own pass.

    Returns the maximum absolute difference, relative to the maximum of the output, of the block where it is largest.

    The model's pass uses torch's fused attention instead of these matrices, so a wrong scale, order or rotation would
    be detected. A wrong number of heads would not, since it affects both.

    Args:
        pixels: one picture (1, channels, height, width).
    """
    blocks: list[tuple[Tensor, Tensor]] = []  # values and head outputs, (H, N, K) each

    def keep(index: int, inputs: HeadInputs) -> Tensor:
        heads = inputs.output()
        blocks.append((inputs.v[0], heads[0]))
        return heads

    recorded = record(model, pixels, hook=keep)
    errors = []
    for index, (values, heads) in enumerate(blocks):
        project = cast("Block", model.blocks[index]).attn.proj
        mixed = torch.cat([rows @ values for _, rows in recorded.row_chunks(index)], 1)  # (H, N, K)
        shown, used = (project(output.transpose(0, 1).flatten(1)) for output in (mixed, heads))
        errors.append(float((shown - used).abs().max() / used.abs().max().clamp_min(torch.finfo(used.dtype).tiny)))
    return max(errors)
