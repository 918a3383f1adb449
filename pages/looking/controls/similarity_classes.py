"""Similarity to a picture, or to a patch of one, as the only class of a checkpoint."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import streamlit as st

from pages.links import address, link_controls, session
from pages.links.page_links import ExploreLink
from pages.server import pass_queue, uploaded_pictures
from pages.server.result_cache import cached
from pages.shared import button_actions
from vit.explain.classes import similarity
from vit.images import samples
from vit.images.files import decode
from vit.view import first_view

if TYPE_CHECKING:
    from vit.checkpoints.checkpoint import Checkpoint
    from vit.checkpoints.custom_classes import CustomClasses
    from vit.model.cost import Size

PIN_HELP = "The class is then similarity to this patch. Click a patch of the picture to pin it, then press this button."


def pick(checkpoint: Checkpoint, prefix: str, target: str, size: Size | None, of_pinned: bool) -> CustomClasses:
    """Draw the controls for the reference, a sample or an own picture or a patch of it, and return its class.

    Args:
        prefix: prefix of the query parameters.
        target: query parameter of the class, which another reference removes.
        size: (height, width) of the model's input [px]; None for the checkpoint's own.
        of_pinned: whether the patch that is pinned in the viewer of page Explore can be used.
    """
    like, name, patch = (f"{prefix}{part}" for part in ("like", "name", "patch"))
    titles = {one: sample.title for one, sample in samples.SAMPLES.items()}
    upload, linked = session.of(session.Explore).upload, address.text(like)
    uploads = {uploaded_pictures.key_of(upload.data): (upload.name, upload.data)} if upload else {}
    if linked not in titles and linked not in uploads and (data := uploaded_pictures.find(linked)) is not None:
        uploads[linked] = address.text(name) or "picture", data
    titles |= {key: title for key, (title, _) in uploads.items()}
    chosen = link_controls.select(
        "Like", like, list(titles), format_func=titles.get, along={name: None, patch: None, target: None}
    )
    place = _patch(address.text(patch))
    if place:
        st.button(
            f"Its patch {place[0] + 1}, {place[1] + 1}: take the whole picture",
            key=f"{prefix}whole picture",
            on_click=address.rewrite,
            args=({patch: None, target: None},),
        )
    elif of_pinned:
        st.button("Take the pinned patch", on_click=_use_pinned, args=(checkpoint, size), help=PIN_HELP)
    file, data = uploads.get(chosen) or (chosen, samples.read(chosen))
    at = f", patch {place[0] + 1}, {place[1] + 1}" if place else ""

    def work() -> CustomClasses:
        with pass_queue.reserved(checkpoint, size or checkpoint.preprocess.size):
            custom = similarity.class_from_picture(
                checkpoint, decode.decode_image(data), place, f"like {titles[chosen]}{at}", size=size
            )
        return replace(custom, facts={**custom.facts, "like": file, "sample": chosen not in uploads})

    custom: CustomClasses = cached(
        ("classes", checkpoint.identity, uploaded_pictures.key_of(data), file, place, size), work
    )
    return custom


def _patch(text: str) -> tuple[int, int] | None:
    """Parse "ROW,COL" from a link, counted from 0; None if it is invalid."""
    row, _, col = text.partition(",")
    numbers = row, col
    if not all(number.isascii() and number.isdecimal() and len(number) < 4 for number in numbers):
        return None
    return int(row), int(col)


def _use_pinned(checkpoint: Checkpoint, size: Size | None) -> None:
    """Use the patch that is pinned in the viewer as the reference; a button's callback."""
    link, side = address.read(ExploreLink), checkpoint.config.patch_size
    height, width = (length // side for length in size or checkpoint.preprocess.size)
    token = link.viewer.get("token", "") if link.viewer.get("pinned") else ""
    place = int(token) - len(checkpoint.config.prefix) if token.isdecimal() and len(token) < 6 else -1
    state = session.of(session.Explore)
    if state.source == "camera":
        button_actions.report_failure(
            "A camera's picture is not stored. Save it and upload it to measure similarity to its patches."
        )
    elif not 0 <= place < height * width:
        button_actions.report_failure("No patch is pinned. Click one on the picture first.")
    else:
        own = state.upload if state.source == "upload" else None
        key = uploaded_pictures.key_of(own.data) if own else link.sample or first_view.SAMPLE
        patch = f"{place // width},{place % width}"
        classes = replace(link.classes, like=key, name=own.name if own else "", patch=patch)
        address.change(ExploreLink, classes=classes, target="")
