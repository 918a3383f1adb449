"""Records of runs, shared by all sessions: the server follows each metrics file once."""

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import streamlit as st

from pages.server import access
from pages.shared import datasets
from vit.devices import Device, list_devices
from vit.errors import UserError
from vit.paths import runs_folder
from vit.training.engines.contract import HERE
from vit.training.engines.slurm_script import SCRIPT
from vit.training.loop.metrics import MetricsReader, Progress, best_epoch, evaluations, final_test, progress
from vit.training.runs import registry
from vit.untrusted import read_bytes, read_tail
from vit.view.captions import format_duration

PAUSE = 0.5  # interval between two reads of a file [s]
LOG_BYTES = 20_000
LOG_LINES = 30
_PLACES = ("data", "init_from", "data_root")  # settings that are folders of the server

STATUS = {
    "waiting": "Waiting",
    "starting": "Starting",
    "running": "Running",
    "validating": "Validating",
    "testing": "Testing",
    "stopping": "Stopping",
    "ending": "Ending",
    "stalled": "Stalled",
    "retrying": "Retrying",
    "unknown": "Unknown",
    "finished": "Finished",
    "stopped": "Stopped",
    "pruned": "Ended early",
    "failed": "Failed",
    "interrupted": "Interrupted",
    "unreadable": "Cannot be read",
}


class TrainingClock:
    """Training time over all attempts, without the pauses between them.

    Attributes:
        total: until the last record [s].
    """

    def __init__(self, records: dict[str, list[dict[str, Any]]]):
        last: dict[int, float] = {}
        self._first: dict[int, float] = {}
        for kind in records.values():
            for record in kind:
                attempt, t = record.get("attempt", 0), record.get("t")
                if isinstance(t, int | float):
                    self._first[attempt] = min(self._first.get(attempt, t), t)
                    last[attempt] = max(last.get(attempt, t), t)
        self._before: dict[int, float] = {}
        self.total = 0.0
        for attempt in sorted(last):
            self._before[attempt] = self.total
            self.total += last[attempt] - self._first[attempt]

    def at(self, record: dict[str, Any]) -> float:
        """Return the time until a record [s]."""
        attempt = record.get("attempt", 0)
        first = self._first.get(attempt, 0.0)
        return self._before.get(attempt, 0.0) + record.get("t", first) - first


class Figures(NamedTuple):
    """A snapshot of a run's records.

    Attributes:
        records: by kind, see `vit.training.loop.metrics`. Do not modify them: all sessions share them.
        progress: None before training has started.
        problem: description of unreadable records; "" if there are none.
    """

    records: dict[str, list[dict[str, Any]]]
    progress: Progress | None
    problem: str = ""

    @property
    def steps_per_epoch(self) -> float:
        """Steps per epoch; 1 before it is known."""
        start = self.records.get("start")
        if start:
            return float(start[-1]["steps_per_epoch"])
        epochs = [record for record in evaluations(self.records) if record["epoch"]]
        return epochs[-1]["step"] / epochs[-1]["epoch"] if epochs else 1.0

    @property
    def seconds(self) -> float:
        """Training time over all attempts, without pauses between them [s]."""
        return TrainingClock(self.records).total


class _MetricsFile:
    """A metrics file that sessions share; `latest` reads new lines at most every `PAUSE` seconds."""

    def __init__(self, path: Path):
        self.reader = MetricsReader(path)
        self.lock = threading.Lock()
        self.read_at = 0.0
        self.figures = Figures({}, None)

    def latest(self) -> Figures:
        with self.lock:
            if time.monotonic() - self.read_at > PAUSE:
                if self.reader.update() or self.read_at == 0 or self.reader.problem != self.figures.problem:
                    records = {kind: list(entries) for kind, entries in self.reader.records.items()}
                    self.figures = Figures(records, progress(records), self.reader.problem)
                self.read_at = time.monotonic()
            return self.figures


@st.cache_resource(show_spinner=False, max_entries=500)
def _metrics_file(path: str) -> _MetricsFile:
    return _MetricsFile(Path(path))


def figures(run: registry.Run) -> Figures:
    """Return a run's current records."""
    return _metrics_file(str(run.folder / "metrics.jsonl")).latest()


@st.cache_resource(show_spinner=False, max_entries=2)
def _every(folder: str, tick: int) -> list[registry.Run]:  # with a `ttl`, Streamlit may look up an entry that expired
    return registry.list_runs()


def every_run() -> list[registry.Run]:
    """Return all runs, newest first; cached for half a second."""
    return _every(str(runs_folder()), int(time.monotonic() / PAUSE))


def forget() -> None:
    """Clear the cached list of runs, after an action has changed it."""
    _every.clear()


def devices() -> dict[str, Device]:
    """Return this machine's devices by name; cached for two seconds."""
    return _devices(int(time.monotonic() / 2))


@st.cache_resource(show_spinner=False, max_entries=2)
def _devices(tick: int) -> dict[str, Device]:
    return {device.name: device for device in list_devices()}


