"""The best map, which improves on the page while masks are measured."""

import streamlit as st

from pages.components import viewer
from pages.links import session
from pages.looking import mask_drops
from pages.looking.controls.method_choice import Example, growing_name
from pages.server import pass_queue
from pages.streamlit_internals import sessions
from vit import view
from vit.explain.faithfulness_correlation import FITTED
from vit.view.captions import format_duration
from vit.view.payload import pack_map

BUTTON_ABOVE_SECONDS = 10.0  # longer measurements start with a button [s]
SHOWN_FROM = 16  # masks from which the faithfulness is shown; fewer leave it open


@st.fragment
def show(example: Example, target: int) -> None:
    """Send the map to the viewer, and measure more masks while the page is visible, until they no longer help."""
    state, request = session.of(session.Explore), growing_name(example, target)
    row, feeder = st.container(horizontal=True, vertical_alignment="center"), st.container()
    most, fit = mask_drops.most_for_best_map(example), mask_drops.fitted(example, target)
    expected = mask_drops.expected(example) / mask_drops.FIRST * (most - fit.masks)
    started = state.best_map == request or expected <= BUTTON_ABOVE_SECONDS

    going = started and not fit.complete and state.stopped_best != request

    def press(stopped: str) -> None:
        state.best_map, state.more_best, state.stopped_best = request, request, stopped

    def on_more() -> None:
        state.more_best = request

    def draw_line() -> None:
        error = 2 * (1 - fit.correlation**2) / max(1, fit.masks - 1) ** 0.5
        about = f": faithfulness about {fit.correlation:.2f} ± {error:.2f}, of at most {fit.ceiling:.2f}"
        about *= fit.masks >= SHOWN_FROM
        if fit.complete:
            line.caption(f"AttnLRP, corrected by {fit.masks} masks{about}.")
        elif started:
            line.progress(fit.masks / most, f"{fit.masks} of up to {most} masks{about}")
        else:
            cost = view.cost(example.checkpoint, example.explanation.preprocess.size)
            memory = f"{pass_queue.WITH_GRADIENTS * cost.memory / 1e9:.1f} GB of memory"
            line.caption(f"This is AttnLRP. Masks make it truer: {most} take {format_duration(expected)} and {memory}.")

    line, button = row.empty(), row.empty()  # only now, as they would blink during the fit
    draw_line()
    if not fit.complete:  # one key, so that the button keeps the focus
        label = "Stop" if going else "Go on" if started else "Measure them"
        button.button(label, key="best map", on_click=press, args=(request if going else "",))
    if going and state.more_best == request:
        mask_drops.measure_more(example, target, most, FITTED, sessions.runs_again)
        fit = mask_drops.fitted(example, target)
        draw_line()
        if fit.complete:
            button.empty()
    state.more_best *= sessions.runs_again()  # the next run measures a batch that it interrupted
    improved = pack_map(mask_drops.best_map(example, target))
    with feeder:
        viewer.feed("best feeder", improved, request, on_more if going and not fit.complete else None)
