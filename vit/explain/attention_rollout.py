"""Attention rollout: the product of attention over all blocks, as a full matrix, or for a single token.

Source: Abnar & Zuidema 2020, arXiv 2005.00928, eq. 1.
"""

import torch
from torch import Tensor

from vit.explain.maps import fuse_rows
from vit.explain.settings import Fusion


def rollout(
    attentions: Tensor, residual: float = 0.5, fusion: Fusion = "mean", discard: float = 0.0, prefix: int = 0
) -> Tensor:
    """Trace attention through all blocks, assuming that tokens keep a share of themselves.

    Args:
        attentions: (L, H, N, N), rows sum to 1.
        residual: share of the skip connection, 0 to 1.
        fusion: how heads are fused; rows are normalised again before the residual is added.
        discard: share of each row's weakest patches that is set to 0 after the fusion, see `discard_weakest`.
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
