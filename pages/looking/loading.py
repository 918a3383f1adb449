"""Checkpoints and pictures for whoever looks at them: what there is, and each opened and explained once."""

from __future__ import annotations

import gc
import hashlib
import os
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

from pages.links import address, link_controls, page_links, session
from pages.looking import run_records
from pages.server import pass_queue, public, uploaded_pictures, uploads
from pages.server.result_cache import MODELS, cached
from pages.server.uploaded_pictures import Upload
from pages.shared import uploaders
from pages.shared.escape import plain
from vit import checkpoints, view
from vit.checkpoints import catalog, hub
from vit.checkpoints.shelf import SHELF
from vit.errors import UserError
from vit.explain import faithfulness
from vit.images import decode
from vit.paths import checkpoints_folder, split_part
from vit.training import run_folder
from vit.untrusted import is_number
from vit.view.captions import about

if TYPE_CHECKING:
    from vit.checkpoints.checkpoint import Checkpoint, CheckpointInfo
    from vit.explain.record import Precision
    from vit.images.decode import UsedRange
    from vit.view.explanation import Explanation

TELL_ABOVE = 2  # [s]; what takes longer says so before
SHIPPED = "cifar10"


LOADING = threading.Event()  # set while PyTorch is being imported


@st.cache_resource(show_spinner="Loading PyTorch (once)…")
def start_torch() -> None:
    """Import what is heavy, once per server.

    Frozen, the 400,000 objects of torch cost nothing where Python collects garbage.
    """
    LOADING.set()
    try:
        import_module("vit.view.explanation")
        gc.collect()
        gc.freeze()
    finally:
        LOADING.clear()


def shipped_folder() -> Path | None:
    """Where the shipped checkpoint lies, if it is what a page opens with; found without torch."""
    folder = checkpoints_folder() / SHIPPED
    return folder if folder.is_dir() else None


@st.cache_resource(show_spinner="Opening the checkpoint…", max_entries=MODELS)
def open_checkpoint(name: str, folder: str, stamp: int, heads: int | None) -> Checkpoint:
    """Load a checkpoint once per version of its files."""
    return replace(checkpoints.load_checkpoint(Path(folder), heads), name=name)


def stamp(folder: Path) -> int:
    """Changes with a checkpoint's files; 0 where it cannot be looked into."""
    folder, _ = split_part(folder)
    try:
        with os.scandir(folder) as entries:
            files = sorted((entry.name, (facts := entry.stat()).st_mtime_ns, facts.st_size) for entry in entries)
    except OSError:
        return 0
    return hash(tuple(files))


def summarise(folder: Path) -> CheckpointInfo:
    """What a list shows of a checkpoint, read once per version of its files."""
    return _summarised(str(folder), stamp(folder))


@st.cache_resource(show_spinner=False, max_entries=1000)
def _summarised(folder: str, stamp: int) -> CheckpointInfo:
    return checkpoints.summarise(Path(folder))


def explained(
    checkpoint: Checkpoint,
    image: bytes,
    size: tuple[int, int],
    precision: Precision = "float32",
    frame: int = 0,
    stretch: bool = False,
) -> Explanation:
    """One picture, or a frame of an animation or a video, through one checkpoint, once whatever is asked of it."""

    def work() -> tuple[str, Explanation]:
        seconds = view.expected_seconds(checkpoint, size)
        tokens = view.cost(checkpoint, size, precision).tokens
        message = f"{tokens:,} tokens, {about(seconds)}…" if seconds > TELL_ABOVE else ""
        spinner = st.spinner(message, show_time=True) if message else nullcontext()
        with pass_queue.reserved(checkpoint, size, precision=precision), spinner:
            return checkpoint.identity, view.explain(checkpoint, image, size, precision, frame, stretch)

    digest = hashlib.sha256(image).hexdigest()
    whose, explanation = cached(("explained", checkpoint.body, digest, size, precision, frame, stretch), work)
    return explanation if whose == checkpoint.identity else view.answered(explanation, checkpoint)


def used_range(data: bytes) -> UsedRange | None:
    """See `vit.images.decode.used_range`; None of what cannot be read, too."""

    def work() -> UsedRange | None:
        try:
            return decode.used_range(data)
        except UserError:  # said where it is explained
            return None

    used: UsedRange | None = cached(("used range", hashlib.sha256(data).hexdigest()), work)
    return used


