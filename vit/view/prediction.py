"""What a model predicts, apart from `vit.view.explanation`, so that the stored first view needs no torch."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from vit.checkpoints.abstention import is_sure, percent, perhaps

if TYPE_CHECKING:
    from vit.checkpoints.checkpoint import Checkpoint
    from vit.view import first_view
    from vit.view.explanation import Explanation

_FEW = 8  # outputs that are listed if they are no classes; a projection to a shared space has hundreds


class Prediction(NamedTuple):
    """A class and its predicted probability, 0 to 1."""

    label: str
    probability: float


def answer(
    checkpoint: Checkpoint | first_view.Model, explanation: Explanation | first_view.Explanation
) -> tuple[str, str, str]:
    """State the answer in one sentence, in three parts: its words up to the label, the label, and its end.

    The label is only set if the model stands by it; all parts are "" without outputs.
    """
    if not explanation.predictions:
        record = getattr(explanation, "record", None)  # the stored first view has predictions
        outputs = [] if record is None else record.logits[0].tolist()
        numbers = ", ".join(f"{value:.4g}" for value in outputs)
        return (f"It estimates {numbers}." if 0 < len(outputs) <= _FEW else "", "", "")
    if is_sure(explanation.logit, checkpoint.facts) is False:
        return perhaps(explanation.predictions, shares=False), "", ""
    label, share = explanation.predictions[0].label, percent(explanation.predictions[0].probability)
    if checkpoint.custom_classes is not None and checkpoint.custom_classes.activation == "none":  # a similarity
        return f"{share} {label}", "", ""
    return "It says ", label, f" ({share})"
