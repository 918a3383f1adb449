"""Experiment trackers: they get every metric once, also after a resumption, and never change a bit of the training."""

import json
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import Command, check_mistake
from short_runs import notes, tiny
from tracker_plugin import installed_trackers, tracked
from written_runs import EPOCHS, STEPS, write_run

from vit.errors import InvalidConfig
from vit.training.loop import tracking
from vit.training.loop.distributed import Process
from vit.training.loop.metrics import read_metrics
from vit.training.loop.recorder import Diverged, Recorder
from vit.training.loop.train import train
from vit.training.trackers import plugin

FACTS = {"total_steps": 10, "steps_per_epoch": 5, "batch_size": 2, "epochs": 2, "lr": 0.1}


@pytest.fixture(autouse=True)
def plugins(tmp_path: Path) -> Iterator[None]:
    with installed_trackers(tmp_path / "site"):
        yield


@pytest.fixture(scope="module")
def untracked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without a tracker."""
    run = tmp_path_factory.mktemp("untracked") / "run"
    train(tiny(), run)
    return run


def figures(run: Path) -> dict[str, list[tuple[int, float]]]:
    """Return a tracker's metrics by name, in order of arrival."""
    series: dict[str, list[tuple[int, float]]] = {}
    for line in tracked(run):
        for name, value in line.get("figures", {}).items():
            series.setdefault(name, []).append((line["step"], value))
    return series


def recorded(run: Path, kind: str, name: str) -> list[tuple[int, float]]:
    return [(one["step"], one[name]) for one in read_metrics(run / "metrics.jsonl") if one["kind"] == kind]


# --- Isolation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("track", "what"),
    [
        ("works", ""),
        ("raises", "RuntimeError: The server said no"),
        ("refuses", "ConnectionError: Nobody is there"),
        ("hangs", "it did not end within"),
        ("missing", "There is no tracker 'missing'"),
    ],
)
def test_weights_have_the_same_bits_whatever_the_tracker_does(
    untracked: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, track: str, what: str
) -> None:
    if track == "hangs":
        monkeypatch.setattr(tracking, "GRACE_SECONDS", 3.0)
    run = tmp_path / "run"
    train(tiny(track=track), run)
    for name in ("best", "last"):
        for file in ("model.safetensors", "config.json"):
            paths = [folder / "checkpoints" / name / file for folder in (run, untracked)]
            ours, theirs = (
                json.loads(path.read_bytes()) if file == "config.json" else path.read_bytes() for path in paths
            )
            if file == "config.json":
                assert ours.pop("training").keys() == theirs.pop("training").keys()
            assert ours == theirs
    states = [torch.load(folder / "checkpoints" / "state.pt", weights_only=True) for folder in (run, untracked)]
    assert all(
        torch.equal(states[0]["models"]["raw"][k], states[1]["models"]["raw"][k]) for k in states[1]["models"]["raw"]
    )
    assert recorded(run, "step", "loss") == recorded(untracked, "step", "loss")
    assert json.loads((run / "outcome.json").read_text())["outcome"] == "finished"
    assert len(notes(run)) == bool(what) and all(what in note and track in note for note in notes(run))


