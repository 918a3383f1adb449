"""The status of runs from their folders: alive or dead, how they ended, and which actions are allowed."""

import fcntl
import json
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from short_runs import endless, temporary_runs_folder, tiny, write_dead_run

import vit
from vit import files
from vit.errors import InvalidCheckpoint, InvalidConfig, InvalidRun
from vit.training.engines import local
from vit.training.loop import run_folder
from vit.training.loop.distributed import Process
from vit.training.loop.metrics import read_metrics
from vit.training.loop.recorder import Recorder
from vit.training.loop.run_folder import FORMAT
from vit.training.loop.train import Diverged, train
from vit.training.runs import control, launch_checks, registry


@pytest.fixture(autouse=True)
def folder(tmp_path: Path) -> Iterator[Path]:
    with temporary_runs_folder(tmp_path / "runs") as root:
        yield root


# --- Alive or dead ------------------------------------------------------------------------------------------------


def test_run_without_a_held_lock_is_dead(folder: Path) -> None:
    stale = write_dead_run(folder)
    (stale / "alive.lock").write_text("")
    run = registry.find_run(stale.name)
    assert run.status == "interrupted" and not run.alive
    assert "Resume it" in run.reason


def test_reused_process_id_does_not_make_a_run_alive(folder: Path) -> None:
    stale = write_dead_run(folder)
    for name in ("alive.lock", "pid", "heartbeat"):
        (stale / name).write_text(str(os.getpid()))
    assert registry.find_run(stale.name).status == "interrupted"
    assert local.lock_holders(stale) == []
    with pytest.raises(InvalidRun, match="ended already"):
        control.kill(stale.name)


