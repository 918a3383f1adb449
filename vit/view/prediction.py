"""What a model predicts, apart from `vit.view.explanation`, so that the stored first view needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vit.checkpoints.abstention import is_sure, percent, perhaps

if TYPE_CHECKING:
    from vit.checkpoints.checkpoint import Checkpoint
    from vit.view import first_view
    from vit.view.explanation import Explanation

FEW = 8  # estimated numbers that are listed; a model of landmarks has hundreds


class Prediction(NamedTuple):
    """A class and its predicted probability, 0 to 1; or an output and its number."""

    label: str
    probability: float


def answer(
    checkpoint: Checkpoint | first_view.Model, explanation: Explanation | first_view.Explanation
) -> tuple[str, str, str]:
    """State the answer in one sentence, in three parts: its words up to the label, the label, and its end.

    The label is only set if the model stands by it; all parts are "" without outputs.
    """
    if not explanation.predictions:
        return "", "", ""
    if checkpoint.estimates:
        few = ", ".join(f"{name} = {written(checkpoint, value)}" for name, value in explanation.predictions[:FEW])
        return f"It estimates {few}{', …' if len(explanation.predictions) > FEW else ''}.", "", ""
    if is_sure(explanation.logit, checkpoint.facts) is False:
        return perhaps(explanation.predictions, shares=False), "", ""
    label, share = explanation.predictions[0].label, percent(explanation.predictions[0].probability)
    if checkpoint.custom_classes is not None and checkpoint.custom_classes.activation == "cosine":
        return f"{share} {label}", "", ""
    return "It says ", label, f" ({share})"


def written(checkpoint: Checkpoint | first_view.Model | None, value: float, spec: str = ".1%") -> str:
    """Format an output: a probability by `spec`, a number without probabilities by its size."""
    if checkpoint is None or not checkpoint.estimates:
        return format(value, spec)
    return (f"{value:,.0f}" if 1e4 <= abs(value) < 1e15 else f"{value:.4g}").replace("-", "−")
