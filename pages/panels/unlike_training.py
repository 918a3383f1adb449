"""Out-of-distribution warning beside the prediction."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import streamlit as st

from pages.server import pass_queue
from pages.server.result_cache import cached
from pages.shared.escape import plain
from vit.explain import ood

if TYPE_CHECKING:
    from vit.checkpoints.checkpoint import Checkpoint
    from vit.view.explanation import Explanation

FEW_CLASSES = 20  # with at most so many classes, most pictures show something else
METHOD = (
    "A picture is unlike known ones when its patches after the first block are far from theirs (Mahalanobis distance) "
    "and its logits are small (energy), more so than in 90 % of them."
)


def assess(checkpoint: Checkpoint, explanation: Explanation) -> tuple[ood.Reference, ood.Atypicality] | None:
    """Return the reference statistics and the picture's out-of-distribution score; None if either is not available."""
    if explanation.input_image.size[::-1] != checkpoint.preprocess.size:
        return None  # reference scores were measured at the checkpoint's own size

    def work() -> tuple[ood.Reference, ood.Atypicality] | None:
        reference = ood.read(checkpoint)
        if reference is None:
            return None
        pixels = explanation.preprocess(explanation.picture)
        with pass_queue.reserved(checkpoint, explanation.preprocess.size):
            return reference, reference.assess(float(reference.score(checkpoint.model, pixels)))

    file = checkpoint.path / ood.FILE
    stamp = file.stat().st_mtime_ns if file.exists() else 0
    return cached(("unlike", checkpoint.identity, stamp, explanation.record.logits.numpy().tobytes()), work)


def is_atypical(checkpoint: Any, explanation: Any) -> bool:
    """Whether the picture is far from the training data."""
    judgement = assess(checkpoint, explanation)
    return judgement is not None and judgement[1].known <= ood.ALARM_SHARE


def show(checkpoint: Any, explanation: Any) -> None:
    """Show the number of classes, and a warning if the picture is far from the training data."""
    count, judgement = len(checkpoint.labels), assess(checkpoint, explanation)
    caption = f"It knows {count:,} classes" + ("; all else is a guess." if count <= FEW_CLASSES else ".")
    if checkpoint.answers is not None:
        shared = f"It shares its answer among these {count:,}, whether one is right or none."
        shared = shared if count > 1 else "With one class alone its answer is always 100 %: name another to compare."
        by_itself, alike = "Each class has its own probability.", "100 % means that the model sees no difference."
        caption = {"softmax": shared, "sigmoid": by_itself, "none": alike}[checkpoint.answers.activation]
    elif count == 1:
        caption = "It has one output, a yes or no: 50 % is undecided."
    elif checkpoint.config.multi_label:
        caption += " Each class has its own probability."
    if judgement is None:
        st.caption(caption)
        return
    reference, unlike = judgement
    if unlike.known <= ood.ALARM_SHARE:
        others = "" if unlike.others is None else f", compared with {unlike.others:.0%} of photos of other things"
        st.warning(
            plain(
                f"This picture is unlike those that the model learnt from: only {unlike.known:.0%} of similar test "
                f"pictures are as unusual{others}. “{explanation.predictions[0].label}” may be a guess."
            )
        )
    tried = f"Tried on test pictures of {reference.data}"
    if reference.detection_rate is not None:
        caption += (
            " A warning marks pictures that are unlike those that it learnt from. It detects "
            f"{reference.detection_rate:.0%} of photos of other things and misses the rest."
        )
        tried += f" and on {reference.other_data}"
    st.caption(plain(caption), help=plain(f"{tried}, at the model's own input size. {METHOD}"))
