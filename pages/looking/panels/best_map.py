"""The best map, which improves on the page while masks are measured."""

import streamlit as st

from pages.components import viewer
from pages.links import session
from pages.looking import mask_drops
from pages.looking.controls.method_choice import Example, growing_name
from vit.explain.faithfulness_correlation import FITTED
from vit.explain.settings import BEST_MAP_MASKS
from vit.view.captions import format_duration
from vit.view.payload import pack_map

BUTTON_ABOVE_SECONDS = 10.0  # longer measurements start with a button [s]


@st.fragment
def show(example: Example, target: int) -> None:
    """Send the map to the viewer, and measure more masks while the page is visible, until they no longer help."""
    state, request = session.of(session.Explore), growing_name(example, target)
    line, feeder = st.empty(), st.container()
    done = len(mask_drops.drops_so_far(example, target, FITTED)[1])
    expected = mask_drops.expected(example) / mask_drops.FIRST * (BEST_MAP_MASKS - done)
    started = state.best_map == request or expected <= BUTTON_ABOVE_SECONDS
    if not started:
        with line.container(horizontal=True, vertical_alignment="center"):
            st.caption(f"This is AttnLRP. Masks make it truer: {BEST_MAP_MASKS} take {format_duration(expected)}.")
            if st.button("Measure them"):
                state.best_map, state.more_best, started = request, request, True

    def draw_progress() -> None:
        if started and done < BEST_MAP_MASKS:
            line.progress(done / BEST_MAP_MASKS, f"The map gets truer: {done} of {BEST_MAP_MASKS} masks.")
        elif started:
            line.caption(f"AttnLRP, corrected by {BEST_MAP_MASKS} masks.")

    draw_progress()
    if started and state.more_best == request and done < BEST_MAP_MASKS:
        mask_drops.measure_more(example, target, BEST_MAP_MASKS, FITTED)
        done = len(mask_drops.drops_so_far(example, target, FITTED)[1])
        draw_progress()
    state.more_best = ""

    def on_more() -> None:
        state.more_best = request

    improved = pack_map(mask_drops.best_map(example, target))
    with feeder:
        viewer.feed("best feeder", improved, request, on_more if started and done < BEST_MAP_MASKS else None)
