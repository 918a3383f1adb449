"""The processes of runs: they outlive the server, stop, die, resume with the same bits, and handle a full disk.

A trainer takes seconds to start, so tests share runs: one finishes, and one never ends.
"""

import fcntl
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import PATIENCE
from short_runs import (
    TRAINS,
    advance,
    command_of,
    endless,
    last_step,
    status,
    supervisor_of,
    temporary_runs_folder,
    tiny,
    trainers,
    until,
    wait_for_first_steps,
    wait_until_ended,
    weights,
    write_dead_run,
)

import vit
from vit.errors import InvalidRun
from vit.training.engines import local
from vit.training.loop.metrics import MetricsReader, read_metrics
from vit.training.loop.train import train
from vit.training.runs import attempts, control, registry

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with temporary_runs_folder(tmp_path_factory.mktemp("processes") / "runs") as root:
        yield root


# --- From start to end --------------------------------------------------------------------------------------------


LONG = tiny(epochs=5, limit=160, seed=3, device="cpu")  # 400 steps


@pytest.fixture(scope="module")
def finished() -> registry.Run:
    """A run without interruption."""
    return wait_until_ended(control.launch(LONG, name="My first run!", notes="a note"))


def test_run_trains_and_leaves_all_promised_files(finished: registry.Run) -> None:
    run = finished
    assert (run.status, run.reason) == ("finished", "")
    assert re.fullmatch(r"\d{8}-\d{6}-my-first-run-[0-9a-f]{4}", run.id)
    assert (run.name, run.notes) == ("My first run!", "a note")
    assert run.config["dim"] == 16
    assert {path.name for path in run.folder.iterdir()} >= {
        "config.json", "about.json", "metrics.jsonl", "events", "log.txt", "environment.json", "checkpoints", "probes",
    }  # fmt: skip
    environment = json.loads((run.folder / "environment.json").read_text())
    assert environment["seed"] == 3 and environment["hardware"]
    assert run.best is not None
    assert vit.load_checkpoint(run.best).labels == ("circle", "square", "triangle", "cross")
    assert "Epoch 5 of 5" in (run.folder / "log.txt").read_text()
    assert not (run.folder / "reserve").exists()


@pytest.mark.exhaustive
def test_run_stopped_and_killed_at_random_steps_ends_with_the_same_bits(finished: registry.Run) -> None:
    run = wait_for_first_steps(control.launch(LONG))
    control.stop(run.id)
    statuses: list[str] = []
    until(lambda: statuses.append(status(run)) or statuses[-1] == "stopped", "the end")
    assert list(dict.fromkeys(statuses)) == ["stopping", "stopped"]  # from the click to the end of its process
    assert "Resume continues there" in registry.find_run(run.id).reason
    stopped = last_step(run)
    assert 0 < stopped < 400
    assert control.resume(run.id).id == run.id
    until(lambda: status(run) in TRAINS, "its training")
    (trainer,) = trainers(run)
    advance(run, 80)  # past the end of an epoch, so that another state is saved
    os.kill(trainer, signal.SIGKILL)
    failed = wait_until_ended(run)
    assert failed.status == "failed" and "out of memory" in failed.reason
    control.resume(run.id)
    assert wait_until_ended(run).status == "finished"
    first, second, third = [r["step"] for r in read_metrics(run.folder / "metrics.jsonl") if r["kind"] == "start"]
    assert first == 0 and second == stopped and third % 80 == 0 and third > stopped
    assert weights(run.folder) == weights(finished.folder)


@pytest.mark.exhaustive
def test_finished_run_continues_only_with_more_epochs(folder: Path) -> None:
    train(tiny(epochs=1), folder / "short")
    with pytest.raises(InvalidRun, match="Give it more epochs"):
        control.resume("short")
    run = wait_until_ended(control.resume("short", epochs=2))
    assert run.status == "finished"
    assert run.folder.joinpath("metrics.jsonl").read_text().count('"kind": "validation"') == 2


# --- A run that never ends ----------------------------------------------------------------------------------------

SERVER = """
import sys, time
from vit.training.runs import control
from vit.training.loop.config import TrainConfig
print(control.launch(TrainConfig.model_validate_json(sys.argv[1])).id, flush=True)
time.sleep(1000)
"""


