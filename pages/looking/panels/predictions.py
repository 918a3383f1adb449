"""Predictions: the most probable classes, and the model's input picture."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from pages.shared import bars
from pages.shared.escape import plain
from vit.checkpoints import abstention
from vit.view.prediction import FEW, answer, written

if TYPE_CHECKING:
    from pages.components.viewer import Answers
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
    """Show what the model says in one short sentence, an answer in bold; `bars_of` has the probabilities."""
    words, label, end = answer(checkpoint, explanation)
    if words:
        place = place.container(key="numbers") if checkpoint.estimates else place
        place.markdown(f"{plain(words)}**{plain(label)}**{end}" if label else plain(words))


def bars_of(checkpoint: Checkpoint | Model, explanation: Explanation | StoredExplanation) -> Answers | None:
    """Return the most probable classes for the viewer; None for a model without classes."""
    if not explanation.predictions:
        return None
    count = len(checkpoint.labels)
    note = f"It knows {count:,} class{'es' if count > 1 else ''}."
    if checkpoint.estimates:
        few = [(p.label, 0.0, written(checkpoint, p.probability)) for p in explanation.predictions[:FEW]]
        return {"bars": few, "says": "".join(answer(checkpoint, explanation)), "note": _class_count(checkpoint)}
    if abstention.is_sure(explanation.logit, checkpoint.facts) is False:
        note = f"It compares the {count:,} classes that it knows, and none fits well."
    # Rounded, as the stored first view and the model's own answer on another machine differ in the last digits.
    return {
        "bars": [(p.label, round(p.probability, 4)) for p in explanation.predictions[: abstention.NAMED]],
        "says": "".join(answer(checkpoint, explanation)),
        "note": note,
    }


def show(checkpoint: Checkpoint | Model, explanation: Explanation | StoredExplanation) -> None:
    """Draw the most probable classes as bars, beside the model's input."""
    (chart, view), top = st.columns([3, 1]), explanation.predictions[:TOP]
    if checkpoint.estimates or not explanation.predictions:
        none = "This model has no classes of its own. Add some below, or view its attention without classes."
        chart.info(plain(f"{''.join(answer(checkpoint, explanation))} {_class_count(checkpoint)}") if top else none)
        _show_input(view, explanation)
        return
    names = ", ".join(f"{p.label} {p.probability:.0%}" for p in top)
    with chart:
        bars.show([bars.Bar(p.label, p.probability, p == top[0]) for p in top], f"Predictions: {names}")
        st.caption(plain(f"{_class_count(checkpoint)} {_sureness(checkpoint)}"))
    _show_input(view, explanation)


def _class_count(checkpoint: Checkpoint | Model) -> str:
    """Describe among which classes the model chooses."""
    count = len(checkpoint.labels)
    if checkpoint.estimates:
        return "Numbers without probabilities, in a unit that is not known."
    if checkpoint.custom_classes is not None:
        shared = f"The probabilities of these {count:,} classes sum to 1, even if none of them is right."
        shared = shared if count > 1 else "With a single class its probability is always 100%: add another to compare."
        by_itself, alike = "Each class has its own probability.", "100% means that the model sees no difference."
        return {"softmax": shared, "sigmoid": by_itself, "cosine": alike}[checkpoint.custom_classes.activation]
    if count == 1:
        return "It has one output, a binary classification: 50% is undecided."
    if checkpoint.config.multi_label:
        return f"It has {count:,} classes. Each class has its own probability."
    return f"It has {count:,} classes; for everything else it names the most similar one."


def _sureness(checkpoint: Checkpoint | Model) -> str:
    """Describe when an answer counts as sure."""
    threshold = abstention.threshold_of(checkpoint.facts)
    if threshold is None:
        return "Nobody has measured when it is sure."
    if threshold == abstention.NEVER:
        return "It is never sure."
    measured = checkpoint.facts.get("sure_on", "source not recorded")
    return f"It is sure if the best class fits well by itself, with a logit of {threshold:.4g} or more: {measured}."


def _show_input(container: DeltaGenerator, explanation: Explanation | StoredExplanation) -> None:
    """Draw the model's input, enlarged."""
    width, height = explanation.input_image.size
    with container:
        st.image(
            explanation.input_image.resize((WIDTH, WIDTH * height // width), 0), width=WIDTH, alt="The model's input"
        )
        st.caption(f"The model's input: {width} × {height} px")
