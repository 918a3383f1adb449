"""Cached loading of checkpoints and explanation of pictures; controls for uploads and input sizes."""

from __future__ import annotations

import gc
import hashlib
import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

from pages.links import address, link_controls, page_links, session
from pages.looking import run_records
from pages.server import background, pass_queue, public, uploaded_pictures, uploads
from pages.server.result_cache import MODELS, cached
from pages.server.uploaded_pictures import Upload
from pages.shared import uploaders
from pages.shared.escape import plain
from vit import checkpoints, view
from vit.checkpoints import catalog
from vit.checkpoints.hub import models as hub
from vit.checkpoints.hub.recommended import RECOMMENDED
from vit.errors import UserError
from vit.explain import faithfulness
from vit.images.files import decode, tiff
from vit.paths import checkpoints_folder, split_part
from vit.training.loop import run_folder
from vit.untrusted import is_number, limit_work
from vit.view import first_view
from vit.view.captions import format_duration

if TYPE_CHECKING:
    from vit.checkpoints.checkpoint import Checkpoint, CheckpointInfo
    from vit.explain.record import Precision
    from vit.images.files.decode import UsedRange
    from vit.view.explanation import Explanation

READING_SECONDS = 120.0  # processor time for a checkpoint [s]; hashing 10 GB of weights takes a fifth of it
SUMMARY_SECONDS = 20.0  # processor time for a checkpoint's summary, which reads headers only [s]
WAIT = 5.0  # for all summaries of a list [s]
WAIT_EACH = 0.5  # for a summary whose predecessors took that long [s]
SHOW_DURATION_ABOVE_SECONDS = 2  # show the expected duration of longer computations [s]
SHIPPED = first_view.CHECKPOINT
NO_CHECKPOINT = "There is no checkpoint yet. Train one: `python -m vit train --preset shapes`"


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


def shipped_folder() -> Path | None:
    """Return the folder of the shipped checkpoint, None if it does not exist; works without torch."""
    folder = checkpoints_folder() / SHIPPED
    return folder if folder.is_dir() else None


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


def summarise(folder: Path, seconds: float | None = None) -> CheckpointInfo:
    """Return the summary of a checkpoint, cached per version of its files.

    A job reads it, so that a file that takes long holds up no other visitor.

    Args:
        seconds: time to wait; afterwards the summary says that the checkpoint is still being read. None for no limit.
    """

    def work(_: Callable[[float], None]) -> CheckpointInfo:
        with limit_work(folder.name, SUMMARY_SECONDS):
            return checkpoints.summarise(folder)

    job = background.start(("summary", str(folder), stamp(folder)), work)
    if job.wait(seconds):
        return job.result()
    reading = "It is still being read. Reload the page in a few seconds."
    return checkpoints.checkpoint.CheckpointInfo(folder.name, folder, 0, 0, 0, {}, reading)


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

    digest = hashlib.sha256(image).hexdigest()
    whose, explanation = cached(("explained", checkpoint.body, digest, size, precision, frame, stretch), work)
    return explanation if whose == checkpoint.identity else view.with_predictions(explanation, checkpoint)


def used_range(data: bytes) -> UsedRange | None:
    """Cached `vit.images.files.decode.used_range`; None for a picture that cannot be read, too."""

    def work() -> UsedRange | None:
        try:
            return decode.used_range(data)
        except UserError:  # `explained` reports it
            return None

    used: UsedRange | None = cached(("used range", hashlib.sha256(data).hexdigest()), work)
    return used


def pages_note(data: bytes) -> str:
    """Cached `vit.images.files.tiff.pages_note`."""
    note: str = cached(("pages of", hashlib.sha256(data).hexdigest()), lambda: tiff.pages_note(data))
    return note


def problem_of(data: bytes) -> str:
    """Return why a file is no readable picture, "" if it is one; cached."""

    def work() -> str:
        try:
            decode.decode_image(data)
        except UserError as error:
            return str(error)
        return ""

    why: str = cached(("problem of", hashlib.sha256(data).hexdigest()), work)
    return why


def pick_files(most: int, key: str, link: str = "") -> Sequence[Upload]:
    """Draw an uploader, and return at most `most` uploaded pictures.

    Args:
        key: of the uploader.
        link: query parameter that reopens the pictures; "" for none.
    """
    remembered = session.of(session.Compare).files

    def accept_uploads() -> None:
        files = uploaders.newly_uploaded(key)
        if files is None:
            return
        uploaded = [Upload.of(file.name, uploaders.content(file)) for file in files]
        set_key = uploaded_pictures.store_all(uploaded[:most]) if link else ""
        remembered[key] = session.UploadedPictures(set_key, uploaded, fresh=True)
        if link:
            address.rewrite({link: set_key or None})

    here = remembered.get(key, session.UploadedPictures())
    linked = address.text(link) if link else here.key
    if linked != here.key:  # a link from another session, or the browser's Back
        here = remembered[key] = session.UploadedPictures(linked, uploaded_pictures.find_all(linked))
        if linked and not here.pictures:
            st.info("The pictures of this link were deleted. Upload them again to see the same.")
    st.file_uploader(
        f"Drop or browse for up to {most} pictures" if most > 1 else "Drop or browse for a picture",
        max_upload_size=uploaders.limit(uploads.LARGEST),
        accept_multiple_files=most > 1,
        key=key,
        on_change=accept_uploads,
        label_visibility="visible" if most > 1 else "collapsed",
        help=uploaded_pictures.retention_note() if link else None,
    )
    for picture in here.pictures[:most]:
        if used := used_range(picture.data):
            st.caption(f"{plain(picture.name)} {used.sentence} Page Explore can stretch it.")
        if note := pages_note(picture.data):
            st.caption(f"{plain(picture.name)} {note}")
    count = len(here.pictures)
    if count and not (here.fresh and st.session_state.get(key)):  # the uploader does not show these pictures
        one = f"Showing the uploaded {plain(here.pictures[0].name)}."
        st.caption(f"Showing {count} uploaded pictures." if count > 1 else one)
    if count > most:
        st.caption(f"These are the first {most} of {count} pictures.")
    return here.pictures[:most]


