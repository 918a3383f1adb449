"""Match patches of two pictures by the cosine similarity of their features."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

NEAREST = 5  # matches per patch; the viewer outlines as many


class Matches(NamedTuple):
    """The k most similar target patches of each source patch, best first.

    Attributes:
        patches: int64 (P, k), row-major indices of target patches.
        cosines: float32 (P, k).
        mutual: bool (P, k), True if the source patch is also the best match of the target patch.
    """

    patches: Tensor
    cosines: Tensor
    mutual: Tensor


def matches(source: Tensor, target: Tensor, count: int = NEAREST) -> Matches:
    """Find the best matches of every patch of one picture in another.

    Args:
        source: (P, D), or (rows, cols, D), features of the picture whose patches are matched.
        target: (Q, D), or (rows, cols, D), features of the picture that is searched.
        count: matches per patch, at most Q.

    Source: Amir et al. 2022, arXiv 2112.05814, section 4.2 (best buddies are mutual).
    """
    p, q = (F.normalize(features.flatten(0, -2).double(), dim=-1) for features in (source, target))
    cosines = p @ q.T  # (P, Q)
    best = cosines.topk(min(count, cosines.shape[1]), dim=1)
    back = cosines.argmax(0)  # (Q,), best source patch of each target patch
    mutual = back[best.indices] == torch.arange(len(p), device=p.device)[:, None]
    return Matches(best.indices, best.values.float(), mutual)
