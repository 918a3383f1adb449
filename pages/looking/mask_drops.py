"""What masks cost a class on a picture: more of them for as long as somebody looks at the page."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from pages.links import session
from pages.looking.class_question import Example, pass_of
from pages.server.result_cache import cached
from vit.explain import sensitivity

FIRST = 64  # masks before anything is said
MOST = 1024
MOST_BITS = 1 << 18  # patches times masks, that a browser judges maps by
STEP = 1.0  # [s] of masks at a time
LEAST = 8  # masks at a time


class MaskDrops(NamedTuple):
    """Masks, and how far the class drops behind each.

    Attributes:
        masks: bool (M, P).
        drops: float64 (M,), see `vit.explain.sensitivity.score_drops`.
        ceiling: the correlation that no map exceeds, of so many masks as were there when they last doubled.
        complete: there will be no more.
    """

    masks: Tensor
    drops: Tensor
    ceiling: float
    complete: bool


@dataclass
class _Growing:
    """What was measured so far."""

    masks: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.bool))
    drops: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    ceilings: dict[int, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)  # while the two change
    measuring: threading.Lock = field(default_factory=threading.Lock)  # held for as long as that takes


def _growing(example: Example, target: int) -> _Growing:
    return cached(("masks", example.key, target), _Growing)


def most(example: Example) -> int:
    """How many masks there will be in the end."""
    return max(FIRST, min(MOST, MOST_BITS // math.prod(example.explanation.record.grid)))


def measured(example: Example, target: int) -> MaskDrops | None:
    """What was measured so far; None before there are enough masks to say anything."""
    growing = _growing(example, target)
    with growing.lock:
        masks, drops = growing.masks, growing.drops
    if len(drops) < FIRST:
        return None
    doubled = 1 << (len(drops).bit_length() - 1)  # a ceiling takes a while
    if doubled not in growing.ceilings:
        growing.ceilings[doubled] = sensitivity.removal(masks[:doubled], drops[:doubled]).ceiling
    return MaskDrops(masks, drops, growing.ceilings[doubled], len(drops) >= most(example))


def expected(example: Example) -> float:
    """How long the first masks will take [s]."""
    return sensitivity.seconds(example.checkpoint.model, example.explanation.preprocess.size, FIRST)


def measure_first(example: Example, target: int, progress: Callable[[float], object]) -> None:
    """Measure as many masks as it takes to say anything; who stops in between keeps what is done."""
    growing = _growing(example, target)
    while len(growing.drops) < FIRST:
        measure_more(example, target, FIRST)
        progress(len(growing.drops) / FIRST)


def measure_more(example: Example, target: int, up_to: int = MOST) -> None:
    """Measure what can be done in about a second; a run that is stopped meanwhile ends at once, without it."""
    growing, patches = _growing(example, target), math.prod(example.explanation.record.grid)
    model, size = example.checkpoint.model, example.explanation.preprocess.size
    with growing.measuring:
        done = len(growing.drops)
        each = sensitivity.seconds(model, size, FIRST) / FIRST
        count = min(done + max(LEAST, int(STEP / max(each, 1e-6))), up_to, most(example))
        if count <= done:
            return
        masks = sensitivity.random_masks(patches, count)
        with pass_of(example):
            # A run that was stopped has another one beside it, which waits for the processors.
            drops = sensitivity.score_drops(
                model,
                example.pixels,
                target,
                masks[done:],
                hook=example.hook,
                progress=lambda _: session.end_if_stopped(),
            )
        with growing.lock:
            growing.masks, growing.drops = masks, torch.cat([growing.drops, drops.cpu()])
