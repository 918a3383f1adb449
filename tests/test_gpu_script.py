"""The GPU script on a machine without a GPU: its steps run, report results, and fail independently."""

import json
import sys
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.exhaustive  # the script is for machines with a GPU

SCRIPT = Path(__file__).parents[1] / "benchmarks" / "gpu.py"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The script as a module."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    import gpu

    yield gpu


@pytest.fixture
def call(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., str]:
    """Return `call("--dry")`: the script's output; each of its steps runs in a separate process."""

    def said(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", [str(SCRIPT), "--out", str(tmp_path), *words])
        script.main()
        return capsys.readouterr().out

    return said


@pytest.mark.slow
def test_finished_step_is_stored_and_not_repeated(call: Callable[..., str], tmp_path: Path) -> None:
    output = call("--dry", "--step", "forward")
    report = json.loads((tmp_path / "forward.json").read_text())
    assert report["outcome"] == "passed", output
    assert "| forward | passed |" in (tmp_path / "summary.md").read_text()
    with tarfile.open(tmp_path / "home" / "records.tar.gz") as records:
        assert {"forward.json", "forward.log"} <= set(records.getnames())
    assert "forward: passed" in output and "passed" not in call("--dry", "--step", "forward")


@pytest.mark.slow
@pytest.mark.parametrize("step", ["environment", "checks", "masks", "ablation"])
def test_step_passes(script: ModuleType, tmp_path: Path, step: str) -> None:
    script.run_step(step, script.Job("cpu", True, tmp_path, "shapes", 60.0))
    report = json.loads((tmp_path / f"{step}.json").read_text())
    assert report["outcome"] == "passed", report
    assert f"| {step} | passed |" in script.summary(tmp_path)


def test_failed_step_keeps_its_traceback(script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(job: object) -> None:
        raise ZeroDivisionError("a planted fault")

    monkeypatch.setitem(script.STEPS, "masks", broken)
    script.run_step("masks", script.Job("cpu", True, tmp_path, "shapes", 60.0))
    report = json.loads((tmp_path / "masks.json").read_text())
    assert report["outcome"] == "failed" and report["result"] == "ZeroDivisionError: a planted fault"
    assert "in broken" in report["traceback"] and "in broken" in script.summary(tmp_path)


def test_message_without_a_gpu_names_the_dry_mode(
    call: Callable[..., str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(SystemExit) as end:
        call()
    assert end.value.code == 2 and "--dry" in capsys.readouterr().err
