"""Which patches of one picture look like which of another, by the features of one model."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

NEAREST = 5  # matches, as many as the viewer outlines


class Matches(NamedTuple):
    """The patches most like those of another picture, best first.

    Attributes:
        patches: int64 (P, k), numbers in the target's order of rows.
        cosines: float32 (P, k).
        mutual: bool (P, k), the match's own best patch in the source is this one.
    """

    patches: Tensor
    cosines: Tensor
    mutual: Tensor


def matches(source: Tensor, target: Tensor, count: int = NEAREST) -> Matches:
    """Look for every patch of one picture in another.

    Args:
        source: (P, D), or (rows, cols, D), features of the picture whose patches are looked for.
        target: (Q, D), or (rows, cols, D), of the picture that they are looked for in.
        count: matches of each, all where there are fewer.

    Source: Amir et al. 2022, arXiv 2112.05814, section 4.2 (best buddies are mutual).
    """
    one, other = (F.normalize(features.flatten(0, -2).double(), dim=-1) for features in (source, target))
    cosines = one @ other.T  # (P, Q)
    best = cosines.topk(min(count, cosines.shape[1]), dim=1)
    back = cosines.argmax(0)  # (Q,), the best patch of the source for each of the target
    mutual = back[best.indices] == torch.arange(len(one))[:, None]
    return Matches(best.indices, best.values.float(), mutual)
