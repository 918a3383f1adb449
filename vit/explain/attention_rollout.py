"""Attention rollout: the product of attention over all blocks, as a full matrix, or for a single token.

Source: Abnar & Zuidema 2020, arXiv 2005.00928, eq. 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from vit.explain.maps import fuse_rows
from vit.explain.settings import Direction, Fusion

if TYPE_CHECKING:
    from vit.explain.record import AttentionRecord


def rollout(
    attentions: Tensor, residual: float = 0.5, fusion: Fusion = "mean", discard: float = 0.0, prefix: int = 0
) -> Tensor:
    """Trace attention through all blocks, assuming that tokens keep a share of themselves.

    Args:
        attentions: (L, H, N, N), rows sum to 1.
        residual: share of the skip connection, 0 to 1.
        fusion: how heads are fused; rows are normalised again before the residual is added.
        discard: share of each row's weakest patches that is set to 0 after the fusion, see `discarded`.
        prefix: S, number of tokens before the patches; they are never discarded.

    Returns:
        (N, N); row i says where token i's content came from; rows sum to 1.

    Raises:
        ValueError: rows of `attentions` do not sum to 1, or `discard` is not in [0, 1).

    Source: Abnar & Zuidema 2020, arXiv 2005.00928, eq. 1. Fusion and discarding follow jacobgil/vit-explain, but apply
    to each row separately.
    """
    if not torch.allclose(attentions.sum(-1), attentions.new_ones(()), atol=1e-3):
        raise ValueError("Rows of attention must sum to 1.")
    identity = torch.eye(attentions.shape[-1], dtype=attentions.dtype, device=attentions.device)
    result = identity
    for heads in attentions:  # (H, N, N), first block first
        plain = fusion == "mean" and not discard
        attention = heads.mean(0) if plain else fuse_rows(heads, fusion, discard, prefix)
        result = ((1 - residual) * attention + residual * identity) @ result
    return result


def traced(
    record: AttentionRecord, start: Tensor, residual: float, direction: Direction, fusion: Fusion, discard: float
) -> Tensor:
    """Compute a weighted sum of rows (or columns for "to") of the rollout matrix, as vector-matrix products.

    Args:
        start: (N,), weight of each token.
        residual, fusion, discard: see `rollout`.

    Returns:
        (N,), float32.
    """
    vector = start.float()
    for block in reversed(range(record.blocks)) if direction == "from" else range(record.blocks):
        mixed = torch.zeros_like(vector)
        for first, rows in record.row_chunks(block):  # rows: (H, R, N)
            part = slice(first, first + rows.shape[1])
            if fusion != "mean" or discard:
                rows = fuse_rows(rows, fusion, discard, len(record.prefix))[None]
            if direction == "from":
                mixed += (vector[part] @ rows).mean(0)
            else:
                mixed[part] = (rows @ vector).mean(0)
        vector = (1 - residual) * mixed + residual * vector
    return vector
