"""Arithmetic on maps: heads and blocks made one, patches left out, thresholds."""

import torch
from torch import Tensor

from vit.explain.settings import Fusion


def fuse(maps: Tensor, how: Fusion) -> Tensor:
    """Mean, maximum or minimum of several maps: (M, ...) to (...)."""
    return maps.mean(0) if how == "mean" else maps.amax(0) if how == "max" else maps.amin(0)


def select_head(heads: Tensor, head: int | Fusion) -> Tensor:
    """One head of (H, ...), by its index, negative from the end; or all fused.

    Raises:
        ValueError: there is no such head.
    """
    return fuse(heads, head) if isinstance(head, str) else heads[checked_index("head", head, len(heads))]


def checked_index(what: str, index: int, count: int) -> int:
    """The index from 0 of one that may count from the end.

    Raises:
        ValueError: it lies outside.
    """
    if not -count <= index < count:
        raise ValueError(f"There is no {what} {index}: they run from 0 to {count - 1}.")
    return index % count


def fuse_rows(rows: Tensor, fusion: Fusion, discard: float, prefix: int) -> Tensor:
    """Rows of all heads (H, R, N) to rows of one (R, N) that sum to 1."""
    fused = discarded(fuse(rows, fusion), discard, prefix)
    return fused / fused.sum(-1, keepdim=True).clamp_min(torch.finfo(fused.dtype).tiny)


def discarded(rows: Tensor, share: float, prefix: int) -> Tensor:
    """Each row (..., N) without its weakest patches: `share` of them, rounded down, become 0; prefix tokens stay.

    Raises:
        ValueError: the share is not at least 0 and under 1.

    >>> discarded(torch.tensor([[0.125, 0.25, 0.125, 0.5]]), 0.5, prefix=1).tolist()
    [[0.125, 0.25, 0.0, 0.5]]
    """
    if not 0 <= share < 1:
        raise ValueError(f"The discarded share must be at least 0 and under 1, not {share:g}.")
    weakest = rows[..., prefix:].topk(int(share * (rows.shape[-1] - prefix)), -1, largest=False).indices
    return rows.scatter(-1, weakest + prefix, 0.0)


def geometric_mean(one: Tensor, other: Tensor) -> Tensor:
    """What two maps of any same shape agree on: sqrt(one * other), small where either is.

    Raises:
        ValueError: a number is negative.

    >>> geometric_mean(torch.tensor([0.0, 4.0]), torch.tensor([5.0, 9.0])).tolist()
    [0.0, 6.0]
    """
    if (one < 0).any() or (other < 0).any():
        raise ValueError("A geometric mean needs numbers that are not negative.")
    return one.sqrt() * other.sqrt()


def mass_threshold(heatmap: Tensor, share: float) -> Tensor:
    """The smallest set of patches that holds at least this share of the map's mass: (rows, cols), True for those.

    Args:
        heatmap: (rows, cols), no number negative.
        share: above 0, at most 1.

    Raises:
        ValueError: there is no mass to share, or the share is none.

    Source: facebookresearch/dino, `visualize_attention.py`.

    >>> mass_threshold(torch.tensor([[0.5, 0.1], [0.3, 0.1]]), 0.6).tolist()
    [[True, False], [True, False]]
    """
    if not 0 < share <= 1:
        raise ValueError(f"A share of the mass must be above 0 and at most 1, not {share:g}.")
    if (heatmap < 0).any():
        raise ValueError("A map with negative numbers has no mass to share.")
    mass, order = heatmap.double().flatten().sort(descending=True)
    before = mass.cumsum(0) - mass  # what the stronger ones hold
    chosen = (before < share * mass.sum() * (1 - 1e-6)) & (mass > 0)  # of a map in float32
    return torch.zeros_like(chosen).scatter(0, order, chosen).view_as(heatmap)


def otsu_threshold(heatmap: Tensor) -> Tensor:
    """The patches of the stronger of two groups that lie furthest apart: (rows, cols), True for those.

    The groups are split where the variance between them is largest, of all splits of these very numbers. None is
    chosen where all numbers are equal.

    Source: Otsu 1979, "A Threshold Selection Method from Gray-Level Histograms", eq. 18.

    >>> otsu_threshold(torch.tensor([[0.1, 0.8], [0.2, 0.9]])).tolist()
    [[False, True], [False, True]]
    """
    numbers = heatmap.double().flatten().sort().values
    count = torch.arange(1, len(numbers), device=numbers.device)  # in the lower group
    sums = numbers.cumsum(0)
    lower, upper = sums[:-1] / count, (sums[-1] - sums[:-1]) / (len(numbers) - count)
    apart = count * (len(numbers) - count) * (upper - lower) ** 2
    apart = apart.where(numbers[1:] > numbers[:-1], -1)  # equal numbers stay together
    if not (apart > 0).any():
        return torch.zeros_like(heatmap, dtype=torch.bool)
    return heatmap > numbers[apart.argmax()]


def entropy(attention: Tensor) -> Tensor:
    """Spread of each row over its keys: 0 for one key, 1 for uniform. (..., N) to (...).

    >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist()
    [1.0, 0.0]
    """
    return torch.special.entr(attention).sum(-1) / torch.tensor(float(attention.shape[-1])).log()
