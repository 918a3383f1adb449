"""Controls of page Explore for the checkpoint, its input size and the precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from pages.links import address, link_controls, navigation, session
from pages.links.page_links import CheckpointsLink, ExploreLink
from pages.looking import checkpoint_list, loading
from pages.looking.controls import input_size
from pages.looking.panels import checkpoint_facts, first_view, welcome
from pages.shared.escape import plain, with_code
from vit.checkpoints import families
from vit.checkpoints.hub import models as hub
from vit.errors import UserError
from vit.explain import self_check
from vit.images import samples
from vit.images.files import decode
from vit.model import cpu

if TYPE_CHECKING:
    from pages.streamlit_internals.types import DeltaGenerator
    from vit.checkpoints.checkpoint import Checkpoint
    from vit.explain.record import Precision
    from vit.view.first_view import FirstView


@st.cache_resource(show_spinner=False, max_entries=6)
def verified(identity: str, _checkpoint: Checkpoint) -> float:
    """Return the cached self-check of a checkpoint on the sample picture."""
    return self_check.verify(
        _checkpoint.model, _checkpoint.preprocess(decode.decode_image(samples.read(welcome.VIEW.sample)))
    )


def pick_checkpoint(notes: DeltaGenerator) -> Checkpoint:
    """Draw the control for a checkpoint, or the best one of a run; stop with a hint if there is none.

    Args:
        notes: visible container for warnings and missing input, because the controls are in a popover.
    """
    available = checkpoint_list.list_checkpoints()
    names = available.names
    if not names:
        notes.info(checkpoint_list.NO_CHECKPOINT)
        st.stop()

    linked = address.read(ExploreLink).checkpoint
    if linked and linked not in names and (cached := hub.find(linked)):
        address.change(ExploreLink, checkpoint=str(cached.name))
    elif linked and linked not in names and hub.parse(linked):
        with notes:
            st.info(f"{plain(linked)} is not here yet.")
            navigation.link("Fetch it", "checkpoints", CheckpointsLink(fetch=linked).to_query())
    elif linked and linked not in names:
        notes.info(f"There is no checkpoint {plain(linked)}. This is another one.")
    name = link_controls.select(
        "Checkpoint", "checkpoint", names, format_func=available.title, along=dict.fromkeys(("heads", "target", "off"))
    )
    info = available.about(name)
    for broken in available.every if not info.problem else [info]:
        if broken.problem and not broken.choices:
            place = notes if info.problem else st
            place.caption(f"{plain(broken.name)} cannot be opened. {plain(broken.problem)}")
    if info.problem and not info.choices:
        st.stop()
    stamp = loading.stamp(info.folder)
    heads = _chosen_heads(name)
    if info.choices and heads is None:
        with notes:
            st.info(with_code(info.problem))
            _pick_heads(name, info.choices, None)
        st.stop()
    try:
        with notes:  # the sidebar may be closed, and opening takes seconds
            checkpoint = loading.open_checkpoint(name, str(info.folder), stamp, heads)
    except UserError as error:  # usually a link with an impossible number of heads
        with notes:
            st.error(with_code(str(error)))
            if info.choices:
                _pick_heads(name, info.choices, heads)
        if info.choices or heads is None:
            st.stop()
        checkpoint = loading.open_checkpoint(name, str(info.folder), stamp, None)
    checkpoint_facts.show(checkpoint, info)
    show_more()
    checkpoint_facts.offer_conversion(checkpoint)
    with notes:
        checkpoint_facts.show_guesses(checkpoint)
    if "heads" in checkpoint.assumed:  # if this assumption is wrong, every map is wrong
        with notes:
            st.warning(with_code(checkpoint.assumed["heads"]))
            _pick_heads(name, families.tensor_shapes.possible_heads(checkpoint.config.dim), checkpoint.config.heads)
    checkpoint_facts.show_self_check(checkpoint, verified(checkpoint.identity, checkpoint))
    return checkpoint


def show_more() -> None:
    """Draw a link to recommended checkpoints."""
    navigation.link("More checkpoints", "checkpoints", {}, help="DINOv2, DINOv3, CLIP, SigLIP, MAE and your own.")


def _chosen_heads(name: str) -> int | None:
    """Return the number of attention heads from the link or from earlier in the session; None if never selected."""
    linked = address.read(ExploreLink).heads
    if linked is not None:
        return linked
    earlier = session.of(session.Visit).heads.get(name)
    if earlier is not None:
        address.change(ExploreLink, heads=earlier)
    return earlier


def _pick_heads(name: str, choices: tuple[int, ...], current: int | None) -> None:
    """Draw the control for the number of attention heads of a checkpoint whose files do not contain it."""

    def remember(heads: int) -> None:
        address.change(ExploreLink, heads=heads)
        session.of(session.Visit).heads[name] = heads

    current = current if current in choices else None
    st.selectbox(
        "Attention heads",
        choices,
        None if current is None else choices.index(current),
        **link_controls.bound("heads", current, remember, (name, choices)),
        placeholder="Choose",
        help="The weights do not contain it. A wrong number loads without error and makes every map wrong: look it up "
        "where the file comes from.",
    )


def pick_size(checkpoint: Checkpoint) -> tuple[tuple[int, int], Precision]:
    """Draw the controls for the input size and the precision; return (height, width) and the precision."""
    return input_size.pick(checkpoint, "Input size", "size"), _pick_precision()


def _pick_precision() -> Precision:
    """Draw the toggle for bfloat16 if the processor supports it."""
    if address.read(ExploreLink).precision != "bfloat16" and not cpu.has_bfloat16():
        return "float32"
    rounded = link_controls.toggle(
        "Fast, slightly inexact (bfloat16)",
        "precision",
        "bfloat16",
        help="Rounds the operands of every product to 8 bits. Probabilities and weights change in the second or third "
        "digit. If off, everything is computed in float32.",
    )
    return "bfloat16" if rounded else "float32"


def show_stored_model(view: FirstView) -> None:
    """Draw `pick_checkpoint` and `pick_size` disabled, for the shipped checkpoint before PyTorch is loaded."""
    checkpoint = view.checkpoint
    st.selectbox("Checkpoint", [checkpoint.name], disabled=True)
    checkpoint_facts.show(checkpoint, checkpoint)
    show_more()
    st.popover("For another library", width="stretch", disabled=True)
    checkpoint_facts.show_self_check(checkpoint, view.error)
    option = f"{input_size.pixels(view.size)} px · {view.explanation.record.tokens:,} tokens"
    st.selectbox("Input size", [option], disabled=True)
    first_view.show_waiting()