@pytest.fixture(scope="module")
def orphan() -> registry.Run:
    """A training run whose server was killed."""
    server = subprocess.Popen(
        [sys.executable, "-c", SERVER, endless().model_dump_json()], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout
    run = registry.find_run(server.stdout.readline().strip())
    wait_for_first_steps(run)
    server.kill()
    server.wait()
    return run


@pytest.fixture
def running(orphan: registry.Run) -> registry.Run:
    """The same run, resumed if the previous test ended it."""
    if not registry.find_run(orphan.id).alive:
        control.resume(orphan.id)
    until(lambda: status(orphan) in TRAINS, "its training")
    return orphan


@pytest.mark.exhaustive
def test_run_continues_after_its_server_is_killed(orphan: registry.Run) -> None:
    assert advance(orphan).status in TRAINS


@pytest.mark.exhaustive
def test_reader_follows_a_run_while_it_is_written(running: registry.Run) -> None:
    reader = MetricsReader(running.folder / "metrics.jsonl")
    reader.update()
    seen = begin = reader.records["step"][-1]["step"]
    while seen < begin + 200:
        if reader.update():
            every = [record["step"] for record in reader.records["step"]]
            assert every == sorted(set(every))
            seen = every[-1]


def test_folder_is_trained_by_only_one_process(running: registry.Run) -> None:
    with pytest.raises(InvalidRun, match="Another process trains"):
        train(endless(), running.folder, resume=True)
    with pytest.raises(InvalidRun, match="already active"):
        control.resume(running.id)
    assert status(running) in TRAINS


@pytest.mark.exhaustive
def test_shared_device_is_not_waited_for_and_a_users_mistake_is_the_reason(
    running: registry.Run, tmp_path: Path
) -> None:
    wrong = tiny(data=f"folder:{tmp_path / 'nowhere'}")
    assert control.launch(wrong).status == "waiting"
    run = wait_until_ended(control.launch(wrong, share=True))
    assert run.status == "failed"
    assert run.reason.startswith("There is no folder") and "Traceback" not in run.reason
    assert status(running) in TRAINS
    (waiting,) = registry.queue()
    control.kill(waiting.id)


def test_run_whose_supervisor_was_killed_trains_and_can_be_stopped(running: registry.Run) -> None:
    os.kill(supervisor_of(running), signal.SIGKILL)
    assert advance(running).status in TRAINS
    control.stop(running.id)
    assert wait_until_ended(running).status == "stopped"


def test_kill_ends_a_run_even_without_its_supervisor(running: registry.Run) -> None:
    os.kill(supervisor_of(running), signal.SIGKILL)
    local.kill(running.folder, patience=0.5)
    assert wait_until_ended(running).status == "stopped"
    assert local.lock_holders(running.folder) == []


@pytest.mark.exhaustive
def test_kill_keeps_the_last_state(running: registry.Run) -> None:
    learnt = last_step(running)
    control.kill(running.id)
    assert (status(running), registry.find_run(running.id).reason) == ("stopped", attempts.KILLED)
    control.resume(running.id)
    until(lambda: status(running) in TRAINS, "its training")
    starts = [r["step"] for r in read_metrics(running.folder / "metrics.jsonl") if r["kind"] == "start"]
    assert learnt - 40 <= starts[-1]  # at the end of an epoch, or later
    control.kill(running.id)


# --- Several processes --------------------------------------------------------------------------------------------


@pytest.mark.exhaustive
def test_two_processes_train_one_run_and_stop_together() -> None:
    # Shared, because the orphan of the tests above trains on if the tests that end it are not selected.
    run = wait_for_first_steps(control.launch(endless(), devices=("cpu", "cpu"), share=True))
    assert json.loads((run.folder / "environment.json").read_text())["devices"] == 2
    assert sum("torch.distributed.run" in command_of(pid) for pid in trainers(run)) == 1
    control.stop(run.id)
    assert wait_until_ended(run).status == "stopped"


STAND_IN = """
import sys
from pathlib import Path
from vit.training.runs import supervisor
ranks = "setsid sleep 1000 & sleep 1000 & kill -KILL $$"
supervisor.command = lambda *_: ["sh", "-c", ranks]
supervisor.supervise(Path(sys.argv[1]), int(sys.argv[2]))
"""


def test_no_rank_survives_the_kill_of_its_launcher(folder: Path) -> None:
    """A shell replaces torchrun, and is killed when its ranks have started."""
    run = write_dead_run(folder, "ranks")
    with (run / "alive.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        command = [sys.executable, "-c", STAND_IN, str(run), str(lock.fileno())]
        supervised = subprocess.Popen(command, pass_fds=[lock.fileno()])
    assert supervised.wait(PATIENCE) == 0
    result = registry.find_run(run.name)
    assert result.status == "failed" and "out of memory" in result.reason
    assert local.lock_holders(run) == []


# --- A full disk --------------------------------------------------------------------------------------------------

FULL = """
import os, shutil, sys, time
from pathlib import Path
root = Path(sys.argv[1])
os.environ["VIT_RUNS"] = str(root)
from vit.training.runs import control, launch_checks, registry
from vit.training.loop.config import TrainConfig
from vit.training.loop.metrics import read_metrics

def ended(run_id):
    while registry.find_run(run_id).alive:
        time.sleep(0.1)
    found = registry.find_run(run_id)
    print(found.status, found.reason, sep="|", flush=True)

run = control.launch(TrainConfig.model_validate_json(sys.argv[2]), limits=launch_checks.Limits(free_bytes=0))
state = run.folder / "checkpoints" / "state.previous.pt"  # exists after the second save
while not state.exists():
    time.sleep(0.02)
filler = (root / "filler").open("wb")
try:
    while filler.write(bytes(4096)):
        filler.flush()
except OSError:
    pass
ended(run.id)
control.resume(run.id)  # the disk is still full
ended(run.id)
try:
    filler.close()  # flushes
except OSError:
    pass
(root / "filler").unlink()
metrics = run.folder / "metrics.jsonl"
steps = read_metrics(metrics)[-1]["step"]
control.resume(run.id)
while read_metrics(metrics)[-1]["step"] <= steps and registry.find_run(run.id).alive:
    time.sleep(0.1)
print(registry.find_run(run.id).status)
control.kill(run.id)
"""


def test_full_disk_ends_a_run_that_resumes_once_there_is_space(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    mount = f"mount -t tmpfs -o size=32m tmpfs '{small}' && exec \"$@\""
    own_mounts = ["unshare", *(["--map-root-user"] if os.getuid() else []), "--mount", "sh", "-c"]
    # Only Linux has unshare, and its administrators may forbid namespaces, as in some containers.
    trial = [*own_mounts, mount, "sh", "true"]
    if not shutil.which("unshare") or subprocess.run(trial, capture_output=True).returncode:
        pytest.skip("This system lets no program mount a small file system.")
    program = [sys.executable, "-c", FULL, str(small), endless().model_dump_json()]
    done = subprocess.run([*own_mounts, mount, "sh", *program], capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
    first, still_full, resumed = done.stdout.splitlines()
    assert first == "failed|The disk is full. Free some space and resume: the last complete state is kept."
    assert still_full == first
    assert resumed in TRAINS
