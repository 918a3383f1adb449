"""List of the checkpoints that pages offer: in the checkpoint folder, in the Hub cache, and of runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pages.looking import loading
from pages.server import background, public
from pages.shared import trained_models
from vit import checkpoints
from vit.checkpoints import catalog
from vit.checkpoints.hub import models as hub
from vit.checkpoints.hub.recommended import RECOMMENDED
from vit.paths import checkpoints_folder
from vit.untrusted import limit_work
from vit.view import first_view

if TYPE_CHECKING:
    from vit.checkpoints.checkpoint import CheckpointInfo

SUMMARY_SECONDS = 20.0  # processor time for a checkpoint's summary, which reads headers only [s]
WAIT = 5.0  # for all summaries of a list [s]
WAIT_EACH = 0.5  # for a summary whose predecessors took that long [s]
SHIPPED = first_view.CHECKPOINT
NO_CHECKPOINT = "There is no checkpoint yet. Train one: `python -m vit train --preset shapes`"


def shipped_folder() -> Path | None:
    """Return the folder of the shipped checkpoint, None if it does not exist; works without torch."""
    folder = checkpoints_folder() / SHIPPED
    return folder if folder.is_dir() else None


def summarise(folder: Path, seconds: float | None = None) -> CheckpointInfo:
    """Return the summary of a checkpoint, cached per version of its files.

    A job reads it, so that a file that takes long holds up no other visitor.

    Args:
        seconds: time to wait; afterwards the summary says that the checkpoint is still being read. None for no limit.
    """

    def work(_: Callable[[float], None]) -> CheckpointInfo:
        with limit_work(folder.name, SUMMARY_SECONDS):
            return checkpoints.summarise(folder)

    job = background.start(("summary", str(folder), loading.stamp(folder)), work)
    if job.wait(seconds):
        return job.result()
    reading = "It is still being read. Reload the page in a few seconds."
    return checkpoints.checkpoint.CheckpointInfo(folder.name, folder, 0, 0, 0, {}, reading)


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
    for model in trained_models.every():
        if model.best is None:
            continue
        title = f"Run: {model.name}" + (f" · {model.accuracy}" if model.accuracy else "")
        if any(title == others for others, _ in runs.values()):
            title += f" · {model.id}"
        runs[model.checkpoint] = title, model.best
    return runs
