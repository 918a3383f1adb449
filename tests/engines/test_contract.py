"""One contract for all places where runs compute: submitted, waiting, run, stopped, killed, failed, vanished, resumed,
submitted twice, counted, out of reach, and met again by another server.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from labs import Lab, lab_fake, lab_here, lab_ray, lab_slurm
from patience import PATIENCE
from ray_cluster import RayCluster, command_of
from short_runs import done, endless, place_for_runs, steps, tiny, until, weights

from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.data.shapes import SHAPES
from vit.errors import InvalidRun
from vit.explain.method_ranking import rank
from vit.images.preprocess import Preprocess
from vit.paths import runs_folder
from vit.runs import control, registry
from vit.runs.batch.parts import Measurement
from vit.runs.batch.spread import measure
from vit.runs.engines import contract
from vit.runs.engines.clusters import find_cluster
from vit.runs.engines.contract import HERE, Handle, Look, Request, Unreachable, read_handle
from vit.training.metrics import read_metrics
from vit.training.presets import train_config

pytestmark = pytest.mark.slow


LABS = [
    pytest.param(lab_here, id="here"),
    pytest.param(lab_fake, id="fake", marks=pytest.mark.exhaustive),
    pytest.param(lab_slurm, id="slurm", marks=pytest.mark.cluster),
    pytest.param(lab_ray, id="ray", marks=pytest.mark.cluster),  # from here this process has loopback alone
]


@pytest.fixture(scope="module", params=LABS)
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    root = tmp_path_factory.mktemp("lab") / "runs"
    with pytest.MonkeyPatch.context() as patch, place_for_runs(root):
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
    """The run, as its engine says at this moment."""
    return registry.find_run(run.id, patience=5)


def status(run: registry.Run) -> str:
    return now(run).status


def begun(run: registry.Run) -> registry.Run:
    """A run at work; its records come where somebody looks."""
    until(lambda: now(run) and steps(run), "the first steps")
    return now(run)


def ended(run: registry.Run) -> registry.Run:
    until(lambda: not now(run).alive, "the end")
    return now(run)


@pytest.fixture(scope="module")
def first(lab: Lab) -> registry.Run:
    """A run that trains, and never ends by itself."""
    run = launch(lab, name="first")
    assert run.alive and run.on == lab.name
    return run


def test_it_is_submitted_and_runs(lab: Lab, first: registry.Run) -> None:
    until(lambda: status(first) in ("running", "validating"), "its training")
    assert registry.find_run(first.id).folder == first.folder
    assert lab.processes(first)


def test_one_question_about_many_is_answered_alike(lab: Lab, first: registry.Run) -> None:
    until(lambda: status(first) in ("running", "validating"), "its training")
    handle = read_handle(first.folder) or Handle(first.folder, lab.name, first.id, 0.0)
    never = handle._replace(folder=first.folder.with_name("20261124-000000-never-0000"), job="never.1")
    assert [look for _, look in lab.engine.look_all([handle] * 9)] == [lab.engine.look(handle)] * 9
    until(lambda: [*lab.engine.look_all([handle] * 9 + [never])][-1] == (never, Look("gone")), "that it is unknown")


def test_what_has_no_place_waits_and_says_so(lab: Lab, first: registry.Run) -> None:
    second = launch(lab, name="second")
    until(lambda: status(second) == "waiting", "its place in the queue")
    assert now(second).reason
    control.stop(second.id)
    cancelled = ended(second)
    assert (cancelled.status, cancelled.reason) == ("stopped", "Cancelled while it waited for its turn.")
    assert status(first) in ("running", "validating")


def test_capacity_counts_what_is_taken(lab: Lab, first: registry.Run) -> None:
    begun(first)
    nodes, cpus, gpus = lab.engine.capacity()
    assert nodes >= lab.nodes and cpus.total >= lab.nodes
    until(lambda: lab.engine.capacity().cpus.free == 0, "its processors being taken")
    assert gpus.free <= gpus.total


def test_a_run_that_is_going_on_cannot_be_submitted_again(lab: Lab, first: registry.Run) -> None:
    with pytest.raises(InvalidRun, match="going on already"):
        lab.engine.submit(first.folder, Request(nodes=lab.nodes))
    with pytest.raises(InvalidRun, match="going on already"):
        control.resume(first.id)
    runs = [launch(lab, nonce="sent twice") for _ in range(2)]
    assert runs[0].id == runs[1].id
    control.kill(runs[0].id)


def test_another_server_sees_it_and_stops_it(lab: Lab, first: registry.Run) -> None:
    begun(first)
    program = """
