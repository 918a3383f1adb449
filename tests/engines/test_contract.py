"""One contract for all places where runs compute: submitted, waiting, run, stopped, killed, failed, vanished, resumed,
submitted twice, counted, out of reach, and met again by another server.
"""

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from fake_cluster import set_up
from ray_cluster import RayCluster, command_of, enter_network_of_its_own
from short_runs import PATIENCE, begun, done, endless, place_for_runs, tiny, until, weights
from slurm_cluster import SlurmCluster, missing

from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.data.shapes import SHAPES
from vit.errors import InvalidRun
from vit.explain.method_ranking import rank
from vit.files import replaced
from vit.images.preprocess import Preprocess
from vit.paths import PROJECT, runs_folder
from vit.runs import control, registry
from vit.runs.batch.parts import Measurement
from vit.runs.batch.spread import measure
from vit.runs.engines import contract, here, places
from vit.runs.engines.clusters import find_cluster
from vit.runs.engines.contract import HERE, Engine, Refused, Request, Unreachable, read_handle
from vit.training.metrics import read_metrics
from vit.training.presets import train_config

pytestmark = pytest.mark.slow


class Lab(NamedTuple):
    """A place where runs compute, and what a test may do to it.

    Attributes:
        processes: of a run, all of them.
        worker: in the command line of each process that measures.
        shared: whether its machines see the folder of runs.
        unreachable: nobody answers meanwhile; None where that cannot be.
        nodes: that a run takes, all there are.
    """

    name: str
    engine: Engine
    processes: Callable[[registry.Run], list[int]]
    unreachable: Callable[[], AbstractContextManager[None]] | None = None
    nodes: int = 1
    end: Callable[[], None] | None = None
    worker: str = "vit.runs.batch.worker"
    shared: bool = True


def leave_out(why: str) -> None:
    """Skip what this machine lacks; `make cluster-test`, whose only purpose it is, fails instead."""
    (pytest.fail if "VIT_NEED_CLUSTERS" in os.environ else pytest.skip)(why)


def lab_here(root: Path, patch: pytest.MonkeyPatch) -> Lab:
    return Lab(HERE, here.Here(), lambda run: here.lock_holders(run.folder))


def lab_fake(root: Path, patch: pytest.MonkeyPatch) -> Lab:
    """One slot, and all processes of a job in one group."""
    engine = set_up(root.parent, patch)

    def processes(run: registry.Run) -> list[int]:
        handle = read_handle(run.folder)
        return [int((engine.jobs / handle.job / "pid").read_text())] if handle else []

    return Lab("lab", engine, processes, engine.unreachable)


def lab_apart(root: Path, patch: pytest.MonkeyPatch) -> Lab:
    """The same, whose machines share no folder with this one, nor with each other."""
    return lab_ray(root, patch, shared=False)


def lab_ray(root: Path, patch: pytest.MonkeyPatch, shared: bool = True) -> Lab:
    """A head and two machines of one processor.

    Its name is its own, as a thread that asks for another place has stayed in another network.
    """
    if find_spec("ray") is None:
        leave_out("Ray is not installed: make cluster installs it")
    try:
        enter_network_of_its_own()
    except PermissionError as error:
        leave_out(f"a network of its own needs administrator rights: {error}")
    cluster = RayCluster(root.with_name("ray"))
    try:
        cluster.start_head()
        for number in (1, 2):
            cluster.start_node(number)
    except BaseException:
        cluster.end()
        raise
    folder = root.with_name("shared")
    folder.mkdir()
    name = "ray" if shared else "apart"
    settings = {"kind": "ray", "runs": folder, "token_file": cluster.token, "python": sys.executable, "code": PROJECT}
    if not shared:
        settings["mirror"] = f"file://{root.with_name('storage')}"
    file = root.with_name("clusters.toml")
    patch.setenv("VIT_CLUSTERS", str(file))

    def set_up(address: str) -> None:
        lines = [f'{key} = "{value}"' for key, value in (settings | {"address": address}).items()]
        with replaced(file) as whole:  # it is read all the time
            whole.write("\n".join([f"[clusters.{name}]", *lines, f"[clusters.{name}.limits]", "nodes = 2"]).encode())

    @contextmanager
    def unreachable() -> Iterator[None]:
        """Somebody takes the call and says nothing, as a head that is stuck."""
        with socket.create_server(("127.0.0.1", 0)) as silent:
            set_up(f"http://127.0.0.1:{silent.getsockname()[1]}")
            try:
                yield
            finally:
                set_up(cluster.address)

    set_up(cluster.address)

    def processes(run: registry.Run) -> list[int]:
        drivers = cluster.processes(f"vit.runs.engines.ray_job {run.folder}")
        folders = [run.folder] if shared else [cluster.scratch(number) / run.id for number in (1, 2)]
        return drivers + [pid for place in folders for pid in here.lock_holders(place)]

    engine, worker = places.cluster_engine(name), "ray::MapWorker"
    return Lab(name, engine, processes, unreachable, nodes=2, end=cluster.end, worker=worker, shared=shared)


