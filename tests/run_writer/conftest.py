"""Fixtures for tests of `RunWriter`: a folder of runs, and writers that are closed at the end."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from foreign_loop import CLASSES, INPUT, STEPS, pictures

from vit.training.other_loops.run_writer import RunWriter


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "runs"


@pytest.fixture
def open_writer(folder: Path) -> Iterator[Callable[..., RunWriter]]:
    """Return `open_writer(...)`: a writer for three epochs of three steps, closed at the end."""
    writers = []

    def make(name: str = "theirs", **changes: Any) -> RunWriter:
        defaults = {"epochs": 3, "steps_per_epoch": STEPS, "pictures": pictures(), "labels": [0, 1, 2] * 3}
        defaults |= {"classes": CLASSES, "preprocess": INPUT}
        writers.append(RunWriter(folder / name, **defaults | changes))
        return writers[-1]

    yield make
    for writer in writers:
        writer.close()