def pick_files(most: int, key: str, link: str = "") -> Sequence[Upload]:
    """Pictures that the person uploads, so many at most.

    Args:
        key: of the uploader.
        link: what reopens them is called so in links; "" where a link does not.
    """
    remembered = session.of(session.Compare).files

    def take_in() -> None:
        files = uploaders.newly_uploaded(key)
        if files is None:
            return
        taken = [Upload.of(file.name, uploaders.content(file)) for file in files]
        set_key = uploaded_pictures.keep_all(taken[:most]) if link else ""
        remembered[key] = session.Uploaded(set_key, taken, fresh=True)
        if link:
            address.rewrite({link: set_key or None})

    here = remembered.get(key, session.Uploaded())
    linked = address.text(link) if link else here.key
    if linked != here.key:  # the link of another session, or the browser's way back
        here = remembered[key] = session.Uploaded(linked, uploaded_pictures.find_all(linked))
        if linked and not here.pictures:
            st.info("This link was made with pictures that are not here any more. Upload them to see the same.")
    st.file_uploader(
        f"Drop or browse for up to {most} pictures" if most > 1 else "Drop or browse for a picture",
        max_upload_size=uploaders.limit(uploads.LARGEST),
        accept_multiple_files=most > 1,
        key=key,
        on_change=take_in,
        label_visibility="visible" if most > 1 else "collapsed",
        help=uploaded_pictures.how_long() if link else None,
    )
    for picture in here.pictures[:most]:
        if used := used_range(picture.data):
            st.caption(f"{plain(picture.name)} {used.sentence} Page Explore can stretch it.")
    count = len(here.pictures)
    if count and not (here.fresh and st.session_state.get(key)):  # the uploader is empty, or shows others
        one = f"This is {plain(here.pictures[0].name)}, which was uploaded."
        st.caption(f"These are the {count} pictures that were uploaded." if count > 1 else one)
    if count > most:
        st.caption(f"These are the first {most} of {count} pictures.")
    return here.pictures[:most]


def pick_size(checkpoint: Checkpoint, label: str, name: str, narrow: bool = False) -> tuple[int, int]:
    """Let the person enlarge the model's input, at a cost told before; (height, width).

    Args:
        name: of the control's key and in links.
        narrow: there is no room for the label and the number of tokens.
    """
    own, sizes = checkpoint.preprocess.size, view.sizes(checkpoint)
    if public.is_public():
        sizes = [size for size in sizes if size == own or view.cost(checkpoint, size).tokens <= public.TOKENS]

    @cache  # a control asks several times
    def option_label(size: tuple[int, int]) -> str:
        expected = view.cost(checkpoint, size)
        takes = "" if narrow else f" · {expected.tokens:,} tokens"
        if size != own and (seconds := view.expected_seconds(checkpoint, size)) > TELL_ABOVE:
            needed = max(expected.memory, faithfulness.memory(checkpoint.config, size) if checkpoint.labels else 0)
            takes = f" · {about(seconds)} · {needed / 1e9:.1f} GB"
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
    """An input's size, as wide as high unless it says so."""
    height, width = size
    return str(width) if width == height else f"{width}x{height}"


@dataclass(frozen=True)
class AvailableCheckpoints:
    """The checkpoints that can be chosen.

    Attributes:
        every: of the checkpoints' folder and of those fetched by name, whether they can be opened or not.
        usable: those that can, by the name that links have.
        runs: the best ones of runs, newest first: from the name in links to what is shown, and the folder.
    """

    every: list[CheckpointInfo]
    usable: dict[str, CheckpointInfo]
    runs: dict[str, tuple[str, Path]]

    @property
    def names(self) -> list[str]:
        """As links have them, the shipped one first."""
        return [*sorted(self.usable, key=lambda name: (name != SHIPPED, name)), *self.runs]

    def title(self, name: str) -> str:
        """As a list shows it."""
        return hub.shortened(name) if name in self.usable else self.runs[name][0]

    def about(self, name: str) -> CheckpointInfo:
        """What is known of it without its weights."""
        return self.usable.get(name) or summarise(self.runs[name][1])


def list_checkpoints() -> AvailableCheckpoints:
    """Everything that is here."""
    every = [summarise(folder) for folder in catalog.list_folders()]
    every += [replace(summarise(one.folder), name=str(one.name)) for one in hub.cached() if _may_show(str(one.name))]
    usable = {info.name: info for info in every if not info.problem or info.choices}
    for info in list(usable.values()):
        for other in info.others:  # of a file that holds several models
            folder = info.folder.with_name(f"{info.folder.name}#{other}")
            usable[f"{info.name}#{other}"] = replace(summarise(folder), name=f"{info.name}#{other}")
    return AvailableCheckpoints(
        every, usable, {name: facts for name, facts in _trained().items() if name not in usable}
    )


def _may_show(name: str) -> bool:
    """Whether a checkpoint that was fetched is offered: in a public place, the small ones of the shelf."""
    small = [one.name for one in SHELF if one.megabytes <= public.CHECKPOINT]
    return not public.is_public() or name in small


def _trained() -> dict[str, tuple[str, Path]]:
    """The best checkpoint of every run, newest first: from its name in links to what is shown, and its folder."""
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
