"""What an experiment tracker is, and which ones there are: MLflow, Weights & Biases, and those of other packages.

Another package brings one by an entry point; its name is what the setting `track` then takes:

    [project.entry-points."vit.trackers"]
    mine = "my_package.tracker:open_run"

It is called in a process of its own, never in the one that trains, and may raise or hang: the run then goes on without.
"""

import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from vit.errors import InvalidConfig

GROUP = "vit.trackers"  # of entry points
PYTHON = "VIT_TRACKER_PYTHON"  # environment variable: the interpreter whose libraries trackers use, if not this one
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}")

_OURS = {name: EntryPoint(name, f"vit.training.trackers.{name}:open_run", GROUP) for name in ("mlflow", "wandb")}
_INSTALL = {"mlflow": "mlflow-skinny", "wandb": "wandb"}
_PROJECT = Path(__file__).parents[3]
_START = (
    "import runpy, sys; sys.path.append(sys.argv[1]); del sys.argv[1]; "  # last: its own libraries come first
    "runpy.run_module('vit.training.trackers.follower', run_name='__main__', alter_sys=True)"
)


class Point(NamedTuple):
    """Figures of one step.

    Attributes:
        step: done.
        t: unix time [s].
        figures: by names such as "train/loss" and "validation/accuracy".
    """

    step: int
    t: float
    figures: Mapping[str, float]


class RunFacts(NamedTuple):
    """What a tracker is told of a run once.

    Attributes:
        name: for people.
        settings: of the run and of what it trains, without folders of this machine.
        folder: where the tracker may keep files of its own; it need not exist.
    """

    name: str
    settings: Mapping[str, Any]
    folder: Path


class Tracker(Protocol):
    """One run in a tracker.

    Attributes:
        id: what the tracker calls the run, by which `open_run` continues it.
    """

    id: str

    def log(self, points: Sequence[Point]) -> None:
        """Add figures, in the order of their steps."""

    def finish(self, outcome: str) -> None:
        """Say how the attempt ended, and wait until all is sent: "finished", "stopped", "failed" or "interrupted"."""


class OpenRun(Protocol):
    """What an entry point names."""

    def __call__(self, facts: RunFacts, run_id: str) -> Tracker:
        """Open a run, or continue the one that was called `run_id`; "" for a new one."""


def find(name: str) -> EntryPoint:
    """The plug-in of this name, not loaded.

    Raises:
        InvalidConfig: there is none, or its library is not installed.
    """
    if name in _OURS:
        if not _is_installed(name):
            raise InvalidConfig(
                f"track={name} needs {_INSTALL[name]}: pip install {_INSTALL[name]}, here or where {PYTHON} points."
            )
        return _OURS[name]
    others = {point.name: point for point in entry_points(group=GROUP)}
    if name not in others:
        raise InvalidConfig(f"There is no tracker {name!r}. Choose from: {', '.join(sorted({*_OURS, *others}))}.")
    return others[name]


def installed() -> tuple[str, ...]:
    """The names of trackers whose libraries this interpreter has."""
    others = {point.name for point in entry_points(group=GROUP) if NAME.fullmatch(point.name)}
    return tuple(sorted(others.union(filter(_is_installed, _OURS))))


@lru_cache(1)
def available() -> tuple[str, ...]:
    """The names of trackers that a run on this machine can use; looked up once."""
    if PYTHON not in os.environ:
        return installed()
    try:
        listed = subprocess.run(command("--list"), capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(name for name in listed.split() if NAME.fullmatch(name))


def check_available(name: str) -> None:
    """Refuse a tracker that runs on this machine cannot use.

    Raises:
        InvalidConfig: why.
    """
    if name and name not in available():
        if PYTHON in os.environ:
            raise InvalidConfig(f"The interpreter that {PYTHON} names has no tracker {name!r}. Install it there.")
        find(name)


def command(*arguments: str) -> list[str]:
    """What starts the process that follows runs, or with "--list" prints which trackers it could use."""
    return [os.environ.get(PYTHON) or sys.executable, "-c", _START, str(_PROJECT), *arguments]


def _is_installed(module: str) -> bool:
    spec = find_spec(module)
    return spec is not None and spec.origin is not None  # a folder of that name is no library
