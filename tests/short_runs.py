"""Shared by the tests of runs: short and endless runs, what they leave, and waiting for what they do."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import patience
import pytest

from vit.runs import control, registry
from vit.runs.engines import local
from vit.training.config import TrainConfig
from vit.training.metrics import read_metrics
from vit.training.presets import train_config

TRAINS = ("running", "validating", "testing")  # of a run whose process is at work


@contextmanager
def place_for_runs(root: Path) -> Iterator[Path]:
    """An empty folder for runs; nothing in it is alive afterwards."""
    root.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIT_RUNS", str(root))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield root
        for run in registry.list_runs():
            if run.alive:
                control.kill(run.id)


def tiny(**settings: Any) -> TrainConfig:
    """A run of seconds: 40 steps an epoch."""
    few = dict(data="shapes", image_size=8, patch_size=4, dim=16, depth=1, heads=2, mlp_dim=16, limit=80, batch_size=2)
    return train_config(**few | {"epochs": 2} | settings)


def endless(**settings: Any) -> TrainConfig:
    return tiny(epochs=10000, **settings)


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for something to become true; a failure says how all runs are."""
    return patience.until(condition, lambda: f"{what}. {[(r.id, r.status, r.reason) for r in registry.list_runs()]}")


def status(run: registry.Run) -> str:
    return registry.find_run(run.id).status


def steps(run: registry.Run) -> list[dict[str, Any]]:
    return [record for record in read_metrics(run.folder / "metrics.jsonl") if record["kind"] == "step"]


def ended(run: registry.Run) -> registry.Run:
    until(lambda: not registry.find_run(run.id).alive, "the end")
    return registry.find_run(run.id)


def begun(run: registry.Run) -> registry.Run:
    until(lambda: steps(run), "the first steps")
    return registry.find_run(run.id)


def goes_on(run: registry.Run, count: int = 40) -> registry.Run:
    """The run, once it has done more than so many steps from here."""
    before = done(run)
    until(lambda: done(run) > before + count, "more steps")
    return registry.find_run(run.id)


def done(run: registry.Run) -> int:
    """Steps that are on record."""
    return max((record["step"] for record in steps(run)), default=0)


def weights(folder: Path) -> bytes:
    return (folder / "checkpoints" / "last" / "model.safetensors").read_bytes()


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def trainers(run: registry.Run) -> list[int]:
    """Processes of the run but its supervisor."""
    return [pid for pid in local.lock_holders(run.folder) if "vit.runs.supervisor" not in command_of(pid)]


def supervisor_of(run: registry.Run) -> int:
    return next(pid for pid in local.lock_holders(run.folder) if "vit.runs.supervisor" in command_of(pid))


def dead(root: Path, name: str = "20261121-000000-dead-0000", **about: Any) -> Path:
    """The folder of a run that has no process."""
    folder = root / name
    folder.mkdir()
    (folder / "config.json").write_text(tiny().model_dump_json())
    (folder / "about.json").write_text(json.dumps({"name": "dead", "created": 1.0, "devices": ["cpu"]} | about))
    return folder