import sys
import time
sys.path[:0] = sys.argv[2:]
import fake_cluster
from vit.runs import control, registry
print(registry.find_run(sys.argv[1], patience=5).status, flush=True)
control.stop(sys.argv[1])
"""
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    command = [sys.executable, "-c", program, first.id, *folders]
    output = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout.split()
    assert output[0] in ("running", "validating")
    stopped = ended(first)
    assert stopped.status == "stopped" and "Resume continues there" in stopped.reason
    until(lambda: not any(map(alive, lab.processes(first))), "the end of its processes")


def alive(pid: int) -> bool:
    """Whether a process exists that is more than an entry in a table."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_killed_it_leaves_its_last_state_and_no_process(lab: Lab) -> None:
    run = begun(launch(lab))
    processes = lab.processes(run)
    control.kill(run.id)
    killed = now(run)
    assert killed.status == "stopped" and "Resume continues" in killed.reason
    assert processes
    until(lambda: not any(map(alive, processes)), "the end of its processes")


def test_it_fails_with_the_reason_that_the_trainer_gives(lab: Lab, tmp_path: Path) -> None:
    run = ended(launch(lab, tiny(data=f"folder:{tmp_path / 'nowhere'}")))
    assert run.status == "failed" and run.reason.startswith("There is no folder")


LONG = tiny(epochs=15, limit=160, seed=3, device="cpu")  # goes on while it is looked at; 80 steps an epoch


@pytest.fixture(scope="module")
def uninterrupted(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run that as many processes of this machine trained at once."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    (folder / "config.json").write_text(LONG.model_dump_json())
    several = ["torch.distributed.run", "--standalone", f"--nproc-per-node={lab.nodes}", "-m"] if lab.nodes > 1 else []
    command = [sys.executable, "-m", *several, "vit", "train", "--config", str(folder / "config.json"), "--run-dir"]
    one_thread = dict(os.environ) | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*command, str(folder / "run")], env=one_thread, timeout=PATIENCE, check=True, capture_output=True)
    return folder / "run"


@pytest.mark.exhaustive
def test_vanished_it_is_interrupted_and_resumed_to_the_same_bits(lab: Lab, uninterrupted: Path) -> None:
    run = launch(lab, LONG)
    until(lambda: now(run) and done(run) > 100, "its second epoch")
    processes = lab.processes(run)
    for name in (signal.SIGSTOP, signal.SIGKILL):  # at one moment, so that none sees another one die
        for pid in processes:
            os.kill(pid, name)
    assert ended(run).status == "interrupted"
    control.resume(run.id)
    assert ended(run).status == "finished"
    assert weights(run.folder) == weights(uninterrupted)
    starts = [record["step"] for record in read_metrics(run.folder / "metrics.jsonl") if record["kind"] == "start"]
    assert len(starts) == 2 and starts[1] >= 80


@pytest.mark.parametrize("lab", LABS[3:], indirect=True)
def test_a_process_that_died_while_it_began_holds_no_machine(lab: Lab) -> None:
    """Before any process has met the others."""
    assert isinstance(lab.cluster, RayCluster)
    trainers = partial(lab.cluster.processes, "ray::Trainer")
    until(lambda: not trainers(), "that those of other runs are gone")
    run = launch(lab, tiny(epochs=1))
    pids = until(lambda: len(trainers()) == 2 and trainers(), "both of its processes")
    until((run.folder / "log.txt").exists, "the order to train")
    os.kill(pids[1], signal.SIGKILL)
    assert not steps(run)
    assert ended(run).status == "finished"
    assert "died" in (run.folder / "log.txt").read_text()
    until(lambda: lab.engine.capacity().cpus.free == 2, "its machines being free")