def test_failing_tracker_is_one_line_of_the_log(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    train(tiny(track="raises"), tmp_path / "run")
    lines = [line for line in capfd.readouterr().err.splitlines() if "raises" in line]
    assert lines == notes(tmp_path / "run")
    assert "Traceback" in (tmp_path / "run" / tracking.LOG).read_text()  # for the plug-in's author


def test_missing_interpreter_is_a_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(plugin.PYTHON, str(tmp_path / "no-python"))
    train(tiny(track="works", epochs=1), tmp_path / "run")
    [note] = notes(tmp_path / "run")
    assert "could not be started (No such file or directory)" in note


def test_only_the_leading_process_has_a_tracker(tmp_path: Path) -> None:
    process = Process(torch.device("cpu"), False, rank=1, world=2)
    with Recorder(tmp_path, 0, process, 0, FACTS, track="works"):
        pass
    assert not list(tmp_path.glob("tracking*"))


# --- Input --------------------------------------------------------------------------------------------------------


def test_tracker_gets_every_metric_once_and_the_outcome(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(track="works"), run)
    series = figures(run)
    for kind, prefix, names in (
        ("step", "train", ("loss", "lr", "pictures_per_second")),
        ("validation", "validation", ("accuracy", "loss")),
        ("test", "test", ("accuracy", "loss")),
    ):
        for name in names:
            assert series.pop(f"{prefix}/{name}") == recorded(run, kind, name)
    assert not series
    assert tracked(run)[-1] == {"finish": "finished"}


def test_tracker_gets_the_settings_but_no_local_folder(tmp_path: Path) -> None:
    run = tmp_path / write_run(tmp_path, "Ada's", data="folder:/home/ada/pets", track="works")
    follow(run)
    first = tracked(run)[0]
    assert first["name"] == "Ada's"
    assert first["settings"]["data"] == "folder:pets" and first["settings"]["epochs"] == EPOCHS
    assert "/home" not in json.dumps(first) and "data_root" not in first["settings"]


def test_resumed_run_continues_its_tracker(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(track="works", epochs=1), run)
    train(tiny(track="works", epochs=2), run, resume=True)
    assert [line["open"] for line in tracked(run) if "open" in line] == ["", "number one"]
    for name, series in figures(run).items():
        steps = [step for step, _ in series]
        assert steps == sorted(set(steps)), name
    assert figures(run)["validation/accuracy"] == recorded(run, "validation", "accuracy")


def test_another_tracker_may_be_chosen_on_resumption(tmp_path: Path) -> None:
    run = tmp_path / "run"
    train(tiny(epochs=1), run)
    train(tiny(track="works", epochs=2), run, resume=True)
    assert len(figures(run)["validation/accuracy"]) == 2  # including the earlier ones


def test_failed_run_is_reported_as_failed(tmp_path: Path) -> None:
    wild = dict(lr=10, weight_decay=10, warmup_epochs=0, schedule="constant", grad_clip=0, precision="float32")
    with pytest.raises(Diverged):
        train(tiny(track="works", epochs=1000, **wild), tmp_path / "run")
    assert tracked(tmp_path / "run")[-1] == {"finish": "failed"}


def test_killed_trainer_leaves_an_interrupted_run(tmp_path: Path) -> None:
    run = tmp_path / write_run(tmp_path, "Killed", outcome="", track="works")
    follow(run)  # its standard input is closed without a last message
    assert tracked(run)[-1] == {"finish": "interrupted"}
    assert len(figures(run)["validation/accuracy"]) == EPOCHS and figures(run)["test/accuracy"][0][0] == EPOCHS * STEPS


def follow(run: Path, name: str = "works") -> subprocess.CompletedProcess[str]:
    command = plugin.command(str(run), name)
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)


# --- Available trackers -------------------------------------------------------------------------------------------


def test_plug_ins_of_other_packages_can_be_chosen() -> None:
    assert {"works", "hangs", "wandb"} <= set(plugin.available())


def test_command_refuses_an_unavailable_tracker(command: Command, tmp_path: Path) -> None:
    result = command("train", "--preset", "shapes", "--set", "track=mlfow", "--run-dir", tmp_path / "run")
    check_mistake(result, "There is no tracker 'mlfow'. Choose from: hangs, mlflow")
    assert not (tmp_path / "run").exists()


def test_command_names_the_requirements_of_a_tracker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "find_spec", lambda name: None)
    plugin.available.cache_clear()
    with pytest.raises(InvalidConfig, match="needs mlflow-skinny: pip install mlflow-skinny"):
        plugin.check_available("mlflow")


# --- Weights & Biases ---------------------------------------------------------------------------------------------


def offline_records(file: Path) -> list[Any]:
    """Read the messages that Weights & Biases stored, in the framing of LevelDB's log after a header of 7 bytes.

    Source: github.com/google/leveldb/blob/main/doc/log_format.md.
    """
    from wandb.proto import wandb_internal_pb2

    content, block = file.read_bytes(), 32768
    assert content.startswith(b":W&B")
    records, partial, at = [], b"", 7
    while at + 7 <= len(content):
        if block - at % block < 7:  # the end of a block is too short for a header
            at += block - at % block
            continue
        _, length, kind = struct.unpack_from("<IHB", content, at)
        partial += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):  # a full record, or its last part
            records.append(wandb_internal_pb2.Record.FromString(partial))
            partial = b""
    return records


@pytest.mark.exhaustive
def test_weights_and_biases_stores_every_metric_offline_under_one_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.delenv("WANDB_DIR", raising=False)
    run = tmp_path / "run"
    train(tiny(track="wandb", epochs=1), run)
    train(tiny(track="wandb", epochs=2), run, resume=True)
    assert notes(run) == []
    files = sorted(run.glob("tracking/wandb/offline-run-*/*.wandb"), key=lambda file: file.stat().st_mtime_ns)
    records = [record for file in files for record in offline_records(file)]
    series: dict[str, list[tuple[int, float]]] = {}
    for record in records:
        for item in record.history.item:
            key = item.key or "/".join(item.nested_key)
            series.setdefault(key, []).append((record.history.step.num, json.loads(item.value_json)))
    for kind, name in (("step", "loss"), ("validation", "accuracy")):
        shown = "train" if kind == "step" else kind
        assert series[f"{shown}/{name}"] == recorded(run, kind, name)
    assert {record.run.run_id for record in records if record.HasField("run")} == {
        json.loads((run / "tracking.json").read_text())["wandb"]["id"]
    }
    assert len(files) == 2
