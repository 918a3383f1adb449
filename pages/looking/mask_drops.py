"""Drops of a class score behind random masks, measured in the background while the page is open, and the best map."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

import streamlit as st
import torch
from torch import Tensor
from torch.nn import functional as F

from pages.links import session
from pages.looking.controls.method_choice import Example, pass_of
from pages.server import public
from pages.server.result_cache import cached
from vit.explain import faithfulness_correlation
from vit.explain.faithfulness_correlation import FITTED
from vit.explain.kriging import BestMap, Fit
from vit.explain.methods import shares
from vit.explain.settings import BEST_MAP_MASKS

FIRST = 64  # masks before the first result
MOST = 1024  # masks in total
MOST_BITS = 1 << 18  # patches times masks that are sent to the browser
STEP = 1.0  # duration of one batch of masks [s]
LEAST = 8  # minimum number of masks in a batch


class MaskDrops(NamedTuple):
    """Masks, and the drop of the class score behind each.

    Attributes:
        masks: bool (M, P).
        drops: float64 (M,), see `vit.explain.faithfulness_correlation.score_drops`.
        ceiling: highest correlation that a map can reach, updated whenever the number of masks doubles.
        complete: all masks are measured.
        decidable: they change the score enough to judge maps.
    """

    masks: Tensor
    drops: Tensor
    ceiling: float
    complete: bool
    decidable: bool


@dataclass
class _PartialDrops:
    """The measurements so far."""

    masks: Tensor = field(default_factory=lambda: torch.zeros(0, 0, dtype=torch.bool))
    drops: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.float64))
    ceilings: dict[int, float] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)  # keeps masks and drops consistent
    measuring: threading.Lock = field(default_factory=threading.Lock)  # held during a batch: one batch at a time


def _growing(example: Example, target: int, seed: int = 0) -> _PartialDrops:
    return cached(("masks", example.key, target, seed), _PartialDrops)


def drops_so_far(example: Example, target: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return the masks (M, P) that were evaluated so far, and the drop (M,) of the class for each."""
    growing = _growing(example, target, seed)
    with growing.lock:
        return growing.masks, growing.drops


def most(example: Example) -> int:
    """Return the total number of masks that judge maps."""
    return max(FIRST, min(MOST, MOST_BITS // math.prod(example.explanation.record.grid), _affordable(example)))


def most_for_best_map(example: Example) -> int:
    """Return the largest number of masks for the best map."""
    return max(LEAST, min(BEST_MAP_MASKS, _affordable(example)))


def _affordable(example: Example) -> int:
    """Return the number of masks of a picture and class that a public server has time for."""
    return int(public.MASK_SECONDS / expected(example) * FIRST) if public.is_public() else MOST


def measured(example: Example, target: int) -> MaskDrops | None:
    """Return the masks that were evaluated so far, and the drop of the class for each; None until `FIRST` are done."""
    growing, (masks, drops) = _growing(example, target), drops_so_far(example, target)
    if len(drops) < FIRST:
        return None
    doubled = 1 << (len(drops).bit_length() - 1)  # the ceiling is slow to compute, so only at powers of two
    if doubled not in growing.ceilings:
        growing.ceilings[doubled] = faithfulness_correlation.removal(masks[:doubled], drops[:doubled]).ceiling
    regression = example.checkpoint.config.regression  # a difference of logits has their unit
    output = float(example.explanation.record.logits[0, target]) if regression else None
    decidable = faithfulness_correlation.masks_are_informative(drops, output)
    return MaskDrops(masks, drops, growing.ceilings[doubled], len(drops) >= most(example), decidable)


def expected(example: Example) -> float:
    """Estimate the duration of the first masks [s]."""
    return faithfulness_correlation.seconds(example.checkpoint.model, example.explanation.preprocess.size, FIRST)


def measure_first(example: Example, target: int, progress: Callable[[float], object]) -> None:
    """Measure the first masks; finished batches are kept if the run is stopped."""
    growing = _growing(example, target)
    while len(growing.drops) < FIRST:
        measure_more(example, target, FIRST)
        progress(len(growing.drops) / FIRST)


def measure_more(example: Example, target: int, up_to: int, seed: int = 0, ends: Callable[[], bool] = bool) -> None:
    """Measure one batch of about a second; if the run is stopped, end at once and discard the batch.

    Args:
        up_to: total number of masks that is enough.
        seed: of the masks.
        ends: whether to discard the batch, called after every block of the model.
    """
    growing, patches = _growing(example, target, seed), math.prod(example.explanation.record.grid)
    model, size = example.checkpoint.model, example.explanation.preprocess.size
    with growing.measuring, suppress(InterruptedError):
        done = len(growing.drops)
        each = faithfulness_correlation.seconds(model, size, FIRST) / FIRST
        count = min(done + max(LEAST, int(STEP / max(each, 1e-6))), up_to)
        if count <= done:
            return
        masks = faithfulness_correlation.random_masks(patches, count, seed)

        def check(_: float) -> None:
            session.end_if_stopped()  # within the batch: after a stop, the next run already waits for the processors
            if ends():
                raise InterruptedError

        with pass_of(example):
            drops = faithfulness_correlation.score_drops(
                model,
                example.pixels,
                target,
                masks[done:],
                hook=example.hook,
                progress=check,
            )
        with growing.lock:
            growing.masks, growing.drops = masks, torch.cat([growing.drops, drops.cpu()])


def fitted(example: Example, target: int) -> Fit:
    """Fit the best map to the masks that were measured so far."""

    def work() -> BestMap:
        with pass_of(example):
            return BestMap.of(example.checkpoint.model, example.pixels, target, example.hook)

    known: BestMap = cached(("best map", example.key, target), work)
    masks = faithfulness_correlation.random_masks(len(known.relevance), most_for_best_map(example), FITTED)
    return known.fit(masks, drops_so_far(example, target, FITTED)[1])


def best_map(example: Example, target: int) -> Tensor:
    """Compute the best map from the masks that were measured so far: (N,), 0 for prefix tokens."""
    patches = fitted(example, target).weights.float()
    return shares(F.pad(patches, (len(example.explanation.record.prefix), 0)))


def measure_for_best_map(example: Example, target: int) -> None:
    """Measure the masks that the best map lacks, with a progress bar."""
    placeholder = st.empty()  # created in every run, so that later elements keep their positions
    while not fitted(example, target).complete:
        done, planned = len(drops_so_far(example, target, FITTED)[1]), most_for_best_map(example)
        placeholder.progress(done / planned, f"Best map: {done} of {planned} masks…")
        measure_more(example, target, planned, FITTED)
    placeholder.empty()
