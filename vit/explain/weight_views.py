"""Views of weights: similarity of position embeddings, filters of the patch embedding; and outlier tokens."""

from typing import NamedTuple, cast

import torch
from torch import Tensor

from vit.model.transformer import VisionTransformer

COMPONENTS = 28  # maximum number of principal components of the filters
TIMES = 6.0  # threshold of outliers, in median absolute deviations above the median
LEAST = 3.0  # minimum norm of an artefact, in medians; DINOv2-g's have 4 and more


def position_similarity(model: VisionTransformer) -> Tensor | None:
    """Compute cosine similarities of all position embeddings, (P, rows, cols); None if there are no learnt ones.

    Source: Dosovitskiy et al. 2021, arXiv 2010.11929, figure 7.
    """
    positions = model.pos_embed[0].detach().float()
    if not positions.any():
        return None
    directions = torch.nn.functional.normalize(positions, dim=-1)
    return (directions @ directions.T).unflatten(1, model.config.grid)


class Filters(NamedTuple):
    """Principal components of the patch embedding's filters.

    Attributes:
        components: (n, channels, patch, patch), each of norm 1, by descending variance.
        shares: (n,), explained variance ratios.
    """

    components: Tensor
    shares: Tensor


def filters(model: VisionTransformer) -> Filters:
    """Compute the principal components of the patch embedding's filters.

    Source: Dosovitskiy et al. 2021, arXiv 2010.11929, figure 7.
    """
    weight = cast("torch.nn.Conv2d", model.patch_embed).weight.detach().float()  # (D, channels, patch, patch)
    flat = weight.flatten(1)
    _, strengths, components = torch.linalg.svd(flat - flat.mean(0), full_matrices=False)
    shares = strengths**2 / (strengths**2).sum()
    return Filters(components[:COMPONENTS].unflatten(1, weight.shape[1:]), shares[:COMPONENTS])


# --- Outliers -------------------------------------------------------------------------------------------------


def outliers(norms: Tensor) -> Tensor:
    """Find tokens with a norm far above those of the other tokens: more than `TIMES` deviations above the median.

    Args:
        norms: (L, P), norms of the patch tokens after every block.

    Returns:
        bool (L, P).

    Source of the phenomenon: Darcet et al. 2024, arXiv 2309.16588. Their threshold of 150 applies to DINOv2-g only.
    """
    median = norms.median(-1, keepdim=True).values
    spread = (norms - median).abs().median(-1, keepdim=True).values
    return norms > median + TIMES * spread.clamp_min(1e-6)


def high_norm(norms: Tensor) -> Tensor:
    """Find artefacts: outliers whose norm is also above `LEAST` medians. They hold global information, not a patch's.

    Args:
        norms: (L, P).

    Returns:
        bool (L, P).
    """
    return outliers(norms) & (norms > LEAST * norms.median(-1, keepdim=True).values)
