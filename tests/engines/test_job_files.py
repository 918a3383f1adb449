"""Job files: what they say, that their projects' schemas take them, and a run that somebody handed over."""

import copy
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml
from jsonschema.validators import validator_for
from patience import PATIENCE
from short_runs import begun, done, endless, place_for_runs, tiny, until, weights
from slurm_cluster import SlurmCluster, missing

from vit.errors import InvalidRun
from vit.files import beat
from vit.paths import PROJECT
from vit.runs import control, registry
from vit.runs.engines import contract, job_files, watch
from vit.runs.engines.clusters import Cluster
from vit.runs.engines.contract import Handle, Refused, Request, claim_job, mark_over, read_handle
from vit.training.run_folder import record_outcome

SCHEMAS = Path(__file__).parents[1] / "schemas"
KINDS = ("trainjob", "rayjob", "skypilot")
NAME = "20261123-101112-my-pets-3f2a"
FACTS: dict[str, Any] = {
    "name": "campus", "kind": "files", "runs": "/shared runs", "code": "/shared runs/it's code", "cpus": 8,
    "image": "registry.example.org:5000/vit@sha256:0a", "volume": "vit-runs", "accelerator": "H100",
}  # fmt: skip
CAMPUS = Cluster(**FACTS)
HANDLE = Handle(CAMPUS.runs / NAME, "campus", f"{NAME}.1", 0.0)
GPUS = Request(("gpu", "gpu"), nodes=3, minutes=60)


def complaints(kind: str, document: Any) -> list[str]:
    schema = json.loads((SCHEMAS / f"{kind}.json").read_text())
    return [error.message for error in validator_for(schema)(schema).iter_errors(document)]