@pytest.mark.exhaustive
def test_what_a_run_starts_from_goes_with_it(lab: Lab) -> None:
    """The machines of a cluster see the run's folder, and no checkpoint of this server."""
    run = launch(lab, train_config(data="shapes", init_from="cifar10", limit=80, epochs=1, batch_size=8))
    start = Path(str(run.config["init_from"]))
    assert (start.name, start.is_relative_to(run.folder)) == ("cifar10", lab.name != HERE)
    assert ended(run).status == "finished", now(run).reason


def test_out_of_reach_nothing_is_invented(lab: Lab) -> None:
    if lab.unreachable is None:
        assert lab.name == HERE  # this machine always answers
        return
    run = begun(launch(lab))
    with lab.unreachable():
        until(lambda: status(run) == "unknown", "the silence of its cluster")
        assert "does not answer" in now(run).reason and "Its last sign of life" in now(run).reason
        before = registry.list_runs()
        with pytest.raises(Unreachable, match="does not answer"):
            launch(lab)
        with pytest.raises(Unreachable, match="does not answer"):
            control.kill(run.id)
        assert {one.id for one in registry.list_runs()} == {one.id for one in before}
        with pytest.raises(InvalidRun, match="going on"):
            control.delete(run.id)
    until(lambda: status(run) in ("running", "validating"), "its cluster's answer")
    control.kill(run.id)


@pytest.mark.exhaustive
def test_a_measurement_in_parts_is_the_same_to_the_last_digit_whoever_is_killed(
    lab: Lab, build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    model = build(image_size=(16, 16), patch_size=4, num_classes=len(SHAPES))
    checkpoint = load_checkpoint(save_checkpoint(tmp_path / "toy", model, SHAPES, Preprocess((16, 16))))
    what = Measurement("faithfulness", str(checkpoint.path), "shapes", str(tmp_path), 40)
    with one_thread():
        expected = rank(checkpoint, "shapes", 40)
    root = find_cluster(lab.name).runs if lab.name != HERE else runs_folder()
    with ThreadPoolExecutor() as pool:
        measured = pool.submit(measure, what, checkpoint, on=lab.name, workers=2)
        until(lambda: measured.done() or len(list(root.glob(".measurements/*/parts/*.npz"))) > 2, "its first parts")
        os.kill(processes_with(lab.worker)[0], signal.SIGKILL)
        assert measured.result(PATIENCE) == expected
    assert not list(root.glob(".measurements/*"))


@contextmanager
def one_thread() -> Iterator[None]:
    """As many as the processes of a measurement have, as last digits depend on it."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def processes_with(words: str) -> list[int]:
    """Those whose command line holds some words."""
    return [int(path.name) for path in Path("/proc").glob("[0-9]*") if words in command_of(int(path.name))]


def test_a_job_that_was_ended_before_it_began_trains_nothing(tmp_path: Path) -> None:
    """Ray starts the driver of a job that was stopped while it was pending."""
    folder = tmp_path / "20261123-000000-a-0000"
    folder.mkdir()
    handle = contract.next_handle(folder, "lab")
    contract.write_handle(handle, Request())
    assert contract.claim_job(folder, handle.job) == handle
    contract.conclude(handle, "stopped", "Killed.")
    assert contract.claim_job(folder, handle.job) is None
    again = contract.next_handle(folder, "lab")
    contract.write_handle(again, Request())
    assert contract.claim_job(folder, handle.job) is None
    assert contract.claim_job(folder, again.job) == again
    (folder / "stop").touch()
    assert contract.claim_job(folder, again.job) is None and contract.is_over(again)
