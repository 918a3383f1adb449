"""Cached loading of checkpoints and explanation of pictures."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import streamlit as st

from pages.links import session
from pages.links.source import Source
from pages.server import pass_queue
from pages.server.result_cache import MODELS, SHOW_DURATION_ABOVE_SECONDS, cached
from pages.server.uploaded_pictures import Upload, key_of
from vit import checkpoints, view
from vit.errors import UserError
from vit.images.files import decode, tiff
from vit.images.files.video import is_video
from vit.paths import split_part
from vit.untrusted import limit_work
from vit.view.captions import format_duration

if TYPE_CHECKING:
    from vit.checkpoints.checkpoint import Checkpoint
    from vit.explain.record import Precision
    from vit.images.files.decode import UsedRange
    from vit.view.explanation import Explanation

READING_SECONDS = 120.0  # processor time for a checkpoint [s]; hashing 10 GB of weights takes a fifth of it
_File = TypeVar("_File", Source, Upload)

LOADING = threading.Event()  # set while PyTorch is being imported


@st.cache_resource(show_spinner="Loading PyTorch (once)…")
def start_torch() -> None:
    """Import PyTorch and what depends on it, once per server.

    Freezing excludes torch's 400,000 objects from later garbage collections.
    """
    LOADING.set()
    try:
        import_module("vit.view.explanation")
        gc.collect()
        gc.freeze()
    finally:
        LOADING.clear()


@st.cache_resource(show_spinner="Opening the checkpoint…", max_entries=MODELS)
def open_checkpoint(name: str, folder: str, stamp: int, heads: int | None) -> Checkpoint:
    """Load a checkpoint once per version of its files."""
    with limit_work(name, READING_SECONDS, session.end_if_stopped):
        return replace(checkpoints.load_checkpoint(Path(folder), heads), name=name)


def stamp(folder: Path) -> int:
    """Return a hash of names, times and sizes of a checkpoint's files; 0 if its folder cannot be read."""
    folder, _ = split_part(folder)
    try:
        with os.scandir(folder) as entries:
            files = sorted((entry.name, (facts := entry.stat()).st_mtime_ns, facts.st_size) for entry in entries)
    except OSError:
        return 0
    return hash(tuple(files))


def explained(
    checkpoint: Checkpoint,
    image: bytes,
    size: tuple[int, int],
    precision: Precision = "float32",
    frame: int = 0,
    stretch: bool = False,
) -> Explanation:
    """Return the cached explanation of a picture, or of a frame of an animation or a video.

    Checkpoints with the same backbone share one forward pass.
    """

    def work() -> tuple[str, Explanation]:
        seconds = view.expected_seconds(checkpoint, size)
        tokens = view.cost(checkpoint, size, precision).tokens
        message = f"{tokens:,} tokens, {format_duration(seconds)}…" if seconds > SHOW_DURATION_ABOVE_SECONDS else ""
        spinner = st.spinner(message, show_time=True) if message else nullcontext()
        picture = next(decode.decode_frames(image, [frame], stretch)).picture  # before other visitors have to wait
        with pass_queue.reserved(checkpoint, size, precision=precision), spinner:
            return checkpoint.identity, view.explanation.explain_picture(checkpoint, picture, size, precision)

    key = "explained", checkpoint.body, key_of(image), size, precision, frame, stretch
    whose, explanation = cached(key, work)
    return explanation if whose == checkpoint.identity else view.with_predictions(explanation, checkpoint)


def used_range(data: bytes) -> UsedRange | None:
    """Cached `vit.images.files.decode.used_range`; None for a picture that cannot be read, too."""

    def work() -> UsedRange | None:
        try:
            return decode.used_range(data)
        except UserError:  # `explained` reports it
            return None

    used: UsedRange | None = cached(("used range", key_of(data)), work)
    return used


def pages_note(data: bytes) -> str:
    """Cached `vit.images.files.tiff.pages_note`."""
    note: str = cached(("pages of", key_of(data)), lambda: tiff.pages_note(data))
    return note


def readable(files: Sequence[_File], with_videos: bool = False) -> tuple[list[_File], list[str]]:
    """Return the readable pictures among files, and a sentence on each other file; cached.

    Args:
        with_videos: take videos too, without reading them, which takes long.
    """

    def problem(data: bytes) -> str:
        try:
            decode.decode_image(data)
        except UserError as error:
            return str(error)
        return ""

    good, problems = [], []
    for file in files:
        key = "problem of", key_of(file.data)
        if (with_videos and is_video(file.data)) or not (why := cached(key, partial(problem, file.data))):
            good.append(file)
        else:
            problems.append(f"{file.name}: {why}")
    return good, problems
