"""Status of a run that a foreign training loop writes, and the processes that may write it."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from foreign_loop import new_model, records_of, run_of, train

from vit.errors import InvalidRun
from vit.training.other_loops.run_writer import RunWriter
from vit.training.runs import control, registry

ROOT = Path(__file__).parents[2]


def test_run_is_alive_until_it_is_closed(open_writer: Callable[..., RunWriter]) -> None:
    writer = open_writer(settings={"lr": 0.1}, name="theirs")
    run = run_of(writer)
    assert (run.status, run.loop, run.name, run.config) == ("running", "PyTorch", "theirs", {"lr": 0.1, "epochs": 3})
    for refused in (control.stop, control.kill, control.resume):
        with pytest.raises(InvalidRun, match="another program"):
            refused(run.id)
    train(new_model(), writer, epochs=2)
    writer.close()
    assert (run_of(writer).status, run_of(writer).reason) == ("finished", "Ended after 2 of 3 epochs.")
    assert run_of(writer).devices == ("cpu",)
    control.delete(run.id)


@pytest.mark.parametrize(
    ("error", "status"), [(ValueError("shapes"), "failed"), (KeyboardInterrupt(), "stopped")], ids=repr
)
def test_error_of_the_loop_is_reported(
    error: BaseException, status: str, open_writer: Callable[..., RunWriter]
) -> None:
    with pytest.raises(type(error)), open_writer() as writer:
        raise error
    assert run_of(writer).status == status
    assert status != "failed" or run_of(writer).reason == "ValueError: shapes"


KILLED = """
import os, signal, sys
import vit
writer = vit.RunWriter(sys.argv[1], epochs=2, steps_per_epoch=2)
writer.log_step(1, loss=1.0)
os.kill(os.getpid(), int(sys.argv[2])) if sys.argv[2] != "0" else None
"""


@pytest.mark.parametrize(
    "end", [int(signal.SIGKILL), pytest.param(0, marks=pytest.mark.exhaustive)], ids=["killed", "without close"]
)
def test_vanished_process_reads_as_interrupted(end: int, folder: Path) -> None:
    path = folder / "dead"
    subprocess.run([sys.executable, "-c", KILLED, str(path), str(end)], env=os.environ | {"PYTHONPATH": str(ROOT)})
    run = registry.find_run("dead")
    assert run.status == "interrupted" and "Resume it" not in run.reason


def test_run_is_continued_by_its_own_program(open_writer: Callable[..., RunWriter]) -> None:
    model = new_model()
    writer = open_writer()
    train(model, writer, epochs=2, accuracy=(0.4, 0.9))
    writer.close()
    again = open_writer(resume=True)
    again.log_step(4, loss=5.0)  # from a checkpoint after epoch 1
    again.log_epoch(2, model, val_accuracy=0.5)
    again.close()
    records = records_of(again.folder)
    assert [(one["step"], one["attempt"]) for one in records["step"]] == [(3, 0), (4, 1)]
    assert [(one["epoch"], one["accuracy"]) for one in records["validation"]] == [(1, 0.4), (2, 0.5)]


def test_only_the_leading_process_writes(
    open_writer: Callable[..., RunWriter], monkeypatch: pytest.MonkeyPatch, folder: Path
) -> None:
    monkeypatch.setenv("RANK", "1")
    writer = open_writer()
    train(new_model(), writer)
    writer.close()
    assert writer.folder is None and not folder.exists()


def test_forked_process_writes_nothing(open_writer: Callable[..., RunWriter]) -> None:
    writer = open_writer()
    before = (writer.folder / "metrics.jsonl").read_bytes()
    child = os.fork()
    if not child:
        writer.log_step(1, loss=1.0)
        writer.close("failed")
        os._exit(0)
    os.waitpid(child, 0)
    assert (writer.folder / "metrics.jsonl").read_bytes() == before
    assert run_of(writer).status == "running"


FORKED = """
import os, sys
import vit
from vit.training.loop.run_folder import is_alive
writer = vit.RunWriter(sys.argv[1], epochs=2, steps_per_epoch=2)
if not (child := os.fork()):
    sys.exit()  # through all that an interpreter does at its end
os.waitpid(child, 0)
assert is_alive(writer.folder)
"""


@pytest.mark.exhaustive
def test_end_of_a_forked_process_is_not_that_of_the_run(folder: Path) -> None:
    program = [sys.executable, "-c", FORKED, str(folder / "forked")]
    assert subprocess.run(program, env=os.environ | {"PYTHONPATH": str(ROOT)}).returncode == 0
