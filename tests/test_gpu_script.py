"""The script for GPUs, tried where there is none: its steps run, tell what they found, and fail one by one."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.py"
CHEAP = ("environment", "model", "record", "relevance")


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import gpu

    yield gpu


def test_the_cheapest_steps_leave_their_results_and_are_not_done_again(tmp_path: Path) -> None:
    steps = [word for step in CHEAP for word in ("--step", step)]
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path), "--dry", *steps]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    results = {step: json.loads((tmp_path / f"{step}.json").read_text()) for step in CHEAP}
    assert {result["outcome"] for result in results.values()} == {"passed"}, said
    assert results["record"]["result"]["relative difference"]["rows"] <= 1e-4
    assert "| relevance | passed |" in (tmp_path / "summary.md").read_text()
    assert (tmp_path / "everything.tar.gz").stat().st_size > 500
    assert "passed" not in subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_a_failed_step_keeps_its_traceback(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(job: object) -> None:
        raise ZeroDivisionError("a planted fault")

    monkeypatch.setitem(script.STEPS, "model", broken)
    script.do("model", script.Job("cpu", True, tmp_path, "shapes", 60.0))
    told = json.loads((tmp_path / "model.json").read_text())
    assert told["outcome"] == "failed" and told["result"] == "ZeroDivisionError: a planted fault"
    assert "in broken" in told["traceback"] and "in broken" in script.summary(tmp_path)


def test_figures_apart_from_the_cpu_are_a_failure(script: ModuleType) -> None:
    with pytest.raises(AssertionError, match="apart from the CPU"):
        script.within({"logits": 0.5}, 1e-4)
    with pytest.raises(AssertionError, match="apart from the CPU"):
        script.within({"logits": float("nan")}, 1e-4)


def test_without_a_gpu_it_says_how_to_try_it(tmp_path: Path) -> None:
    blind = os.environ | {"CUDA_VISIBLE_DEVICES": ""}
    command = [sys.executable, str(SCRIPT), "--out", str(tmp_path)]
    told = subprocess.run(command, env=blind, capture_output=True, text=True)
    assert told.returncode == 2 and "--dry" in told.stderr
