"""Arithmetic on maps: fusing heads and blocks, discarding patches, thresholds, entropy."""

import torch
from torch import Tensor

from vit.explain.settings import Fusion


def fuse(maps: Tensor, how: Fusion) -> Tensor:
    """Reduce several maps by mean, maximum or minimum: (M, ...) to (...)."""
    return maps.mean(0) if how == "mean" else maps.amax(0) if how == "max" else maps.amin(0)


def select_head(heads: Tensor, head: int | Fusion) -> Tensor:
    """Select one head of (H, ...) by its index, negative from the end; or fuse all heads.

    Raises:
        ValueError: the head does not exist.
    """
    return fuse(heads, head) if isinstance(head, str) else heads[checked_index("head", head, len(heads))]


def checked_index(what: str, index: int, count: int) -> int:
    """Convert an index that may be negative to one from 0.

    Args:
        what: name of the indexed thing, for the error message.

    Raises:
        ValueError: the index is out of range.
    """
    if not -count <= index < count:
        raise ValueError(f"There is no {what} {index}: they run from 0 to {count - 1}.")
    return index % count


def fuse_rows(rows: Tensor, fusion: Fusion, discard: float, prefix: int) -> Tensor:
    """Fuse the rows of all heads (H, R, N) to (R, N), discard the weakest patches, and normalise rows to sum to 1."""
    fused = discard_weakest(fuse(rows, fusion), discard, prefix)
    return fused / fused.sum(-1, keepdim=True).clamp_min(torch.finfo(fused.dtype).tiny)


def discard_weakest(rows: Tensor, share: float, prefix: int) -> Tensor:
    """Set the weakest patches of each row (..., N) to 0: `share` of them, rounded down. Prefix tokens are kept.

    Raises:
        ValueError: the share is not in [0, 1).

    >>> discard_weakest(torch.tensor([[0.125, 0.25, 0.125, 0.5]]), 0.5, prefix=1).tolist()
    [[0.125, 0.25, 0.0, 0.5]]
    """
    if not 0 <= share < 1:
        raise ValueError(f"The discarded share must be at least 0 and under 1, not {share:g}.")
    weakest = rows[..., prefix:].topk(int(share * (rows.shape[-1] - prefix)), -1, largest=False).indices
    return rows.scatter(-1, weakest + prefix, 0.0)


def geometric_mean(one: Tensor, other: Tensor) -> Tensor:
    """Compute the geometric mean of two maps of the same shape; it is small where either map is.

    Raises:
        ValueError: a number is negative.

    >>> geometric_mean(torch.tensor([0.0, 4.0]), torch.tensor([5.0, 9.0])).tolist()
    [0.0, 6.0]
    """
    if (one < 0).any() or (other < 0).any():
        raise ValueError("A geometric mean needs numbers that are not negative.")
    return one.sqrt() * other.sqrt()


def mass_threshold(heatmap: Tensor, share: float) -> Tensor:
    """Return a mask (rows, cols) of the smallest set of patches that contains at least this share of the map's mass.

    Args:
        heatmap: (rows, cols), not negative.
        share: above 0, at most 1.

    Raises:
        ValueError: the map has negative values, or the share is out of range.

    Source: facebookresearch/dino, `visualize_attention.py`.

    >>> mass_threshold(torch.tensor([[0.5, 0.1], [0.3, 0.1]]), 0.6).tolist()
    [[True, False], [True, False]]
    """
    if not 0 < share <= 1:
        raise ValueError(f"A share of the mass must be above 0 and at most 1, not {share:g}.")
    if (heatmap < 0).any():
        raise ValueError("A map with negative numbers has no mass to share.")
    mass, order = heatmap.double().flatten().sort(descending=True)
    before = mass.cumsum(0) - mass  # mass of all stronger patches
    # 1 - 1e-6: rounding of a float32 map must not add a patch when the share is reached exactly.
    chosen = (before < share * mass.sum() * (1 - 1e-6)) & (mass > 0)
    return torch.zeros_like(chosen).scatter(0, order, chosen).view_as(heatmap)


def otsu_threshold(heatmap: Tensor) -> Tensor:
    """Return a mask (rows, cols) of the patches above Otsu's threshold.

    The threshold maximises the between-class variance over all splits of the values, without a histogram. The mask is
    empty if all values are equal.

    Source: Otsu 1979, "A Threshold Selection Method from Gray-Level Histograms", eq. 18.

    >>> otsu_threshold(torch.tensor([[0.1, 0.8], [0.2, 0.9]])).tolist()
    [[False, True], [False, True]]
    """
    numbers = heatmap.double().flatten().sort().values
    count = torch.arange(1, len(numbers), device=numbers.device)  # size of the lower group
    sums = numbers.cumsum(0)
    lower, upper = sums[:-1] / count, (sums[-1] - sums[:-1]) / (len(numbers) - count)
    apart = count * (len(numbers) - count) * (upper - lower) ** 2
    apart = apart.where(numbers[1:] > numbers[:-1], -1)  # do not split equal numbers
    if not (apart > 0).any():
        return torch.zeros_like(heatmap, dtype=torch.bool)
    return heatmap > numbers[apart.argmax()]


def entropy(attention: Tensor) -> Tensor:
    """Compute the normalised entropy of each row, (..., N) to (...): 0 for a single key, 1 for uniform attention.

    >>> entropy(torch.tensor([[0.5, 0.5], [1.0, 0.0]])).tolist()
    [1.0, 0.0]
    """
    return torch.special.entr(attention).sum(-1) / torch.tensor(float(attention.shape[-1])).log()
