"""A picture, or a patch of one, that a checkpoint compares others with, as the one class that it is asked about."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import streamlit as st

from pages.links import address, link_controls, session
from pages.links.page_links import ExploreLink
from pages.server import pass_queue, uploaded_pictures
from pages.server.result_cache import cached
from pages.shared import button_actions
from vit.explain.answers import similarity
from vit.images import decode, samples
from vit.view import first_view

if TYPE_CHECKING:
    from vit.checkpoints.answers import Answers
    from vit.checkpoints.checkpoint import Checkpoint
    from vit.explain.cost import Size

PIN_HELP = "A class is then what looks like this patch: click a patch of the picture to pin it, and press."


def pick(checkpoint: Checkpoint, prefix: str, target: str, size: Size | None, of_pinned: bool) -> Answers:
    """Let the person choose a sample or their own picture, or a patch of it, that the model compares others with.

    Args:
        prefix: of its names in links.
        target: name of the class there, which goes with another choice.
        size: (height, width) of the model's input [px]; None for the checkpoint's own.
        of_pinned: a patch that is pinned in the viewer of page Explore can be taken.
    """
    like, name, patch = (f"{prefix}{part}" for part in ("like", "name", "patch"))
    titles = {one: sample.title for one, sample in samples.SAMPLES.items()}
    upload, linked = session.of(session.Explore).upload, address.text(like)
    own = {uploaded_pictures.key_of(upload.data): (upload.name, upload.data)} if upload else {}
    if linked not in titles and linked not in own and (data := uploaded_pictures.find(linked)) is not None:
        own[linked] = address.text(name) or "picture", data
    titles |= {key: title for key, (title, _) in own.items()}
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
        st.button("Take the pinned patch", on_click=_take_pinned, args=(checkpoint, size), help=PIN_HELP)
    file, data = own.get(chosen) or (chosen, samples.read(chosen))
    at = f", patch {place[0] + 1}, {place[1] + 1}" if place else ""

    def work() -> Answers:
        with pass_queue.reserved(checkpoint, size or checkpoint.preprocess.size):
            answers = similarity.answers_from_picture(
                checkpoint, decode.decode_image(data), place, f"like {titles[chosen]}{at}", size=size
            )
        return replace(answers, facts={**answers.facts, "like": file, "sample": chosen not in own})

    made: Answers = cached(("answers", checkpoint.identity, uploaded_pictures.key_of(data), file, place, size), work)
    return made


def _patch(text: str) -> tuple[int, int] | None:
    """Row and column, from 0, of a link's text; None where that makes no sense."""
    row, _, col = text.partition(",")
    numbers = row, col
    if not all(number.isascii() and number.isdecimal() and len(number) < 4 for number in numbers):
        return None
    return int(row), int(col)


def _take_pinned(checkpoint: Checkpoint, size: Size | None) -> None:
    """From the button: ask for likeness to the patch that is pinned in the viewer, of the picture that is shown."""
    link, side = address.read(ExploreLink), checkpoint.config.patch_size
    height, width = (length // side for length in size or checkpoint.preprocess.size)
    token = link.viewer.get("token", "") if link.viewer.get("pinned") else ""
    place = int(token) - len(checkpoint.config.prefix) if token.isdecimal() and len(token) < 6 else -1
    state = session.of(session.Explore)
    if state.source == "camera":
        button_actions.refuse(
            "A camera's picture is not stored. Save it and upload it, to ask for likeness to its patches."
        )
    elif not 0 <= place < height * width:
        button_actions.refuse("No patch is pinned. Click one on the picture first.")
    else:
        own = state.upload if state.source == "upload" else None
        key = uploaded_pictures.key_of(own.data) if own else link.sample or first_view.SAMPLE
        patch = f"{place // width},{place % width}"
        classes = replace(link.classes, like=key, name=own.name if own else "", patch=patch)
        address.change(ExploreLink, classes=classes, target="")
