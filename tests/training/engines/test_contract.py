"""One contract for all engines: runs are submitted, wait, run, stop, are killed, fail, vanish, resume, are
submitted twice, are counted, become unreachable, and are found by another server.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from labs import Lab, lab_fake, lab_here, lab_ray, lab_slurm
from patience import PATIENCE
from ray_cluster import RayCluster
from short_runs import endless, last_step, steps, temporary_runs_folder, tiny, until, weights

from vit.errors import InvalidRun
from vit.training.engines import contract
from vit.training.engines.contract import HERE, Handle, JobStatus, Request, Unreachable, read_handle
from vit.training.loop.metrics import read_metrics
from vit.training.loop.presets import train_config
from vit.training.runs import control, registry

pytestmark = pytest.mark.slow


LABS = [
    pytest.param(lab_here, id="here"),
    pytest.param(lab_fake, id="fake", marks=pytest.mark.exhaustive),
    pytest.param(lab_slurm, id="slurm", marks=pytest.mark.cluster),
    pytest.param(lab_ray, id="ray", marks=pytest.mark.cluster),  # the last: it leaves this process only loopback
]


@pytest.fixture(scope="module", params=LABS)
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    root = tmp_path_factory.mktemp("lab") / "runs"
    with pytest.MonkeyPatch.context() as patch, temporary_runs_folder(root):
        lab = request.param(root, patch)
        try:
            yield lab
            for run in registry.list_runs(patience=10):
                if run.alive:
                    control.kill(run.id)
        finally:
            if lab.end:
                lab.end()


def launch(lab: Lab, config: Any = None, **named: Any) -> registry.Run:
    return control.launch(config or endless(), on=lab.name, nodes=lab.nodes, **named)


def now(run: registry.Run) -> registry.Run:
    """Return the run with its current state from the engine."""
    return registry.find_run(run.id, patience=5)


def status(run: registry.Run) -> str:
    return now(run).status


def wait_for_first_steps(run: registry.Run) -> registry.Run:
    """Wait until the run trains; records are read only when somebody looks."""
    until(lambda: now(run) and steps(run), "the first steps")
    return now(run)


def wait_until_ended(run: registry.Run) -> registry.Run:
    until(lambda: not now(run).alive, "the end")
    return now(run)


@pytest.fixture(scope="module")
def first(lab: Lab) -> registry.Run:
    """A training run that never ends by itself."""
    run = launch(lab, name="first")
    assert run.alive and run.on == lab.name
    return run


def test_run_is_submitted_and_trains(lab: Lab, first: registry.Run) -> None:
    until(lambda: status(first) in ("running", "validating"), "its training")
    assert registry.find_run(first.id).folder == first.folder
    assert lab.processes(first)


def test_status_of_many_equals_status_of_each(lab: Lab, first: registry.Run) -> None:
    until(lambda: status(first) in ("running", "validating"), "its training")
    handle = read_handle(first.folder) or Handle(first.folder, lab.name, first.id, 0.0)
    never = handle._replace(folder=first.folder.with_name("20261124-000000-never-0000"), job="never.1")
    assert [status for _, status in lab.engine.statuses([handle] * 9)] == [lab.engine.status(handle)] * 9
    until(
        lambda: [*lab.engine.statuses([handle] * 9 + [never])][-1] == (never, JobStatus("gone")), "that it is unknown"
    )


def test_run_without_a_slot_waits_and_says_so(lab: Lab, first: registry.Run) -> None:
    second = launch(lab, name="second")
    until(lambda: status(second) == "waiting", "its place in the queue")
    assert now(second).reason
    control.stop(second.id)
    cancelled = wait_until_ended(second)
    assert (cancelled.status, cancelled.reason) == ("stopped", "Cancelled while it waited for its turn.")
    assert status(first) in ("running", "validating")


def test_capacity_counts_used_slots(lab: Lab, first: registry.Run) -> None:
    wait_for_first_steps(first)
    nodes, cpus, gpus = lab.engine.capacity()
    assert nodes >= lab.nodes and cpus.total >= lab.nodes
    until(lambda: lab.engine.capacity().cpus.free == 0, "its processors being taken")
    assert gpus.free <= gpus.total


def test_active_run_cannot_be_submitted_again(lab: Lab, first: registry.Run) -> None:
    with pytest.raises(InvalidRun, match="already active"):
        lab.engine.submit(first.folder, Request(nodes=lab.nodes))
    with pytest.raises(InvalidRun, match="already active"):
        control.resume(first.id)
    runs = [launch(lab, nonce="sent twice") for _ in range(2)]
    assert runs[0].id == runs[1].id
    control.kill(runs[0].id)


def test_another_server_finds_and_stops_the_run(lab: Lab, first: registry.Run) -> None:
    wait_for_first_steps(first)
    program = """
import sys
import time
sys.path[:0] = sys.argv[2:]
import fake_cluster
from vit.training.runs import control, registry
print(registry.find_run(sys.argv[1], patience=5).status, flush=True)
control.stop(sys.argv[1])
"""
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[2])]
    command = [sys.executable, "-c", program, first.id, *folders]
    output = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout.split()
    assert output[0] in ("running", "validating")
    stopped = wait_until_ended(first)
    assert stopped.status == "stopped" and "Resume continues there" in stopped.reason
    until(lambda: not any(map(alive, lab.processes(first))), "the end of its processes")


def alive(pid: int) -> bool:
    """Whether a process exists and is not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_killed_run_keeps_its_last_state_and_no_process(lab: Lab) -> None:
    run = wait_for_first_steps(launch(lab))
    processes = lab.processes(run)
    control.kill(run.id)
    killed = now(run)
    assert killed.status == "stopped" and "Resume continues" in killed.reason
    assert processes
    until(lambda: not any(map(alive, processes)), "the end of its processes")


