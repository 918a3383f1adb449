"""The best map, which improves on the page while masks are measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st
from torch.nn import functional as F

from pages.components import viewer
from pages.links import session
from pages.looking import mask_drops
from pages.looking.controls.method_choice import Example, growing_name, pass_of
from pages.server.result_cache import cached
from vit.explain.faithfulness_correlation import FITTED
from vit.explain.kriging import MASKS, BestMap
from vit.explain.methods import shares
from vit.view.captions import format_duration
from vit.view.payload import pack_map

if TYPE_CHECKING:
    from torch import Tensor

BUTTON_ABOVE_SECONDS = 10.0  # longer measurements start with a button [s]


def weights(example: Example, target: int) -> Tensor:
    """Compute the map from the masks that were measured so far: (N,), 0 for prefix tokens."""

    def work() -> BestMap:
        with pass_of(example):
            return BestMap.of(example.checkpoint.model, example.pixels, target, example.hook)

    known: BestMap = cached(("best map", example.key, target), work)
    patches = known.fit(*mask_drops.drops_so_far(example, target, FITTED))
    return shares(F.pad(patches.float(), (len(example.explanation.record.prefix), 0)))


def measure_all(example: Example, target: int) -> None:
    """Measure the masks that are missing, with a progress bar."""
    placeholder = st.empty()  # created in every run, so that later elements keep their positions
    while (done := len(mask_drops.drops_so_far(example, target, FITTED)[1])) < MASKS:
        placeholder.progress(done / MASKS, f"Best map: {done} of {MASKS} masks…")
        mask_drops.measure_more(example, target, MASKS, FITTED)
    placeholder.empty()


@st.fragment
def show(example: Example, target: int) -> None:
    """Send the map to the viewer, and measure more masks while the page is visible, until they no longer help."""
    state, request = session.of(session.Explore), growing_name(example, target)
    line, feeder = st.empty(), st.container()
    done = len(mask_drops.drops_so_far(example, target, FITTED)[1])
    expected = mask_drops.expected(example) / mask_drops.FIRST * (MASKS - done)
    started = state.best_map == request or expected <= BUTTON_ABOVE_SECONDS
    if not started:
        with line.container(horizontal=True, vertical_alignment="center"):
            st.caption(f"This is AttnLRP. Masks make it truer: {MASKS} take {format_duration(expected)}.")
            if st.button("Measure them"):
                state.best_map, state.more_best, started = request, request, True

    def draw_progress() -> None:
        if started and done < MASKS:
            line.progress(done / MASKS, f"The map gets truer: {done} of {MASKS} masks.")
        elif started:
            line.caption(f"AttnLRP, corrected by {MASKS} masks.")

    draw_progress()
    if started and state.more_best == request and done < MASKS:
        mask_drops.measure_more(example, target, MASKS, FITTED)
        done = len(mask_drops.drops_so_far(example, target, FITTED)[1])
        draw_progress()
    state.more_best = ""

    def on_more() -> None:
        state.more_best = request

    with feeder:
        viewer.feed(
            "best feeder", pack_map(weights(example, target)), request, on_more if started and done < MASKS else None
        )
