"""The administrator's cluster file: complete parsing, refusals in one sentence, and limits on what runs get."""

import json
import shlex
import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from fake_cluster import Fake, set_up
from short_runs import temporary_runs_folder, tiny, until

from vit.cli.main import main
from vit.errors import InvalidConfig
from vit.training.engines import clusters, contract
from vit.training.engines.contract import Request, RequestRejected, Unreachable, next_handle
from vit.training.engines.ray_job import ProcessPlacement, torchrun_variables
from vit.training.engines.slurm_script import batch_script
from vit.training.loop.presets import train_config
from vit.training.runs import control, registry
from vit.training.runs.queue_file import launch_lock
from vit.training.search import control as searches

RAY = 'kind = "ray"\nruns = "/shared/runs"\naddress = "http://head:8265"\ntoken_file = "/etc/token"\n'


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VIT_CLUSTERS", str(tmp_path / "secrets.toml"))
    return tmp_path / "secrets.toml"


@pytest.fixture
def lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Fake]:
    with temporary_runs_folder(tmp_path / "runs"):
        yield set_up(tmp_path, monkeypatch, nodes=2, processes=2, minutes=60, runs_per_person=1)


def wait_until_ended(run: registry.Run) -> registry.Run:
    until(lambda: not registry.find_run(run.id, patience=5).alive, "the end")
    return registry.find_run(run.id, patience=5)


def test_missing_file_means_no_cluster(file: Path) -> None:
    assert clusters.read_clusters() == clusters.Clusters(usable={}, problems={})


def test_file_may_contain_other_secrets_and_is_reread_after_a_change(file: Path) -> None:
    file.write_text(f'[auth]\ncookie_secret = "x"\n[clusters.lab]\n{RAY}[clusters.lab.limits]\nnodes = 3\n')
    assert clusters.find_cluster("lab").limits.nodes == 3
    file.write_text(f"[clusters.other]\n{RAY}")
    assert list(clusters.read_clusters().usable) == ["other"]


@pytest.mark.parametrize(
    ("name", "table", "says"),
    [
        ("here", RAY, "the name of this machine"),
        ("Lab 1", RAY, "name "),
        ("lab", RAY.replace("/shared", "shared"), "paths from the root"),
        ("lab", RAY.replace("http:", "file:"), "needs address"),
        ("lab", RAY.replace("token_file", "#"), "needs address"),
        ("lab", RAY + 'partition = "a; rm -r /"', "partition "),
        ("lab", RAY + "nods = 4", "no setting 'nods'"),
        ("lab", RAY + "limits.nodes = 0", "limits.nodes must be at least 1"),
    ],
)
def test_mistake_is_named_and_affects_no_other_cluster(file: Path, name: str, table: str, says: str) -> None:
    file.write_text(f'[clusters.good]\n{RAY}\n[clusters."{name}"]\n{table}\n')
    configured = clusters.read_clusters()
    assert list(configured.usable) == ["good"] and says in configured.problems[name]
    with pytest.raises(InvalidConfig, match="cannot be used"):
        clusters.find_cluster(name)


@pytest.mark.parametrize("text", ["clusters = 5", "clusters = [1]", "clusters.lab = 5", "[clusters", "\0"])
def test_invalid_file_does_not_crash(file: Path, text: str) -> None:
    file.write_text(text)
    assert not clusters.read_clusters().usable
    assert registry.list_runs() is not None


def test_unknown_engine_is_refused_with_the_known_ones(file: Path) -> None:
    file.write_text(f"[clusters.lab]\n{RAY}")
    with pytest.raises(InvalidConfig, match=r"no cluster far\. Choose from: here, lab"):
        control.launch(tiny(), on="far")


@pytest.mark.parametrize(
    ("request_", "says"),
    [
        ({"nodes": 3}, "nodes: lab grants a run at most 2, not 3"),
        ({"devices": ["cpu"] * 3}, "processes on a node: lab grants a run at most 2, not 3"),
        ({"minutes": 61}, "minutes: lab grants a run at most 60, not 61"),
        ({"devices": ["cuda:0"]}, "choose cpu, or one or more GPUs"),
        ({"devices": []}, "choose cpu, or one or more GPUs"),
    ],
)
def test_runs_are_limited_to_what_a_cluster_grants(lab: Fake, request_: dict[str, object], says: str) -> None:
    with pytest.raises(InvalidConfig, match=says):
        control.launch(tiny(), on="lab", **request_)
    assert registry.list_runs() == []


def test_data_invisible_to_the_machines_is_refused(lab: Fake, tmp_path: Path) -> None:
    file = tmp_path / "clusters.toml"
    file.write_text(file.read_text().replace("[clusters.lab.limits]", 'data = ["/shared/data"]\n[clusters.lab.limits]'))
    with pytest.raises(InvalidConfig, match="the machines of lab see /shared/data, and /home/me is in none of these"):
        control.launch(tiny(data="folder:/home/me"), on="lab")


def test_copy_of_a_checkpoint_keeps_no_other_launch_waiting(lab: Fake) -> None:
    root = lab.jobs.parent
    config = train_config(data="shapes", init_from="cifar10")
    with lab.unreachable(), ThreadPoolExecutor(1) as pool:
        with launch_lock(root):
            launched = pool.submit(control.launch, config, on="lab")
            until(lambda: list(root.glob("*/start/cifar10/config.json")), "the copy")
        with pytest.raises(Unreachable):
            launched.result()
    assert not list(root.glob("*/start"))