def test_run_fails_with_the_reason_of_the_trainer(lab: Lab, tmp_path: Path) -> None:
    run = wait_until_ended(launch(lab, tiny(data=f"folder:{tmp_path / 'nowhere'}")))
    assert run.status == "failed" and run.reason.startswith("There is no folder")


LONG = tiny(epochs=15, limit=160, seed=3, device="cpu")  # runs on during the checks; 80 steps an epoch


@pytest.fixture(scope="module")
def uninterrupted(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a run trained without interruption by as many processes of this machine."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    (folder / "config.json").write_text(LONG.model_dump_json())
    several = ["torch.distributed.run", "--standalone", f"--nproc-per-node={lab.nodes}", "-m"] if lab.nodes > 1 else []
    command = [sys.executable, "-m", *several, "vit", "train", "--config", str(folder / "config.json"), "--run-dir"]
    one_thread = dict(os.environ) | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*command, str(folder / "run")], env=one_thread, timeout=PATIENCE, check=True, capture_output=True)
    return folder / "run"


@pytest.mark.exhaustive
def test_vanished_run_is_interrupted_and_resumes_to_the_same_bits(lab: Lab, uninterrupted: Path) -> None:
    run = launch(lab, LONG)
    until(lambda: now(run) and last_step(run) > 100, "its second epoch")
    processes = lab.processes(run)
    for name in (signal.SIGSTOP, signal.SIGKILL):  # all at once, so that none sees another one die
        for pid in processes:
            os.kill(pid, name)
    assert wait_until_ended(run).status == "interrupted"
    control.resume(run.id)
    assert wait_until_ended(run).status == "finished"
    assert weights(run.folder) == weights(uninterrupted)
    starts = [record["step"] for record in read_metrics(run.folder / "metrics.jsonl") if record["kind"] == "start"]
    assert len(starts) == 2 and starts[1] >= 80


@pytest.mark.parametrize("lab", [lab for lab in LABS if lab.id == "ray"], indirect=True)
def test_process_killed_during_startup_frees_its_slot(lab: Lab) -> None:
    """The process is killed before any has joined the group."""
    assert isinstance(lab.cluster, RayCluster)
    trainers = partial(lab.cluster.processes, "ray::Trainer")
    until(lambda: not trainers(), "that those of other runs are gone")
    run = launch(lab, tiny(epochs=1))
    pids = until(lambda: len(trainers()) == 2 and trainers(), "both of its processes")
    until((run.folder / "log.txt").exists, "the order to train")
    os.kill(pids[1], signal.SIGKILL)
    assert not steps(run)
    assert wait_until_ended(run).status == "finished"
    assert "died" in (run.folder / "log.txt").read_text()
    until(lambda: lab.engine.capacity().cpus.free == 2, "its machines being free")


@pytest.mark.exhaustive
def test_base_checkpoint_is_copied_with_the_run(lab: Lab) -> None:
    """The machines of a cluster see the run's folder, but no checkpoints of this server."""
    run = launch(lab, train_config(data="shapes", init_from="cifar10", limit=80, epochs=1, batch_size=8))
    start = Path(str(run.config["init_from"]))
    assert (start.name, start.is_relative_to(run.folder)) == ("cifar10", lab.name != HERE)
    assert wait_until_ended(run).status == "finished", now(run).reason


def test_unreachable_engine_reports_unknown(lab: Lab) -> None:
    if lab.unreachable is None:
        return  # an engine of this machine always answers
    run = wait_for_first_steps(launch(lab))
    with lab.unreachable():
        until(lambda: status(run) == "unknown", "the silence of its cluster")
        assert "does not answer" in now(run).reason and "Its last heartbeat" in now(run).reason
        before = registry.list_runs()
        with pytest.raises(Unreachable, match="does not answer"):
            launch(lab)
        with pytest.raises(Unreachable, match="does not answer"):
            control.kill(run.id)
        assert {one.id for one in registry.list_runs()} == {one.id for one in before}
        with pytest.raises(InvalidRun, match="active"):
            control.delete(run.id)
    until(lambda: status(run) in ("running", "validating"), "its cluster's answer")
    control.kill(run.id)


def test_job_ended_while_pending_trains_nothing(tmp_path: Path) -> None:
    """Ray starts the driver of a job that was stopped while pending."""
    folder = tmp_path / "20261123-000000-a-0000"
    folder.mkdir()
    handle = contract.next_handle(folder, "lab")
    contract.write_handle(handle, Request())
    assert contract.claim_job(folder, handle.job) == handle
    contract.record_end(handle, "Killed.")
    assert contract.claim_job(folder, handle.job) is None
    again = contract.next_handle(folder, "lab")
    contract.write_handle(again, Request())
    assert contract.claim_job(folder, handle.job) is None
    assert contract.claim_job(folder, again.job) == again
    (folder / "stop").touch()
    assert contract.claim_job(folder, again.job) is None and contract.has_ended(again)