def test_checking_whether_a_run_is_alive_does_not_make_it_alive(folder: Path) -> None:
    stale = write_dead_run(folder)
    with (stale / "alive.lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_SH)
        assert run_folder.is_alive(stale)
        fcntl.flock(other, fcntl.LOCK_UN)
        assert not any(run_folder.is_alive(stale) for _ in range(100))


def test_run_without_a_recent_heartbeat_is_stalled(folder: Path) -> None:
    silent = write_dead_run(folder)
    with run_folder.hold_run(silent):
        assert registry.find_run(silent.name).status == "starting"
        (silent / "heartbeat").touch()
        assert registry.find_run(silent.name).status == "running"
        os.utime(silent / "heartbeat", (0, 0))
        assert registry.find_run(silent.name).status == "stalled"


@pytest.mark.parametrize("moved", [-86_400, 86_400])
def test_changed_clock_neither_hides_nor_invents_a_stall(folder: Path, moved: int) -> None:
    run = write_dead_run(folder)
    heartbeat = run / "heartbeat"
    with run_folder.hold_run(run):
        files.write_heartbeat(heartbeat)
        os.utime(heartbeat, (time.time() + moved,) * 2)
        assert registry.find_run(run.name).status == "running"
        pulse = json.loads(heartbeat.read_text())
        heartbeat.write_text(json.dumps(pulse | {"at": pulse["at"] - registry.STALLED_SECONDS - 60}))
        os.utime(heartbeat, (time.time() + moved,) * 2)
        assert registry.find_run(run.name).status == "stalled"


def test_heartbeat_of_another_machine_counts_by_its_files_time(folder: Path) -> None:
    heartbeat = write_dead_run(folder) / "heartbeat"
    heartbeat.write_text('{"boot": "another", "at": 1.0}')
    long_ago = 1_000_000
    os.utime(heartbeat, (time.time() - long_ago,) * 2)
    assert files.heartbeat_age(heartbeat) >= long_ago


@pytest.mark.parametrize("ahead", [-86_400, 86_400])
def test_wrong_clock_of_another_machine_neither_hides_nor_invents_a_stall(
    folder: Path, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    run, now, begun = write_dead_run(folder), time.monotonic(), time.time()
    heartbeat = run / "heartbeat"
    monkeypatch.setattr(files.time, "monotonic", lambda: now)

    def beat(number: int) -> None:
        heartbeat.write_text(json.dumps({"boot": "another", "at": number}))
        os.utime(heartbeat, (begun + ahead + number,) * 2)

    with run_folder.hold_run(run):
        beat(0)
        assert registry.find_run(run.name).status == ("running" if ahead > 0 else "stalled")  # the first check
        beat(2)
        assert registry.find_run(run.name).status == "running"
        now += registry.STALLED_SECONDS - 1
        assert registry.find_run(run.name).status == "running"
        now += 2
        assert registry.find_run(run.name).status == "stalled"
        beat(4)
        assert registry.find_run(run.name).status == "running"


@pytest.mark.parametrize("at", [1e6, 1e300, None, "1", True, [1], -1e300])
def test_heartbeat_that_this_machine_cannot_have_written_counts_from_the_first_look(
    folder: Path, monkeypatch: pytest.MonkeyPatch, at: object
) -> None:
    run, now = write_dead_run(folder), time.monotonic()
    monkeypatch.setattr(files.time, "monotonic", lambda: now)
    with run_folder.hold_run(run):
        files.write_heartbeat(run / "heartbeat")
        pulse = json.loads((run / "heartbeat").read_text())
        ahead = pulse["at"] + at if isinstance(at, float) else at
        (run / "heartbeat").write_text(json.dumps(pulse | {"at": ahead}))
        os.utime(run / "heartbeat", (time.time() + 86_400,) * 2)
        assert registry.find_run(run.name).status == "running"
        now += registry.STALLED_SECONDS + 1
        assert registry.find_run(run.name).status == "stalled"


def test_stopping_lasts_until_the_process_is_gone(folder: Path) -> None:
    run = write_dead_run(folder)
    with run_folder.hold_run(run):
        (run / "heartbeat").touch()
        control.stop(run.name)
        run_folder.record_outcome(run, "stopped", "Stopped after 2 epochs.")
        assert registry.find_run(run.name).status == "stopping"
    assert registry.find_run(run.name).status == "stopped"
    with run_folder.hold_run(run):  # another attempt
        assert registry.find_run(run.name).status == "starting"


def test_run_with_a_recorded_outcome_is_ending(folder: Path) -> None:
    run = write_dead_run(folder)
    with run_folder.hold_run(run):
        (run / "heartbeat").touch()
        run_folder.record_outcome(run, "finished")
        result = registry.find_run(run.name)
        assert (result.status, result.alive) == ("ending", True)
    assert registry.find_run(run.name).status == "finished"


@pytest.mark.parametrize(
    ("doing", "words"), [("validating", "the current validation"), ("testing", "the current test")]
)
def test_evaluation_is_shown_with_its_progress_until_training_continues(folder: Path, doing: str, words: str) -> None:
    run = write_dead_run(folder)
    facts = {"total_steps": 80, "steps_per_epoch": 40, "batch_size": 2, "epochs": 2, "lr": 1e-3}
    with run_folder.hold_run(run), Recorder(run, 0, Process(torch.device("cpu"), False), 0, facts) as recorder:
        assert status_of(run) == ("running", None, 0)
        recorder.at = 40
        getattr(recorder, doing)(0.25)
        assert status_of(run) == (doing, 0.25, 40)
        control.stop(run.name)
        assert status_of(run) == ("stopping", 0.25, 40) and f"after {words}" in registry.find_run(run.name).reason
        (run / "stop").unlink()
        recorder.write_heartbeat()
        assert status_of(run) == ("running", None, 40)


def status_of(folder: Path) -> tuple[str, float | None, int]:
    run = registry.find_run(folder.name)
    return run.status, run.evaluated, run.step


def test_run_from_the_command_line_is_listed_like_the_others(folder: Path) -> None:
    train(tiny(epochs=1), folder / "20261121-000000-terminal")
    (run,) = registry.list_runs()
    assert (run.id, run.status) == ("20261121-000000-terminal", "finished")


def test_non_finite_loss_is_the_reason_with_its_step(folder: Path) -> None:
    wild = dict(lr=10, weight_decay=10, warmup_epochs=0, schedule="constant", grad_clip=0)
    with pytest.raises(Diverged):
        train(endless(**wild, precision="float32"), folder / "run")
    run = registry.find_run("run")
    assert run.status == "failed"
    assert re.search(r"The loss became (nan|inf) by step \d+", run.reason)


def test_early_stopping_ends_a_run_without_improvement(folder: Path) -> None:
    train(tiny(epochs=500, lr=1e-8, patience=2), folder / "run")
    run = registry.find_run("run")
    assert run.status == "finished" and "not better in 2 epochs" in run.reason
    epochs = [record for record in read_metrics(run.folder / "metrics.jsonl") if record["kind"] == "validation"]
    assert 3 <= len(epochs) < 500


# --- Actions ------------------------------------------------------------------------------------------------------


def test_no_run_starts_on_a_nearly_full_disk(folder: Path) -> None:
    with pytest.raises(InvalidConfig, match=r"are kept free\. Delete old runs first"):
        control.launch(tiny(), limits=launch_checks.Limits(free_bytes=1 << 60))
    assert registry.list_runs() == []


def test_form_sent_twice_starts_one_run(folder: Path) -> None:
    first, second = (control.launch(endless(), nonce="form 1") for _ in range(2))
    assert first.id == second.id
    assert len(registry.list_runs()) == 1


def test_number_of_runs_per_person_is_limited(folder: Path) -> None:
    limits = launch_checks.Limits(runs_per_person=1, free_bytes=0)
    control.launch(endless(), owner="ann@example.org", limits=limits)
    with pytest.raises(InvalidConfig, match="You have 1 runs waiting or running, and 1 are allowed"):
        control.launch(endless(), owner="ann@example.org", limits=limits)
    assert control.launch(endless(), owner="bob@example.org", limits=limits).alive


@pytest.mark.parametrize("devices", [(), ("cpu", "cuda:0"), ("cpu; rm",), ("tpu",)])
def test_invalid_devices_are_refused(folder: Path, devices: tuple[str, ...]) -> None:
    with pytest.raises(InvalidConfig, match="devices"):
        control.launch(tiny(), devices=devices)


@pytest.mark.parametrize(
    ("gpus", "devices", "says"),
    [
        ([], ["cuda:0"], "this machine has no GPU. Choose cpu."),
        ([], ["gpu"], "this machine has no GPU. Choose cpu."),
        (["cuda:0", "cuda:1"], ["cuda:0", "cuda:7"], "no cuda:7. Choose cuda:0, cuda:1 or cpu."),
        (["cuda:0"], ["gpu", "gpu"], "has 1 GPUs, not 2"),
    ],
)
def test_missing_gpu_is_refused_before_the_start_and_before_a_resume(
    folder: Path, monkeypatch: pytest.MonkeyPatch, gpus: list[str], devices: list[str], says: str
) -> None:
    monkeypatch.setattr(launch_checks, "gpu_names", lambda: gpus)
    with pytest.raises(InvalidConfig, match=re.escape(says)):
        control.launch(tiny(), devices=devices)
    assert not registry.list_runs()
    run = write_dead_run(folder, devices=devices)
    (run / "checkpoints").mkdir()
    (run / "checkpoints" / "state.pt").touch()
    with pytest.raises(InvalidConfig, match=re.escape(says)):
        control.resume(run.name)


@pytest.mark.parametrize(
    ("setting", "on", "devices"),
    [
        ("auto", "here", "gpu"),
        ("cuda", "here", "gpu"),
        ("cuda:1", "here", "cuda:1"),
        ("cpu", "here", "cpu"),
        ("auto", "lab", "gpu"),
        ("cuda:1", "lab", "gpu"),
        ("cpu", "lab", "cpu"),
    ],
)
def test_setting_of_a_device_becomes_a_request(
    monkeypatch: pytest.MonkeyPatch, setting: str, on: str, devices: str
) -> None:
    monkeypatch.setattr(launch_checks, "gpu_names", lambda: ["cuda:0", "cuda:1"])
    assert launch_checks.devices_of_setting(setting, on) == (devices,)


@pytest.mark.parametrize("run_id", ["", "..", ".queue", "../runs", "/etc", "a/b", "Ä", "none", "x" * 200, "a\0b", None])
def test_id_is_looked_up_and_never_joined(folder: Path, run_id: Any) -> None:
    with pytest.raises(InvalidRun, match="no such run"):
        registry.find_run(run_id)


def test_link_is_no_run(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "config.json").write_text("{}")
    (folder / "link").symlink_to(outside)
    assert registry.list_runs() == []
    with pytest.raises(InvalidRun):
        registry.find_run("link")


def test_names_and_notes_change_and_the_folder_stays(folder: Path) -> None:
    run = write_dead_run(folder)
    control.rename(run.name, "  New\n name " + "x" * 100)
    control.annotate(run.name, "why")
    result = registry.find_run(run.name)
    assert result.name.startswith("New name xxx") and len(result.name) == 60
    assert (result.notes, result.devices) == ("why", ("cpu",))
    with pytest.raises(InvalidRun, match="needs a name"):
        control.rename(run.name, " ")


def test_deleted_run_is_gone_and_a_running_one_is_kept(folder: Path) -> None:
    run = write_dead_run(folder)
    with run_folder.hold_run(run), pytest.raises(InvalidRun, match="Stop it first"):
        control.delete(run.name)
    control.delete(run.name)
    assert registry.list_runs() == [] and not any(path.name.startswith(".2") for path in folder.iterdir())


def test_run_is_kept_as_a_checkpoint_under_a_free_name(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIT_CHECKPOINTS", str(tmp_path / "checkpoints"))
    (tmp_path / "checkpoints").mkdir()
    train(tiny(epochs=1), folder / "run")
    control.keep_checkpoint("run", "kept")
    assert vit.load_checkpoint("kept").config.dim == 16
    with pytest.raises(InvalidCheckpoint, match="already"):
        control.keep_checkpoint("run", "kept")
    for name in ("", "../x", ".hidden", "Big"):
        with pytest.raises(InvalidCheckpoint, match="name"):
            control.keep_checkpoint("run", name)
    with pytest.raises(InvalidRun, match="no checkpoint yet"):
        control.keep_checkpoint(write_dead_run(folder).name, "none")


@pytest.mark.parametrize(
    ("written", "status"), [({}, "interrupted"), ({"format": FORMAT}, "interrupted"), ({"format": 99}, "unreadable")]
)
def test_run_of_a_later_version_is_reported_and_unchanged(folder: Path, written: dict[str, int], status: str) -> None:
    run = write_dead_run(folder)
    (run / "environment.json").write_text(json.dumps({"attempt": 0} | written))
    before = {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}
    listed = registry.find_run(run.name)
    assert listed.status == status
    if status == "unreadable":
        assert "format 99" in listed.reason and listed.problem == listed.reason
        with pytest.raises(InvalidRun, match=r"format 99.*Update the app"):
            control.resume(run.name)
        assert before == {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_invalid_files_of_a_run_do_not_break_the_list(folder: Path) -> None:
    for number, text in enumerate(("", "[]", '{"name": 3, "created": "x", "devices": 5, "owner": null}', "\xff")):
        run = write_dead_run(folder, f"run-{number}")
        (run / "about.json").write_text(text, encoding="latin-1")
        (run / "outcome.json").write_text(text, encoding="latin-1")
        (run / "config.json").write_text(text, encoding="latin-1")
    assert [run.status for run in registry.list_runs() if run.id == "run-2"] == ["interrupted"]
    unreadable = {run.id: run.reason for run in registry.list_runs() if run.status == "unreadable"}
    assert unreadable == {
        "run-0": "config.json cannot be read: it is damaged (not JSON at line 1).",
        "run-1": "config.json cannot be read: it holds no JSON object.",
        "run-3": "config.json cannot be read: it is damaged (not UTF-8).",
    }
