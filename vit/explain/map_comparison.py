"""Compare two maps: difference per patch, and rank correlation."""

from typing import NamedTuple

import torch
from torch import Tensor


class Layout(NamedTuple):
    """Token layout of a model's input.

    Attributes:
        prefix: names of the tokens before the patches.
        grid: (rows, cols) of patches.
    """

    prefix: tuple[str, ...]
    grid: tuple[int, int]


def counterpart(token: int, source: Layout, target: Layout) -> int:
    """Return the token of `target` that corresponds to `token` of `source`, by prefix name or relative position.

    The viewers' JavaScript uses the same rule.

    >>> counterpart(2, Layout(("cls",), (2, 2)), Layout((), (4, 4)))
    7
    """
    if token < len(source.prefix):
        name = source.prefix[token]
        return target.prefix.index(name) if name in target.prefix else 0
    row, col = divmod(token - len(source.prefix), source.grid[1])
    row, col = (
        int((index + 0.5) / own * other) for index, own, other in zip((row, col), source.grid, target.grid, strict=True)
    )
    return len(target.prefix) + row * target.grid[1] + col


def difference(left: Tensor, right: Tensor) -> Tensor:
    """Subtract two maps, each normalised to sum to 1 over its patches. Negative values count as 0.

    Args:
        left, right: (rows, cols).

    Returns:
        left minus right, (rows, cols), from -1 to 1; sums to 0 unless one of the maps is all zeros.

    Raises:
        ValueError: the grids differ.

    >>> difference(torch.tensor([[3.0, 1.0]]), torch.tensor([[1.0, 1.0]])).tolist()
    [[0.25, -0.25]]
    """
    _check_grids(left, right)
    left, right = left.double().clamp_min(0), right.double().clamp_min(0)
    tiny = torch.finfo(torch.float64).tiny
    return left / left.sum().clamp_min(tiny) - right / right.sum().clamp_min(tiny)


def rank_correlation(left: Tensor, right: Tensor) -> float | None:
    """Compute Spearman's rank correlation of two maps. Ties share their mean rank.

    Args:
        left, right: (rows, cols), or any common shape.

    Returns:
        -1 to 1; None if a map is constant.

    Raises:
        ValueError: the shapes differ.

    >>> rank_correlation(torch.tensor([1.0, 2.0, 3.0]), torch.tensor([10.0, 30.0, 20.0]))
    0.5
    """
    _check_grids(left, right)
    one, other = (ranks - ranks.mean() for ranks in (_ranks(left), _ranks(right)))
    spread = float((one.square().sum() * other.square().sum()).sqrt())
    return float(one @ other) / spread if spread > 0 else None


def _ranks(numbers: Tensor) -> Tensor:
    """Return the rank of each number, from 1, as float64 (n,). Ties share their mean rank."""
    _, inverse, count = numbers.flatten().unique(return_inverse=True, return_counts=True)
    last = count.cumsum(0).double()
    return (last - (count - 1) / 2)[inverse]


def _check_grids(left: Tensor, right: Tensor) -> None:
    if left.shape != right.shape:
        raise ValueError(f"Maps of {tuple(left.shape)} and {tuple(right.shape)} patches cannot be compared.")


def agreement(correlation: float | None) -> str:
    """Describe a rank correlation in one sentence."""
    if correlation is None:
        return "One of the maps is constant, so it does not rank the patches."
    if correlation >= 0.8:
        return "Both maps rank the patches in nearly the same order."
    if correlation >= 0.4:
        return "Both maps rank the patches in a similar order, with exceptions."
    if correlation > -0.4:
        return "The maps rank the patches in largely unrelated orders."
    return "The maps rank the patches in roughly opposite order."