def made(kind: str, request: Request = GPUS, cluster: Cluster = CAMPUS) -> Any:
    return yaml.safe_load(job_files.files(cluster, HANDLE, request)[f"{kind}.yaml"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("request_", [GPUS, Request()], ids=["gpus", "cpu"])
def test_schemas_take_them(kind: str, request_: Request) -> None:
    assert complaints(kind, made(kind, request_)) == []


@pytest.mark.parametrize(
    ("kind", "place"),
    [
        ("trainjob", ["spec", "trainer"]),
        ("trainjob", ["spec"]),
        ("rayjob", ["spec", "rayClusterSpec", "workerGroupSpecs", 0]),
        ("rayjob", ["spec", "rayClusterSpec", "headGroupSpec", "template", "spec", "containers", 0]),
        ("skypilot", ["resources"]),
        ("skypilot", []),
    ],
)
def test_schemas_refuse_what_they_do_not_know(kind: str, place: list[Any]) -> None:
    """Or that they take ours would mean nothing."""
    document = copy.deepcopy(made(kind))
    inner = document
    for key in place:
        inner = inner[key]
    inner["podTemplateOverrides"] = []
    assert complaints(kind, document)


def test_they_ask_for_the_machines_processors_and_gpus_of_the_run() -> None:
    trainer = made("trainjob")["spec"]["trainer"]
    assert (trainer["numNodes"], trainer["numProcPerNode"]) == (3, 2)
    assert trainer["resourcesPerNode"]["limits"] == {"cpu": 16, "nvidia.com/gpu": 2}
    (workers,) = made("rayjob")["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert workers["replicas"] == workers["maxReplicas"] == 6
    assert workers["template"]["spec"]["containers"][0]["resources"]["limits"] == {"cpu": 8, "nvidia.com/gpu": 1}
    task = made("skypilot")
    assert (task["num_nodes"], task["resources"]["accelerators"]) == (3, "H100:2")
    assert "accelerators" not in made("skypilot", Request())["resources"]
    assert "skypilot.yaml" not in job_files.files(Cluster(**FACTS | {"accelerator": ""}), HANDLE, GPUS)
    assert set(job_files.files(Cluster(**FACTS | {"image": ""}), HANDLE, GPUS)) == {"job.sh"}


def test_they_start_the_run_wherever_its_folder_lies() -> None:
    run = ["vit.runs.engines.torchrun_job", str(HANDLE.folder), HANDLE.job]
    assert made("trainjob")["spec"]["trainer"]["args"] == ["-m", *run]
    assert shlex.split(made("rayjob")["spec"]["entrypoint"])[3:] == [str(HANDLE.folder), HANDLE.job, "8"]
    assert shlex.split(made("skypilot")["run"].splitlines()[-1]) == ["-m", *run]
    environments = [
        {one["name"]: one["value"] for one in made("trainjob")["spec"]["trainer"]["env"]},
        made("skypilot")["envs"],
    ]
    for environment in environments:
        assert environment["PYTHONPATH"] == str(CAMPUS.code) and environment["OMP_NUM_THREADS"] == "8"
    mounts = made("rayjob")["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert mounts["volumeMounts"][0] == {"name": "runs", "mountPath": str(CAMPUS.runs)}


def test_names_on_kubernetes_leave_room_for_those_of_machines() -> None:
    for kind in ("trainjob", "rayjob"):
        assert made(kind)["metadata"] == {"generateName": "vit-3f2a-"}


def test_the_version_of_ray_is_that_which_is_tested() -> None:
    version = (PROJECT / "requirements-cluster.txt").read_text().strip().rpartition("==")[2]
    assert made("rayjob")["spec"]["rayClusterSpec"]["rayVersion"] == version


# --- A run that somebody hands over ---------------------------------------------------------------------------------


@pytest.fixture
def campus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of its runs."""
    runs = tmp_path / "shared"
    runs.mkdir()
    facts = {"kind": "files", "runs": str(runs), "image": "vit", "volume": "vit-runs", "code": str(PROJECT)}
    lines = [f"{name} = {json.dumps(value)}" for name, value in facts.items()]
    (tmp_path / "clusters.toml").write_text("\n".join(["[clusters.campus]", *lines]))
    monkeypatch.setenv("VIT_CLUSTERS", str(tmp_path / "clusters.toml"))
    with place_for_runs(tmp_path / "runs"):
        yield runs


@pytest.fixture
def hand_over() -> Iterator[Callable[[Path], "subprocess.Popen[bytes]"]]:
    """Does what Kubeflow does with trainjob.yaml, on this machine."""
    started = []

    def start(folder: Path) -> "subprocess.Popen[bytes]":
        trainer = yaml.safe_load((folder / "trainjob.yaml").read_text())["spec"]["trainer"]
        environment = {one["name"]: one["value"] for one in trainer["env"]}
        several = ["--standalone", f"--nproc-per-node={trainer['numProcPerNode']}"]
        command = [sys.executable, "-m", "torch.distributed.run", *several, *trainer["args"]]
        process = subprocess.Popen(command, env=dict(os.environ) | environment, start_new_session=True)
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            for one in with_workers(process):
                one.kill()
        process.wait()


def with_workers(launcher: "subprocess.Popen[bytes]") -> list[psutil.Process]:
    """The processes of a torchrun, which gives each worker a session of its own."""
    process = psutil.Process(launcher.pid)
    return [process, *process.children(recursive=True)]


def now(run: registry.Run) -> registry.Run:
    return registry.find_run(run.id, patience=5)


LONG = tiny(epochs=25, limit=160, seed=3, device="cpu")  # 2,000 steps


@pytest.mark.exhaustive
def test_handed_over_it_is_watched_lost_declared_over_and_resumed_to_the_same_bits(
    campus: Path, hand_over: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    run = control.launch(LONG, on="campus", devices=["cpu", "cpu"])
    waiting, names = now(run), "job.sh, trainjob.yaml, rayjob.yaml, skypilot.yaml"
    assert (waiting.status, waiting.reason) == ("waiting", f"Hand over one of its job files: {names}.")
    first = hand_over(run.folder)
    until(lambda: done(run) > 100, "its second epoch")
    processes = with_workers(first)
    for process in processes:
        process.suspend()
    assert now(run).status in ("running", "validating")
    with pytest.raises(Refused, match="nobody here drives campus"):
        control.kill(run.id)
    assert len(processes) >= 3
    for process in processes:
        process.kill()
    first.wait()
    monkeypatch.setattr(job_files, "SILENT_SECONDS", 1.0)
    lost = until(lambda: (result := now(run)).status == "unknown" and result, "that nobody knows")
    assert "Its last sign of life was" in lost.reason
    with pytest.raises(InvalidRun, match="going on"):
        control.resume(run.id)
    control.kill(run.id)
    assert now(run).status == "stopped"
    monkeypatch.setattr(job_files, "SILENT_SECONDS", 120.0)

    old = (run.folder / "trainjob.yaml").read_bytes()
    control.resume(run.id)
    new = (run.folder / "trainjob.yaml").read_bytes()
    assert new != old and now(run).status == "waiting"
    (run.folder / "trainjob.yaml").write_bytes(old)
    assert hand_over(run.folder).wait(PATIENCE) != 0  # a job file that is out of date trains nothing
    (run.folder / "trainjob.yaml").write_bytes(new)
    assert hand_over(run.folder).wait(PATIENCE) == 0
    finished = now(run)
    assert finished.status == "finished" and finished in registry.list_runs(patience=5)

    (tmp_path / "config.json").write_text(LONG.model_dump_json())
    torchrun = ["torch.distributed.run", "--standalone", "--nproc-per-node=2", "-m", "vit", "train"]
    command = [sys.executable, "-m", *torchrun, "--config", str(tmp_path / "config.json")]
    one_thread = dict(os.environ) | {"OMP_NUM_THREADS": "1"}
    subprocess.run([*command, "--run-dir", str(tmp_path / "alone")], env=one_thread, check=True, capture_output=True)
    assert weights(run.folder) == weights(tmp_path / "alone")


@pytest.mark.exhaustive
def test_stopped_by_a_person_it_saves_itself(campus: Path, hand_over: Any) -> None:
    run = control.launch(endless(), on="campus")
    process = hand_over(run.folder)
    begun(run)
    control.stop(run.id)
    assert process.wait(PATIENCE) == 0
    assert now(run).status == "stopped" and "Resume continues there" in now(run).reason


def test_a_run_that_its_time_limit_ended_is_not_over(campus: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is queued again, perhaps for hours; whoever looks meanwhile does not end it."""
    run = control.launch(endless(), on="campus")
    handle = read_handle(run.folder)
    assert handle
    beat(run.folder / "heartbeat", doing="training", share=None, step=3)
    record_outcome(run.folder, "stopped", "Stopped after 3 epochs.")
    monkeypatch.setattr(contract, "GRACE_SECONDS", 0)
    watch.forget()
    until(lambda: now(run).status == "ending", "that it has saved itself")
    monkeypatch.setattr(job_files, "SILENT_SECONDS", 0.0)
    watch.forget()
    waits = until(lambda: (seen := now(run)).status == "waiting" and seen, "that it waits")
    assert "What it was given to starts it again" in waits.reason
    assert claim_job(run.folder, handle.job) == handle
    (run.folder / "outcome.json").unlink()
    record_outcome(run.folder, "failed", "A process failed.")
    watch.forget()
    until(lambda: now(run).status == "unknown", "that nobody knows whether it is started again")
    mark_over(handle)
    assert (now(run).status, now(run).reason) == ("failed", "A process failed.")


@pytest.mark.exhaustive
def test_a_job_ends_once_the_run_has_another(campus: Path, hand_over: Any) -> None:
    """One that was declared over for its silence, and woke up."""
    run = control.launch(endless(), on="campus")
    process = hand_over(run.folder)
    begun(run)
    contract.write_handle(contract.next_handle(run.folder, "campus"), Request())
    assert process.wait(PATIENCE) != 0
    assert "has another job, so this one ends" in (run.folder / "log.txt").read_text()
    mark_over(contract.read_handle(run.folder))


@pytest.mark.exhaustive
def test_settings_that_cannot_be_end_it_for_good(campus: Path, hand_over: Any, tmp_path: Path) -> None:
    run = control.launch(tiny(data=f"folder:{tmp_path / 'nowhere'}"), on="campus")
    assert hand_over(run.folder).wait(PATIENCE) != 0
    assert now(run).status == "failed" and now(run).reason.startswith("There is no folder")


@pytest.mark.exhaustive
def test_called_off_before_it_was_handed_over_it_trains_nothing(campus: Path, hand_over: Any) -> None:
    run = control.launch(endless(), on="campus")
    control.stop(run.id)
    assert now(run).status == "stopped"
    assert hand_over(run.folder).wait(PATIENCE) != 0
    assert not (run.folder / "metrics.jsonl").exists()
    control.delete(run.id)


@pytest.mark.exhaustive
@pytest.mark.cluster
def test_sbatch_takes_the_script(campus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if program := missing():
        (pytest.fail if "VIT_NEED_CLUSTERS" in os.environ else pytest.skip)(f"{program} is not installed: make cluster")
    run = control.launch(endless(), on="campus", minutes=20)
    cluster = SlurmCluster(tmp_path / "slurm")
    try:
        cluster.start()
        environment = dict(os.environ) | cluster.environment
        command = ["sbatch", "--test-only", str(run.folder / "job.sh")]
        completed = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        assert completed.returncode == 0 and "to start at" in completed.stderr, completed.stderr
        broken = run.folder / "broken.sh"
        broken.write_text((run.folder / "job.sh").read_text().replace("--nodes=1", "--nodes=9"))
        assert subprocess.run([*command[:2], str(broken)], env=environment, timeout=60).returncode != 0
    finally:
        cluster.end()
