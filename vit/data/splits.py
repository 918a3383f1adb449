"""Split datasets into training, validation and test pictures, as functions of labels and a fixed seed."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

_TEST_SHARE = 0.1
_VALIDATION_SHARE, _VALIDATION_LEAST = 0.05, 10  # share of a class; minimum number of pictures
_SPLIT_SEED = 0
_T = TypeVar("_T")


def interleave_classes(labels: Sequence[int]) -> list[int]:
    """Order indices so that classes alternate; within a class, the order is random with a fixed seed.

    >>> [("a", "a", "a", "b")[place] for place in interleave_classes([0, 0, 0, 1])][2:]
    ['a', 'a']
    """
    generator = torch.Generator().manual_seed(_SPLIT_SEED)
    turns, counts = [], dict.fromkeys(labels, 0)
    for index in torch.randperm(len(labels), generator=generator).tolist():
        turns.append((counts[labels[index]], index))
        counts[labels[index]] += 1
    return [index for _, index in sorted(turns)]


def choose_evenly(labels: Sequence[int], count: int | None) -> list[int]:
    """Choose `count` indices (None for all) evenly from the classes, and sort them."""
    return list(range(len(labels))) if count is None else sorted(interleave_classes(labels)[:count])


def random_subset(items: list[_T], limit: int | None) -> list[_T]:
    """Choose `limit` items at random with a fixed seed; all of them, in their order, if there are no more."""
    if limit is None or limit >= len(items):
        return items
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(_SPLIT_SEED)).tolist()
    return [items[index] for index in order[:limit]]


def hold_out(labels: Sequence[int], count: Callable[[int], int]) -> list[int]:
    """Choose sorted indices from each class with a fixed seed; `count` maps the size of a class to a number."""
    generator = torch.Generator().manual_seed(_SPLIT_SEED)
    places: dict[int, list[int]] = {}
    for index, label in enumerate(labels):
        places.setdefault(label, []).append(index)
    chosen = []
    for _, own in sorted(places.items()):
        order = torch.randperm(len(own), generator=generator)
        chosen += [own[i] for i in order[: count(len(own))].tolist()]
    return sorted(chosen)


def test_count(pictures: int) -> int:
    """Return the test share of a class: a tenth, at least one picture, but never the last."""
    return min(max(1, round(pictures * _TEST_SHARE)), pictures - 1)


def validation_count(pictures: int) -> int:
    """Return the validation share of a class: a twentieth, at least ten, at most a fifth, and never the last one."""
    count = max(round(pictures * _VALIDATION_SHARE), _VALIDATION_LEAST)
    return min(count, max(pictures // 5, 1), pictures - 1)
