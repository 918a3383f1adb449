"""Facts about a checkpoint: a table, assumptions, its model card, and conversion for other libraries."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import streamlit as st

from pages.shared import bars
from pages.shared.escape import plain, with_code
from vit.checkpoints import convert, manage
from vit.confidence import figure, recorded

if TYPE_CHECKING:
    from vit.checkpoints.checkpoint import Checkpoint, CheckpointInfo
    from vit.view.first_view import Model

NAMED_CLASSES = 20  # list class names up to this number of classes
# Assumptions that an answer depends on, which are stated in full beside it.
_DECISIVE = ("head", "outputs", "pooler", "pool", "forward", "labels")
_FRONT_MATTER = re.compile(r"\A---\n.*?\n---\n+", re.DOTALL)


def show(checkpoint: Checkpoint | Model, info: CheckpointInfo | Model) -> None:
    """Show a table of facts, assumptions, and the model card."""
    config, facts = checkpoint.config, info.facts
    height, width = config.image_size
    rows = {
        "Trained at": f"{width} × {height} px",
        "Patches": f"{config.grid[0]} × {config.grid[1]} of {config.patch_size} px",
        "Blocks × heads": f"{config.depth} × {config.heads}",
        "Width": str(config.dim),
        "Parameters": f"{checkpoint.params / 1e6:.2f} M",
        "Outputs" if checkpoint.estimates else "Classes": str(len(checkpoint.labels) or "none"),
    }
    if info.family and info.family != "saved":
        rows["File from"] = info.family
    key = "accuracy" if recorded(facts) else "validation_accuracy"
    if measured := recorded(facts, key):
        rows["Test accuracy" if key == "accuracy" else "Validation accuracy"] = figure(*measured)
    st.html(bars.facts(rows))
    if isinstance(measured_on := facts.get(f"{key}_on"), str):
        st.caption(plain(f"Accuracy on {measured_on[:300]}."))
    if 0 < len(checkpoint.labels) <= NAMED_CLASSES and "labels" not in checkpoint.assumed:
        noun = "outputs" if checkpoint.estimates else "classes"
        st.caption(f"Its {noun}: {', '.join(map(plain, checkpoint.labels))}.")
    if assumed := {field: why for field, why in checkpoint.assumed.items() if field != "heads"}:
        with st.popover(f"Assumed: {', '.join(assumed)}", width="stretch"):
            for field, why in assumed.items():
                st.caption(f"**{plain(str(field))}**: {with_code(str(why))}")
    if checkpoint.card:
        with st.popover("Model card", width="stretch"):
            st.code(_FRONT_MATTER.sub("", checkpoint.card), language="markdown", wrap_lines=True)


def show_guesses(checkpoint: Checkpoint) -> None:
    """State beside the answer what is only guessed about the model."""
    others = {field: why for field, why in checkpoint.assumed.items() if field != "heads"}  # it has a control
    decisive = _DECISIVE if checkpoint.config.num_classes else ("left_out", "labels", "forward")
    stated = [with_code(others.pop(field)) for field in decisive if field in others]
    if others:
        stated.append(f"Also assumed: {', '.join(plain(field.replace('_', ' ')) for field in others)}.")
    if stated:
        st.caption(" ".join(stated))


def offer_conversion(checkpoint: Checkpoint) -> None:
    """Offer the checkpoint in the format of another library, or show why it cannot be converted."""
    popover = st.popover("For another library", width="stretch", key="conversion", on_change="rerun")
    if not popover.open:  # mapping all tensor names for four libraries is slow
        return
    with popover:
        to = st.selectbox("Library", get_args(convert.To), key="library")
        if problem := convert.obstacle(checkpoint, to):
            st.info(with_code(problem))
            return
        name = checkpoint.path.name + convert.SUFFIXES.get(to, (f"-{to}.zip",))[0]
        st.download_button(
            "Download",
            lambda: manage.converted(checkpoint, to)[1],
            name,
            "application/octet-stream",
            key=f"convert {to}",
            on_click="ignore",
            type="primary",
        )
        st.code(
            "\n".join(convert.how_to_open(checkpoint, Path(checkpoint.path.name), to)),
            language="python",
            wrap_lines=True,
        )


def show_self_check(checkpoint: Checkpoint | Model, error: float) -> None:
    """Show the numerical error between the displayed attention and the model's own forward pass."""
    cannot = " It cannot tell whether the number of heads is right." if "heads" in checkpoint.assumed else ""
    st.caption(
        f"Self-check: the attention shown reproduces the output of every block, to {error:.0e}.{cannot}",
        help="Measured on a sample picture: the difference between block outputs computed from the displayed attention "
        "and those of the model's own forward pass, relative to the largest value. Up to 1e-05 is rounding. It detects "
        "a wrong scale or order of the attention, but not a wrong number of heads.",
    )