def pick_size(checkpoint: Checkpoint, label: str, name: str, narrow: bool = False) -> tuple[int, int]:
    """Draw the control for the model's input size, with expected costs, and return (height, width).

    Args:
        name: query parameter and key of the control.
        narrow: hide the label and the number of tokens.
    """
    own, sizes = checkpoint.preprocess.size, view.sizes(checkpoint)
    if public.is_public():
        sizes = [size for size in sizes if size == own or view.cost(checkpoint, size).tokens <= public.TOKENS]

    @cache  # a control calls it several times per option
    def option_label(size: tuple[int, int]) -> str:
        expected = view.cost(checkpoint, size)
        takes = "" if narrow else f" · {expected.tokens:,} tokens"
        if size != own and (seconds := view.expected_seconds(checkpoint, size)) > SHOW_DURATION_ABOVE_SECONDS:
            needed = max(expected.memory, faithfulness.memory(checkpoint.config, size) if checkpoint.labels else 0)
            takes = f" · {format_duration(seconds)} · {needed / 1e9:.1f} GB"
        return f"{pixels(size)} px{takes}"

    size = link_controls.select(
        label,
        name,
        sizes,
        own,
        format_func=option_label,
        link=pixels,
        label_visibility="collapsed" if narrow else "visible",
        help="The model was trained at one size. At others its position embeddings are interpolated: larger ones give "
        "finer maps and less reliable predictions. Seconds and memory are estimates for this computer.",
    )
    wanted = address.text(name)
    if wanted and wanted not in map(pixels, sizes):
        offered = "" if narrow else f"; {', '.join(map(pixels, sizes))} are"
        st.caption(f"{plain(wanted)} px is not offered{offered}.")
    return size


def pixels(size: tuple[int, int]) -> str:
    """Format an input size: "SIDE" for a square, else "WIDTHxHEIGHT"."""
    height, width = size
    return str(width) if width == height else f"{width}x{height}"


@dataclass(frozen=True)
class AvailableCheckpoints:
    """The available checkpoints.

    Attributes:
        every: checkpoints in the checkpoint folder and the Hub cache, including those that cannot be opened.
        usable: those that can be opened, by name in links.
        runs: best checkpoints of runs, newest first: name in links to title and folder.
    """

    every: list[CheckpointInfo]
    usable: dict[str, CheckpointInfo]
    runs: dict[str, tuple[str, Path]]

    @property
    def names(self) -> list[str]:
        """Names in links, the shipped checkpoint first."""
        return [*sorted(self.usable, key=lambda name: (name != SHIPPED, name)), *self.runs]

    def title(self, name: str) -> str:
        """Return the title of a checkpoint in lists."""
        return hub.shortened(name) if name in self.usable else self.runs[name][0]

    def about(self, name: str) -> CheckpointInfo:
        """Return the summary of a checkpoint, which does not need its weights."""
        return self.usable.get(name) or summarise(self.runs[name][1])


def list_checkpoints() -> AvailableCheckpoints:
    """List the available checkpoints."""
    names = {folder: folder.name for folder in catalog.list_folders()}
    names |= {one.folder: str(one.name) for one in hub.cached() if _may_show(str(one.name))}
    until = time.monotonic() + WAIT
    every = [
        replace(summarise(folder, max(until - time.monotonic(), WAIT_EACH)), name=name)
        for folder, name in names.items()
    ]
    usable = {info.name: info for info in every if not info.problem or info.choices}
    for info in list(usable.values()):
        for other in info.others:  # further models in the same file
            folder = info.folder.with_name(f"{info.folder.name}#{other}")
            usable[f"{info.name}#{other}"] = replace(summarise(folder), name=f"{info.name}#{other}")
    return AvailableCheckpoints(
        every, usable, {name: facts for name, facts in _trained().items() if name not in usable}
    )


def _may_show(name: str) -> bool:
    """Whether to offer a downloaded checkpoint. A public server offers only small recommended ones."""
    small = [one.name for one in RECOMMENDED if one.megabytes <= public.CHECKPOINT]
    return not public.is_public() or name in small


def _trained() -> dict[str, tuple[str, Path]]:
    """Return the best checkpoint of every run, newest first: name in links to title and folder."""
    runs: dict[str, tuple[str, Path]] = {}
    for run in run_records.every_run():
        if run.best is None:
            continue
        facts = run_folder.read_json(run.best / "config.json").get("training")
        accuracy = facts.get("accuracy", facts.get("validation_accuracy")) if isinstance(facts, dict) else None
        title = f"Run: {run.name}" + (f" · {accuracy:.1%}" if is_number(accuracy, 0, 1) else "")
        if any(title == others for others, _ in runs.values()):
            title += f" · {run.id}"
        runs[page_links.best_of_run(run.id)] = title, run.best
    return runs