def lab_slurm(root: Path, patch: pytest.MonkeyPatch) -> Lab:
    """Two machines of one processor."""
    if program := missing():
        leave_out(f"{program} is not installed: make cluster installs it")
    cluster = SlurmCluster(root.with_name("slurm"))
    for name, value in cluster.environment.items():
        patch.setenv(name, value)
    try:
        cluster.start()
    except BaseException:
        cluster.end()
        raise
    folder = root.with_name("shared")
    folder.mkdir()
    settings = {"kind": "slurm", "runs": folder, "python": sys.executable, "code": PROJECT}
    lines = [f'{name} = "{value}"' for name, value in settings.items()]
    patch.setenv("VIT_CLUSTERS", str(root.with_name("clusters.toml")))
    root.with_name("clusters.toml").write_text(
        "\n".join(["[clusters.lab]", *lines, "[clusters.lab.limits]", "nodes = 2"])
    )

    def processes(run: registry.Run) -> list[int]:
        script = cluster.processes(f"vit.runs.engines.slurm_job {run.folder}")
        return script + cluster.processes(f"--resume {run.folder}") + here.lock_holders(run.folder)

    @contextmanager
    def unreachable() -> Iterator[None]:
        """The controller is gone, and comes back with what it knew."""
        for pid in cluster.processes("slurmctld"):
            os.kill(pid, signal.SIGKILL)
        try:
            yield
        finally:
            cluster.start_controller()

    return Lab("lab", places.cluster_engine("lab"), processes, unreachable, nodes=2, end=cluster.end)


LABS = [
    pytest.param(lab_here, id="here"),
    pytest.param(lab_fake, id="fake"),
    pytest.param(lab_slurm, id="slurm", marks=pytest.mark.cluster),
    pytest.param(lab_ray, id="ray", marks=pytest.mark.cluster),  # from here this process has loopback alone
    pytest.param(lab_apart, id="apart", marks=pytest.mark.cluster),
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
sys.path[:0] = sys.argv[2:]
import fake_cluster
from vit.runs import control, registry
print(registry.find_run(sys.argv[1], patience=5).status, flush=True)
control.stop(sys.argv[1])
"""
    folders = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    command = [sys.executable, "-c", program, first.id, *folders]
    said = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=True).stdout.split()
    assert said[0] in ("running", "validating")
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


LONG = tiny(epochs=5, limit=160, seed=3, device="cpu")  # 400 steps


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


def test_vanished_it_is_interrupted_and_resumed_to_the_same_bits(lab: Lab, uninterrupted: Path) -> None:
    run = launch(lab, LONG)
    until(lambda: done(run) > 100, "its second epoch")
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


def test_a_measurement_in_parts_is_the_same_to_the_last_digit_whoever_is_killed(
    lab: Lab, build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    model = build(image_size=(16, 16), patch_size=4, num_classes=len(SHAPES))
    checkpoint = load_checkpoint(save_checkpoint(tmp_path / "toy", model, SHAPES, Preprocess((16, 16))))
    what = Measurement("faithfulness", str(checkpoint.path), "shapes", str(tmp_path), 40)
    with one_thread():
        expected = rank(checkpoint, "shapes", 40)
    if not lab.shared:
        with pytest.raises(Refused, match="shares no folder with this machine"):
            measure(what, checkpoint, on=lab.name, workers=2)
        return
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
    assert contract.take_up(folder, handle.job) == handle
    contract.conclude(handle, "stopped", "Killed.")
    assert contract.take_up(folder, handle.job) is None
    again = contract.next_handle(folder, "lab")
    contract.write_handle(again, Request())
    assert contract.take_up(folder, handle.job) is None
    assert contract.take_up(folder, again.job) == again
    (folder / "stop").touch()
    assert contract.take_up(folder, again.job) is None and contract.is_over(again)