def best_accuracy(run: registry.Run) -> float | None:
    """Return the validation accuracy of the best epoch so far, 0 to 1."""
    best = best_epoch(figures(run).records)
    return best.get("accuracy") if best else None


def test_accuracy(run: registry.Run) -> float | None:
    """Return the test accuracy of the weights that validation selected, 0 to 1."""
    result = final_test(figures(run).records)
    return result["accuracy"] if result else None


def first_result(run: registry.Run) -> str:
    """Return a sentence about when an active run will have its first accuracy; "" once it has one."""
    now = figures(run)
    if run.status == "starting":
        return run.reason
    if run.status not in ("running", "validating") or evaluations(now.records) or run.loop:  # loops may lack accuracy
        return ""
    if now.progress is None or now.progress.seconds_left is None or run.status == "validating":
        return "Its first accuracy comes after the first epoch."
    epoch, epochs = now.progress.epoch, now.progress.epochs
    seconds = now.progress.seconds_left * max(1 - epoch, 0) / max(epochs - epoch, 1e-9)
    return f"Its first accuracy comes after the first epoch, in {format_duration(seconds)}."


def hardly_learns(run: registry.Run) -> bool:
    """Whether a run is hardly better than guessing: its best accuracy is below 1.2 times chance."""
    best, start = best_accuracy(run), figures(run).records.get("start")
    classes = start[-1].get("classes") if start else None
    return best is not None and isinstance(classes, list) and len(classes) > 1 and best < 1.2 / len(classes)


def describe_resources(run: registry.Run, *, hosts: bool = True) -> str:
    """Describe where a run computes: devices of this machine, or the resources it requested from its cluster.

    Args:
        hosts: include the names of machines.

    >>> run = registry.Run("a", Path(), "", "", "", "", 0.0, ("gpu", "gpu"), "running", "", on="lab", nodes=2)
    >>> describe_resources(run)
    'lab, 2 machines with 2 GPUs each'
    """
    if run.on == HERE:
        return ", ".join(run.devices)
    several = len(run.devices) > 1
    unit = "GPU" if registry.ANY_GPU in run.devices else "process"
    per_machine = f"{len(run.devices)} {'GPUs' if unit == 'GPU' else 'processes'}" if several else f"1 {unit}"
    machines = f"{run.nodes} machines with {per_machine} each" if run.nodes > 1 else per_machine
    return f"{run.on}, {machines}" + (f" ({', '.join(run.hosts)})" if hosts and run.hosts else "")


def share_done(run: registry.Run) -> float:
    """Return a run's progress, 0 to 1, from its records or its heartbeat, whichever is later."""
    run_figures = figures(run)
    if run_figures.progress:
        return max(run_figures.progress.share, min(run.step / run_figures.progress.total_steps, 1.0))
    epochs = evaluations(run_figures.records)
    return min(epochs[-1]["epoch"] / max(run.config.get("epochs", 1), 1), 1.0) if epochs else 0.0


def data_name(run: registry.Run) -> str:
    """Return the name of a run's dataset, without the path of a folder."""
    return datasets.label(str(run.config.get("data", "")))


def start_name(run: registry.Run) -> str:
    """Return the name of the checkpoint or run that a run started from; "" for random weights."""
    path = Path(str(run.config.get("init_from") or ""))
    if path.name != "best":
        return path.name
    names = {other.folder.name: other.name for other in every_run()}
    return names.get(path.parent.parent.name, path.parent.parent.name)


def setting(run: registry.Run, name: str) -> Any:
    """Return a run's value of a setting. Visitors who may not train see no folders of the server."""
    if name in _PLACES and not access.may_train():
        return {"data": data_name(run), "init_from": start_name(run)}.get(name) or None
    return run.settings.get(name)


def last_lines(run: registry.Run) -> str:
    """Return the last lines of a run's log."""
    text = read_tail(run.folder / "log.txt", LOG_BYTES).decode("utf-8", "replace")
    lines = [line.rpartition("\r")[2].rstrip() for line in text.split("\n")]
    return "\n".join([line for line in lines if line][-LOG_LINES:])


def batch_script(run: registry.Run) -> str | None:
    """Return the script that was submitted to Slurm; None for other engines."""
    with suppress(OSError, UserError):
        return read_bytes(run.folder / SCRIPT, LOG_BYTES).decode("utf-8", "replace")
    return None


def duration(seconds: float) -> str:
    """Format a duration.

    >>> [duration(s) for s in (5, 65, 4000, 200000)]
    ['5 s', '1 min', '1 h 6 min', '2 d 7 h']
    """
    minutes, hours, days = int(seconds // 60), int(seconds // 3600), int(seconds // 86400)
    if seconds < 60:
        return f"{seconds:.0f} s"
    if hours < 1:
        return f"{minutes} min"
    return f"{hours} h {minutes % 60} min" if days < 1 else f"{days} d {hours % 24} h"
