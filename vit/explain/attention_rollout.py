"""Attention rollout as a matrix of all tokens; `AttentionRecord.rollout` computes one row or column of it.

Source: Abnar & Zuidema 2020, arXiv 2005.00928, eq. 1.
"""

import torch
from torch import Tensor

from vit.explain.maps import fuse_rows
from vit.explain.settings import Fusion


def rollout(
    attentions: Tensor, residual: float = 0.5, fusion: Fusion = "mean", discard: float = 0.0, prefix: int = 0
) -> Tensor:
    """Trace attention through all blocks, assuming tokens keep a share of themselves.

    Args:
        attentions: (L, H, N, N), rows sum to 1.
        residual: share of the skip connection, 0 to 1.
        fusion: how heads become one; rows are brought to a sum of 1 again before the residual.
        discard: share of each row's patches, the weakest, that is left out before that, see `discarded`.
        prefix: S, how many tokens come before the patches; nothing of theirs is left out.

    Returns:
        (N, N); row i says where token i's content came from; rows sum to 1.

    Raises:
        ValueError: rows of `attentions` do not sum to 1, or `discard` is no share.

    Source: Abnar & Zuidema 2020, arXiv 2005.00928, eq. 1; fusion and discarding by jacobgil/vit-explain, of each row by
    itself.
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
