"""Predictions: the most probable classes, and the model's input picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from pages.panels import unlike_training, welcome
from pages.shared import bars
from pages.shared.escape import plain

if TYPE_CHECKING:
    from pages.streamlit_internals.types import DeltaGenerator
    from vit.checkpoints.checkpoint import Checkpoint
    from vit.view.explanation import Explanation
    from vit.view.first_view import Explanation as StoredExplanation
    from vit.view.first_view import Model

TOP = 5  # predictions shown
WIDTH = 96  # width of the model's input picture [px]


def show_top(
    place: DeltaGenerator, checkpoint: Checkpoint | Model, explanation: Explanation | StoredExplanation
) -> None:
    """Show the most probable class in one line, and whether it may be a guess."""
    if explanation.predictions:
        best = explanation.predictions[0]
        guess = " · may be a guess" if unlike_training.is_atypical(checkpoint, explanation) else ""
        place.markdown(f"**{plain(best.label)}** {best.probability:.1%}{guess}")


def show(checkpoint: Checkpoint | Model, explanation: Explanation | StoredExplanation) -> None:
    """Draw the most probable classes as bars, beside the model's input."""
    chart, view = st.columns([3, 1])
    if not explanation.predictions:
        chart.info("This model has no classes of its own. Add some below, or view its attention without classes.")
        _show_input(view, explanation)
        return
    top = explanation.predictions[:TOP]
    names = ", ".join(f"{p.label} {p.probability:.0%}" for p in top)
    with chart:
        bars.show([bars.Bar(p.label, p.probability, p == top[0]) for p in top], f"Predictions: {names}")
        unlike_training.show(checkpoint, explanation)
    _show_input(view, explanation)
    if welcome.is_shown(checkpoint.name):
        st.markdown(welcome.CAPTION)


def _show_input(container: DeltaGenerator, explanation: Explanation | StoredExplanation) -> None:
    """Draw the model's input, enlarged."""
    width, height = explanation.input_image.size
    with container:
        st.image(
            explanation.input_image.resize((WIDTH, WIDTH * height // width), 0), width=WIDTH, alt="What the model saw"
        )
        st.caption(f"What it saw: {width} × {height} px")
