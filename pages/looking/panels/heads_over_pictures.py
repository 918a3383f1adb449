"""Statistics of heads over many pictures: selection, expected cost, and a computation that can be stopped."""

import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import streamlit as st

from pages.links import session
from pages.links.session import Progress
from pages.looking.controls import picture_files
from pages.looking.controls.method_choice import Example, pass_of
from pages.shared import datasets, long_passes, trained_models
from pages.shared.escape import with_code
from vit.data.pictures import Pictures
from vit.errors import UserError
from vit.explain.head_census import (
    CENSUS_PICTURES,
    Tally,
    batch_size,
    decode_files,
    pictures_of,
    preprocess_pictures,
    seconds,
    tally,
)
from vit.images.preprocess import Preprocess

UPLOAD = "upload"
SLICE = 0.7  # duration of work between two checks for Stop [s]
PAUSE = 0.1  # pause between two slices [s]


class Part(NamedTuple):
    """A batch of pictures.

    Attributes:
        name: identifies the pictures.
        pictures: number of pictures.
        read: decodes them as a `vit.explain.head_census.DecodedFiles`.
    """

    name: str
    pictures: int
    read: Callable[[], Any]


@st.cache_resource(show_spinner=False, max_entries=1000)
def cached_tally(
    identity: str, size: tuple[int, int], name: str, _example: Example, _part: Part
) -> tuple[Tally, tuple[str, ...]]:
    """Compute the tally of a batch, and list unreadable pictures."""
    opened = _part.read()
    with pass_of(_example):
        return tally(_example.checkpoint.model, opened.pixels), opened.unreadable


@st.cache_resource(show_spinner="Reading the pictures…", max_entries=4)
def read_test_pictures(spec: str, root: str, stamp: int, preprocess: str, _preprocess: Preprocess) -> Pictures:
    """Cached `vit.explain.head_census.pictures_of`."""
    return pictures_of(spec, _preprocess, root=Path(root), workers=0)


def show(example: Example) -> Tally | None:
    """Draw the controls and the progress; return the tally once it is computed."""
    source = pick_source(example)
    try:
        parts = uploaded(example) if source == UPLOAD else dataset_parts(example, source)
    except UserError as error:
        st.error(with_code(str(error)))
        return None
    progress = started(example, parts)
    if progress is None:
        return None
    count = sum(part.pictures for part in parts)
    if progress.done < len(parts) and not progress.stopped:
        compute_slice(example, parts, count, progress)
        return None
    return result(example, parts[: progress.done], count, progress)


def pick_source(example: Example) -> str:
    """Draw the control for uploads or the test pictures of a dataset; the checkpoint's own dataset comes first."""
    titles, learnt = datasets.here(), training_dataset(example.checkpoint)
    order = sorted([UPLOAD, *titles], key=lambda spec: spec != learnt)

    def option_label(spec: str) -> str:
        if spec == UPLOAD:
            return "Your own …"
        return f"Test pictures: {titles[spec]}" + (", which it learnt from" if spec == learnt else "")

    return st.selectbox("Pictures", order, format_func=option_label, key="heads pictures")


def training_dataset(checkpoint: Any) -> str:
    """Return the dataset that a checkpoint was trained on, as a spec of `datasets.here`; "" if unknown."""
    model = trained_models.find(checkpoint.name)
    return model.data if model else str(checkpoint.facts.get("data", ""))


def uploaded(example: Example) -> list[Part]:
    """Draw the uploader, and return batches of uploaded pictures."""
    preprocess, files = example.explanation.preprocess, picture_files.pick(CENSUS_PICTURES, "heads upload")
    step = batch_size(example.checkpoint, preprocess)

    def part(some: Sequence[Any]) -> Part:
        return Part(
            " ".join(f"{one.key} {one.name}" for one in some),
            len(some),
            lambda: decode_files([(one.name, one.data) for one in some], preprocess),
        )

    return [part(files[start : start + step]) for start in range(0, len(files), step)]


def dataset_parts(example: Example, spec: str) -> list[Part]:
    """Return batches of a dataset's test pictures.

    Raises:
        InvalidDataset: the dataset cannot be read.
    """
    root, stamp, preprocess = datasets.root_of(spec), datasets.stamp(spec), example.explanation.preprocess
    pictures = read_test_pictures(spec, root, stamp, repr(preprocess), preprocess)
    count, step = len(pictures.labels), batch_size(example.checkpoint, preprocess)

    def part(places: range) -> Part:
        return Part(
            f"{spec} {root} {stamp} {places}", len(places), lambda: preprocess_pictures(pictures, places, preprocess)
        )

    return [part(range(start, min(start + step, count))) for start in range(0, count, step)]


def started(example: Example, parts: Sequence[Part]) -> Progress | None:
    """Return the progress of these batches; None before the start. Draw a button first if this takes long."""
    if not parts:
        return None
    key = hashlib.sha256(repr([_key(example), *(part.name for part in parts)]).encode()).hexdigest()
    count = sum(part.pictures for part in parts)
    if not long_passes.is_wanted(key, count, seconds(example.checkpoint, example.explanation.preprocess, count)):
        return None
    return session.of(session.Explore).progress.setdefault(key, Progress())


@st.fragment(run_every=PAUSE)
def compute_slice(example: Example, parts: Sequence[Part], count: int, progress: Progress) -> None:
    """Compute for `SLICE` seconds. The browser then reruns the fragment, so that a click on *Stop* takes effect."""

    def stop() -> None:
        progress.stopped = True

    done = sum(part.pictures for part in parts[: progress.done])
    with st.container(horizontal=True, vertical_alignment="center"):
        st.progress(done / count, f"{done} of {count} pictures")
        st.button("Stop", key="heads stop", on_click=stop)
    until = time.monotonic() + SLICE
    while progress.done < len(parts) and not progress.stopped:
        cached_tally(*_key(example), parts[progress.done].name, example, parts[progress.done])
        progress.done += 1
        if time.monotonic() > until:
            break
    if progress.done == len(parts) or progress.stopped:
        st.rerun()


def result(example: Example, parts: Sequence[Part], count: int, progress: Progress) -> Tally:
    """Return the tally of the finished batches; show what is missing."""
    total = Tally()
    unreadable: list[str] = []
    for part in parts:
        more, left_out = cached_tally(*_key(example), part.name, example, part)
        total, unreadable = total + more, [*unreadable, *left_out]

    def go_on() -> None:
        progress.stopped = False

    if progress.stopped:
        with st.container(horizontal=True, vertical_alignment="center"):
            st.caption(f"Stopped after {sum(part.pictures for part in parts)} of {count} pictures.")
            st.button("Go on", key="heads resume", on_click=go_on)
    if unreadable:
        many = "A picture" if len(unreadable) == 1 else f"{len(unreadable)} pictures"
        st.error(f"{many} could not be read.")
        datasets.show_list("Left out", unreadable)
    return total


def _key(example: Example) -> tuple[str, tuple[int, int]]:
    """Return the cache key of model and input size."""
    return example.checkpoint.identity, example.explanation.preprocess.size