def test_search_with_more_trials_than_runs_of_a_person_is_refused(lab: Fake) -> None:
    with pytest.raises(InvalidConfig, match="You have 0 runs waiting or running, and 1 are allowed"):
        searches.start(config=tiny(), space={"lr": "1e-4:1e-2"}, trials=2, on="lab")
    assert registry.list_runs() == searches.list_searches() == []


@pytest.mark.exhaustive
def test_short_run_from_the_command_line_tries_the_cluster(lab: Fake) -> None:
    command = ["train", "--preset", "shapes", "--on", "lab", "--devices", "cpu"]
    assert main([*command, "--set", "epochs=1", "limit=80", "batch_size=8"]) == 0
    (run,) = registry.list_runs()
    assert wait_until_ended(run).status == "finished"


def test_dry_runs_left_by_earlier_versions_are_not_listed(lab: Fake) -> None:
    folder = lab.jobs.parent / ".trials" / "trial-0123456789ab"
    folder.mkdir(parents=True)
    (folder / "trial.json").write_text("{}")
    contract.write_handle(next_handle(folder, "lab"), Request())
    assert registry.list_runs() == []


def test_submission_refused_by_an_engine_leaves_no_run(lab: Fake) -> None:
    with pytest.raises(RequestRejected, match="lab has one machine"):
        control.launch(tiny(), on="lab", nodes=2)
    assert registry.list_runs() == []


def test_copy_of_a_run_is_not_the_runs_job(lab: Fake) -> None:
    """Killing a copy does not kill the run."""
    run = control.launch(tiny(epochs=1000), on="lab")
    copy = run.folder.with_name("a-copy")
    shutil.copytree(run.folder, copy)
    assert (registry.find_run("a-copy").on, registry.find_run("a-copy").alive) == ("here", False)
    control.kill(run.id)


@pytest.mark.exhaustive
def test_run_whose_resumption_is_refused_is_unchanged(lab: Fake) -> None:
    run = wait_until_ended(control.launch(tiny(epochs=1), on="lab"))
    about = run.folder / "about.json"
    about.write_text(about.read_text().replace('"nodes": 1', '"nodes": 2'))  # more than the cluster has
    before = about.read_text()
    with pytest.raises(RequestRejected, match="lab has one machine"):
        control.resume(run.id, epochs=2, devices=["cpu", "cpu"])
    assert json.loads(about.read_text()) == json.loads(before)
    after = registry.find_run(run.id, patience=5)
    assert (after.status, after.config["epochs"]) == ("finished", 1)


def test_resubmission_uses_another_job_name(lab: Fake, tmp_path: Path) -> None:
    """An engine that did not answer may have accepted a job."""
    folder, jobs = tmp_path / "20261123-000000-a-0000", []
    folder.mkdir()
    for _ in range(2):
        with pytest.raises(Unreachable), contract.submitting(lab, folder, Request()) as handle:
            jobs.append(handle.job)
            raise Unreachable("No answer.")
        assert contract.read_handle(folder) is None
    assert jobs == [f"{folder.name}.1", f"{folder.name}.2"]


def test_batch_script_quotes_any_folder_name(tmp_path: Path) -> None:
    table = {"name": "hpc", "kind": "slurm", "runs": tmp_path, "setup": ["module load cuda"], "code": tmp_path / "a b"}
    handle = next_handle(tmp_path / "it's $(here)", "hpc")
    request = Request(("gpu", "gpu"), nodes=3, minutes=90)
    script = batch_script(clusters.Cluster.model_validate(table), handle, request)
    lines = script.splitlines()
    assert lines[0] == "#!/bin/bash" and "module load cuda" in lines
    assert {"#SBATCH --nodes=3", "#SBATCH --ntasks-per-node=2", "#SBATCH --gres=gpu:2", "#SBATCH --time=90"} <= {*lines}
    arguments = shlex.split(lines[-1])
    assert arguments == ["exec", "python", "-m", "vit.training.engines.slurm_job", str(handle.folder), handle.job]
    assert f"export PYTHONPATH={shlex.quote(str(tmp_path / 'a b'))}" in lines


def test_processes_on_ray_get_the_environment_of_torchrun() -> None:
    """Ray assigns slots in any order; those of a machine are grouped, and see all of the run's GPUs there."""
    places = [
        ProcessPlacement(node, f"host-{node}", f"10.0.0.{node}", port, gpus)
        for node, port, gpus in (("7", 1001, ("3",)), ("4", 1002, ("0",)), ("7", 1003, ("1",)), ("4", 1004, ("2",)))
    ]
    every = torchrun_variables(places)
    assert [(one["RANK"], one["LOCAL_RANK"]) for one in every] == [("0", "0"), ("2", "0"), ("1", "1"), ("3", "1")]
    assert {(one["WORLD_SIZE"], one["MASTER_ADDR"], one["MASTER_PORT"]) for one in every} == {("4", "10.0.0.7", "1001")}
    visible = [one["CUDA_VISIBLE_DEVICES"] for one in every]
    assert visible == ["3,1", "0,2", "3,1", "0,2"]  # the process's own GPU is at its local rank
    (alone,) = torchrun_variables([ProcessPlacement("7", "host", "10.0.0.7", 1001, ())])
    assert alone["WORLD_SIZE"] == "1" and "CUDA_VISIBLE_DEVICES" not in alone
