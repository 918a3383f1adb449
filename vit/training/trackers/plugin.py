"""Interface and registry of experiment trackers: MLflow, Weights & Biases, and plug-ins from other packages.

A package registers a tracker by an entry point; its name is the value of the setting `track`:

    [project.entry-points."vit.trackers"]
    mine = "my_package.tracker:open_run"

`open_run(facts: RunFacts, run_id: str) -> Tracker` starts a run if `run_id` is "", or resumes the run with that id. It
runs in a separate process, not in the trainer's, and may raise or hang: the run then continues without it.
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

GROUP = "vit.trackers"  # entry point group
PYTHON = "VIT_TRACKER_PYTHON"  # environment variable: interpreter of the tracker's process, if not this one
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}")

_OURS = {name: EntryPoint(name, f"vit.training.trackers.{name}:open_run", GROUP) for name in ("mlflow", "wandb")}
_INSTALL = {"mlflow": "mlflow-skinny", "wandb": "wandb"}
_PROJECT = Path(__file__).parents[3]
_START = (
    "import runpy, sys; sys.path.append(sys.argv[1]); del sys.argv[1]; "  # appended: own libraries come first
    "runpy.run_module('vit.training.trackers.follower', run_name='__main__', alter_sys=True)"
)


class Point(NamedTuple):
    """Metrics of one step.

    Attributes:
        step: number of steps done.
        t: unix time [s].
        figures: by name, such as "train/loss" and "validation/accuracy".
    """

    step: int
    t: float
    figures: Mapping[str, float]


class RunFacts(NamedTuple):
    """Facts about a run, for a tracker.

    Attributes:
        name: display name.
        settings: settings of the run and facts about its model and data, without local paths.
        folder: folder for the tracker's own files; may not exist yet.
    """

    name: str
    settings: Mapping[str, Any]
    folder: Path


class Tracker(Protocol):
    """A run in a tracker.

    Attributes:
        id: the tracker's id of the run; `open_run` resumes the run with it.
    """

    id: str

    def log(self, points: Sequence[Point]) -> None:
        """Send metrics, in the order of their steps."""

    def finish(self, outcome: str) -> None:
        """Set the outcome, "finished", "stopped", "failed" or "interrupted", and wait until everything is sent."""


def find(name: str) -> EntryPoint:
    """Return the entry point of a tracker, not loaded.

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
    """Return the names of trackers whose libraries this interpreter has."""
    others = {point.name for point in entry_points(group=GROUP) if NAME.fullmatch(point.name)}
    return tuple(sorted(others.union(filter(_is_installed, _OURS))))


@lru_cache(1)
def available() -> tuple[str, ...]:
    """Return the names of trackers that runs on this machine can use; cached."""
    if PYTHON not in os.environ:
        return installed()
    try:
        listed = subprocess.run(command("--list"), capture_output=True, text=True, timeout=20, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ()
    return tuple(name for name in listed.split() if NAME.fullmatch(name))


def check_available(name: str) -> None:
    """Reject a tracker that runs on this machine cannot use.

    Raises:
        InvalidConfig: it is not available.
    """
    if name and name not in available():
        if PYTHON in os.environ:
            raise InvalidConfig(f"The interpreter that {PYTHON} names has no tracker {name!r}. Install it there.")
        find(name)


def command(*arguments: str) -> list[str]:
    """Return the command of the process that follows runs, or with "--list" prints the available trackers."""
    return [os.environ.get(PYTHON) or sys.executable, "-c", _START, str(_PROJECT), *arguments]


def _is_installed(module: str) -> bool:
    spec = find_spec(module)
    return spec is not None and spec.origin is not None  # a folder of that name is found as a namespace package
