"""Helpers for tests of runs: start short and endless runs, read their files, and wait for their states."""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import patience
import pytest

from vit.training.engines import local
from vit.training.loop.config import TrainConfig
from vit.training.loop.metrics import read_metrics
from vit.training.loop.presets import train_config
from vit.training.runs import control, registry

TRAINS = ("running", "validating", "testing")  # states of a run whose process is alive


@contextmanager
def temporary_runs_folder(root: Path) -> Iterator[Path]:
    """Provide an empty folder for runs, and kill their processes at the end."""
    root.mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VIT_RUNS", str(root))
        patch.setenv("OMP_NUM_THREADS", "1")
        yield root
        for run in registry.list_runs():
            if run.alive:
                control.kill(run.id)


def tiny(**settings: Any) -> TrainConfig:
    """Config of a run that takes seconds: 40 steps an epoch."""
    few = dict(data="shapes", image_size=8, patch_size=4, dim=16, depth=1, heads=2, mlp_dim=16, limit=80, batch_size=2)
    return train_config(**few | {"epochs": 2} | settings)


def endless(**settings: Any) -> TrainConfig:
    return tiny(epochs=10000, **settings)


def until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a condition; on failure, report the state of all runs."""
    return patience.until(condition, lambda: f"{what}. {[(r.id, r.status, r.reason) for r in registry.list_runs()]}")


def status(run: registry.Run) -> str:
    return registry.find_run(run.id).status


def steps(run: registry.Run) -> list[dict[str, Any]]:
    return [record for record in read_metrics(run.folder / "metrics.jsonl") if record["kind"] == "step"]


def wait_until_ended(run: registry.Run) -> registry.Run:
    until(lambda: not registry.find_run(run.id).alive, "the end")
    return registry.find_run(run.id)


def wait_for_first_steps(run: registry.Run) -> registry.Run:
    until(lambda: steps(run), "the first steps")
    return registry.find_run(run.id)


def advance(run: registry.Run, count: int = 40) -> registry.Run:
    """Wait until the run has done more than `count` further steps, and return it."""
    before = last_step(run)
    until(lambda: last_step(run) > before + count, "more steps")
    return registry.find_run(run.id)


def last_step(run: registry.Run) -> int:
    """Return the last recorded step."""
    return max((record["step"] for record in steps(run)), default=0)


def weights(folder: Path) -> bytes:
    return (folder / "checkpoints" / "last" / "model.safetensors").read_bytes()


def notes(folder: Path) -> list[str]:
    """Return the notes that a run recorded."""
    return [record["text"] for record in read_metrics(folder / "metrics.jsonl") if record["kind"] == "note"]


def command_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_text()


def trainers(run: registry.Run) -> list[int]:
    """Return the run's processes except the supervisor."""
    return [pid for pid in local.lock_holders(run.folder) if "vit.training.runs.supervisor" not in command_of(pid)]


def supervisor_of(run: registry.Run) -> int:
    return next(pid for pid in local.lock_holders(run.folder) if "vit.training.runs.supervisor" in command_of(pid))


def write_dead_run(root: Path, name: str = "20261121-000000-dead-0000", **about: Any) -> Path:
    """Create the folder of a run that has no process."""
    folder = root / name
    folder.mkdir()
    (folder / "config.json").write_text(tiny().model_dump_json())
    (folder / "about.json").write_text(json.dumps({"name": "dead", "created": 1.0, "devices": ["cpu"]} | about))
    return folder
