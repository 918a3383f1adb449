"""Which pictures of a dataset are learnt from, choose, or are tested on: functions of labels and a fixed seed."""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch

_TEST_SHARE = 0.1
_VALIDATION_SHARE, _VALIDATION_LEAST = 0.05, 10  # of a class; the second in pictures
_SPLIT_SEED = 0
_T = TypeVar("_T")


def in_turn(labels: Sequence[int]) -> list[int]:
    """Order places so that the classes take turns; within a class in a random order, always the same.

    >>> [("a", "a", "a", "b")[place] for place in in_turn([0, 0, 0, 1])][2:]
    ['a', 'a']
    """
    generator = torch.Generator().manual_seed(_SPLIT_SEED)
    turns, counts = [], dict.fromkeys(labels, 0)
    for index in torch.randperm(len(labels), generator=generator).tolist():
        turns.append((counts[labels[index]], index))
        counts[labels[index]] += 1
    return [index for _, index in sorted(turns)]


def choose_evenly(labels: Sequence[int], count: int | None) -> list[int]:
    """Choose `count` places (None for all) evenly from the classes, in their order."""
    return list(range(len(labels))) if count is None else sorted(in_turn(labels)[:count])


def random_subset(items: list[_T], limit: int | None) -> list[_T]:
    """Choose `limit` items at random, always the same ones; all of them, in their order, where that is no limit."""
    if limit is None or limit >= len(items):
        return items
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(_SPLIT_SEED)).tolist()
    return [items[index] for index in order[:limit]]


def set_aside(labels: Sequence[int], count: Callable[[int], int]) -> list[int]:
    """Choose places of each class, as many as `count` says for a class of so many; always the same, in order."""
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
    """Of a class: a tenth, at least one picture, but never the last."""
    return min(max(1, round(pictures * _TEST_SHARE)), pictures - 1)


def validation_count(pictures: int) -> int:
    """Of a class: a twentieth and at least ten, but no more than a fifth of a small one, and never the last."""
    count = max(round(pictures * _VALIDATION_SHARE), _VALIDATION_LEAST)
    return min(count, max(pictures // 5, 1), pictures - 1)
