"""Wrap attention matrices of other libraries in an `AttentionRecord`, so that all views and methods accept them."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from vit.errors import UserError
from vit.explain.record import AttentionRecord

_ROW_SUM_TOLERANCE = 0.02  # half precision stays within 0.005
_MIN_WEIGHT = 1e-30  # keeps logarithms finite


def record_of_attention(
    attention: Tensor | Sequence[Any],
    grid: tuple[int, int] | None = None,
    prefix: Sequence[str] | None = None,
) -> AttentionRecord:
    """Build a record from attention matrices, without features or classes.

    A record stores queries and keys. The softmax of log weights returns the weights, so the queries are the log
    weights and the keys are a scaled identity.

    Args:
        attention: L tensors (H, N, N) or (1, H, N, N), such as the `attentions` of transformers' outputs, or one
            tensor (L, H, N, N); after the softmax, rows query, columns key.
        grid: (rows, cols) of patches; None for a square.
        prefix: names of the tokens before the patches; None to name a single one "cls" and number several.

    Raises:
        UserError: it is None or empty, shapes do not match, rows do not sum to 1, or the grid cannot be inferred.
    """
    if attention is None or not len(attention) or any(block is None for block in attention):
        raise UserError(
            "There is no attention to show. In transformers, load the model with "
            'attn_implementation="eager" and call it with output_attentions=True.'
        )
    blocks = [_one_picture(block) for block in attention]
    shapes = {tuple(block.shape) for block in blocks}
    heads, tokens = blocks[0].shape[:2]
    if len(shapes) > 1 or blocks[0].shape[1] != blocks[0].shape[2]:
        raise UserError(f"Attention must be (heads, tokens, tokens), the same in every block, not {sorted(shapes)}.")
    for number, block in enumerate(blocks):
        # Written so that NaN fails both comparisons.
        if not (block.min() >= 0 and ((block.sum(-1) - 1).abs() < _ROW_SUM_TOLERANCE).all()):
            raise UserError(f"Rows of attention must sum to 1, as after the softmax; those of block {number} do not.")
    rows, cols = _grid_of(tokens, grid, prefix)
    # Attention divides scores by sqrt(K), and K is the number of tokens here.
    keys = (math.sqrt(tokens) * torch.eye(tokens)).expand(heads, tokens, tokens)
    return AttentionRecord(
        logits=torch.zeros(1, 0),
        queries=tuple(block.clamp_min(_MIN_WEIGHT).log() for block in blocks),
        keys=(keys,) * len(blocks),
        prefix=_prefix_of(tokens - rows * cols) if prefix is None else tuple(prefix),
        grid=(rows, cols),
    )


def _one_picture(block: Any) -> Tensor:
    """Convert the attention of one block to (H, N, N), float32 on the CPU."""
    tensor = torch.as_tensor(block).detach().to("cpu", torch.float32)
    if tensor.ndim == 4 and len(tensor) == 1:
        tensor = tensor[0]
    if tensor.ndim == 4:
        raise UserError(
            f"This is the attention of {len(tensor)} pictures. Choose one of them: [block[:1] for block in attention]."
        )
    if tensor.ndim != 3:
        raise UserError(f"Attention of a block must be (heads, tokens, tokens), not {tuple(tensor.shape)}.")
    return tensor


def _grid_of(tokens: int, grid: tuple[int, int] | None, prefix: Sequence[str] | None) -> tuple[int, int]:
    if grid is not None:
        rows, cols = grid
        patches, before = rows * cols, tokens - rows * cols
        if rows < 1 or cols < 1 or before < 0 or (prefix is not None and len(prefix) != before):
            named = "" if prefix is None else f" and the {len(prefix)} tokens of prefix"
            raise UserError(f"{tokens} tokens are not the {patches} patches of grid={(rows, cols)}{named}.")
        return rows, cols
    for before in (0, 1) if prefix is None else (len(prefix),):
        side = math.isqrt(max(tokens - before, 0))
        if side and side**2 == tokens - before:
            return side, side
    raise UserError(f"The patches among {tokens} tokens make no square: give grid=(rows, cols), and prefix=(names).")


def _prefix_of(count: int) -> tuple[str, ...]:
    return ("cls",) if count == 1 else tuple(f"prefix {number}" for number in range(count))
