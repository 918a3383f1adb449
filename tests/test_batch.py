"""Measurements in parts: same result as at once, whichever process computes a part and whatever was done before."""

import dataclasses
import json
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from fake_cluster import set_up
from short_runs import command_of, one_thread, temporary_runs_folder, until

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.cli.main import main
from vit.data.pictures import InMemoryPictures
from vit.data.shapes import SHAPES
from vit.errors import UserError
from vit.explain import features, head_census, method_ranking
from vit.images.preprocess import Normalise, Preprocess
from vit.runs.batch import parts, spread, worker
from vit.runs.batch.parts import Measurement
from vit.runs.batch.tasks import TASKS
from vit.training import evaluation


@pytest.fixture(autouse=True)
def as_in_workers() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    with temporary_runs_folder(tmp_path / "runs") as root:
        yield root


@pytest.fixture
def checkpoint(build: Any, tmp_path: Path) -> Checkpoint:
    model = build(image_size=(16, 16), patch_size=4, num_classes=len(SHAPES))
    return load_checkpoint(save_checkpoint(tmp_path / "toy", model, SHAPES, Preprocess((16, 16))))


def work(checkpoint: Checkpoint, task: str, limit: int | None = 9) -> Measurement:
    return Measurement(task, str(checkpoint.path), "shapes", "data", limit)


AT_ONCE: dict[str, Callable[[Checkpoint], Any]] = {
    "evaluate": lambda checkpoint: evaluation.evaluate_checkpoint(checkpoint, "shapes"),
    "faithfulness": lambda checkpoint: method_ranking.rank(checkpoint, "shapes", 9),
    "features": lambda checkpoint: features.features(checkpoint, "shapes", 300),
    "heads": lambda checkpoint: head_census.census(checkpoint, "shapes", 300),
}
LIMITS = {"evaluate": None, "faithfulness": 9, "features": 300, "heads": 300}


def same(one: Any, other: Any) -> bool:
    """Compare to the last bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple | list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, torch.Tensor | np.ndarray):
        return np.array_equal(np.asarray(one), np.asarray(other))
    return bool(one == other)


@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=[pytest.mark.exhaustive] * (task != "faithfulness")) for task in TASKS]
)
def test_several_processes_give_the_same_result_as_one(checkpoint: Checkpoint, root: Path, task: str) -> None:
    several = spread.measure(work(checkpoint, task, LIMITS[task]), checkpoint, workers=2)
    assert same(several, AT_ONCE[task](checkpoint))
    assert not list((root / ".measurements").iterdir())


def test_each_process_gets_a_gpu_that_this_one_may_use(
    checkpoint: Checkpoint, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spread, "gpu_names", lambda: ["cuda:2", "cuda:3"])
    seen: list[str] = []

    def start(command: Any, env: dict[str, str], **_: Any) -> Any:
        seen.append(env["CUDA_VISIBLE_DEVICES"])
        if len(seen) == 3:
            raise InterruptedError
        return SimpleNamespace(poll=int, kill=int, wait=int)

    monkeypatch.setattr(spread.subprocess, "Popen", start)
    with pytest.raises(InterruptedError):
        spread.measure(work(checkpoint, "heads"), checkpoint, workers=3, device="gpu")
    assert seen == ["2", "3", "2"]


def test_finished_parts_are_not_repeated(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = tmp_path / "measurement"
    parts.write_measurement(folder, work(checkpoint, "faithfulness"))
    assert worker.main(folder, 1, 2) == 0
    assert parts.done(folder) == set(range(9))  # including the part of the other process, which never started
    before = {number: parts.path_of(folder, number).stat().st_ino for number in range(9)}
    for number in (0, 5):
        parts.path_of(folder, number).unlink()
        del before[number]
    assert worker.main(folder, 0, 2) == 0
    assert {number: parts.path_of(folder, number).stat().st_ino for number in before} == before
    assert method_ranking.combined(parts.read_parts(folder)) == AT_ONCE["faithfulness"](checkpoint)


def test_parts_of_changed_data_are_not_mixed_with_earlier_ones(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = tmp_path / "measurement"
    what = work(checkpoint, "faithfulness", 6)
    parts.write_measurement(folder, what)
    opened = what.opened()
    parts.write_plan(folder, opened)
    parts.write_plan(folder, opened)  # by another process
    labels = opened.pictures.labels.clone()
    labels[0] += 1
    changed = dataclasses.replace(opened, pictures=InMemoryPictures(torch.empty(len(labels), 3, 16, 16), labels))
    with pytest.raises(UserError, match="The data have changed since"):
        parts.write_plan(folder, changed)


def test_other_weights_classes_data_and_numbers_are_other_measurements(
    checkpoint: Checkpoint, build: Any, tmp_path: Path
) -> None:
    other = build(image_size=(16, 16), patch_size=4, num_classes=len(SHAPES))
    with torch.no_grad():
        other.prefix_tokens.add_(1)
    twin = load_checkpoint(save_checkpoint(tmp_path / "other", other, SHAPES, Preprocess((16, 16))))
    what = work(checkpoint, "heads")
    variants = [
        (what, checkpoint), (what, twin), (what._replace(limit=8), checkpoint), (what._replace(task="features"), twin),
        (what._replace(data="folder:/pets"), checkpoint), (what._replace(data_root="elsewhere"), checkpoint),
    ]  # fmt: skip
    assert len({parts.folder_of(tmp_path, *one) for one in variants}) == len(variants)
    assert parts.folder_of(tmp_path, what, checkpoint) == parts.folder_of(tmp_path, what, checkpoint)


@pytest.mark.exhaustive
def test_killed_job_reports_it_and_resumes_on_request(
    checkpoint: Checkpoint, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    what = work(checkpoint, "faithfulness", 60)
    with ThreadPoolExecutor() as pool:
        measured = pool.submit(spread.measure, what, checkpoint, workers=2)
        until(lambda: measured.done() or list(root.glob(".measurements/*/parts/*.npz")), "its first part")
        with pytest.raises(UserError, match="Another command measures this already"):
            spread.measure(what, checkpoint, workers=1)
        (folder,) = (root / ".measurements").iterdir()
        mine = [int(path.name) for path in Path("/proc").glob("[0-9]*") if str(folder) in _command(path)]
        for pid in mine:
            os.kill(pid, signal.SIGKILL)
        with pytest.raises(UserError, match="repeat the command to continue"):
            measured.result()
    done = parts.done(folder)
    assert 0 < len(done) < 60 and len(mine) == 2
    computed = []
    monkeypatch.setattr(
        parts, "write_part", lambda *part: computed.append(part)
    )  # of this process, which computes none
    again = spread.measure(what, checkpoint, workers=2)
    assert again == method_ranking.rank(checkpoint, "shapes", 60) and not computed


def _command(process: Path) -> str:
    try:
        return command_of(int(process.name))
    except OSError:
        return ""


@pytest.mark.parametrize("on", ["here", pytest.param("lab", marks=pytest.mark.exhaustive)])
def test_invalid_data_is_refused_in_one_sentence(
    build: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path, on: str
) -> None:
    set_up(tmp_path, monkeypatch)
    labels = [f"thing {i}" for i in range(4)]
    model = build(image_size=(16, 16), patch_size=4, num_classes=4)
    checkpoint = load_checkpoint(save_checkpoint(tmp_path / "things", model, labels, Preprocess((16, 16))))
    with pytest.raises(UserError, match="has no class 'circle'"):
        spread.measure(work(checkpoint, "evaluate", None), checkpoint, on=on, workers=2)


@pytest.mark.exhaustive
def test_stopped_command_ends_its_job_and_keeps_finished_parts(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    engine = set_up(tmp_path, monkeypatch)
    what = work(checkpoint, "faithfulness", 30)

    def interrupted(folder: Path, *_: Any) -> None:
        until(lambda: len(parts.done(folder)) > 1, "its first parts")
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(spread, "_wait_for_parts", interrupted)
        with pytest.raises(KeyboardInterrupt, match="repeat the command to continue"):
            spread.measure(what, checkpoint, on="lab", workers=2)
    (folder,) = (tmp_path / "shared" / ".measurements").iterdir()
    handle = spread.read_handle(folder)
    assert handle and engine.status(handle).state == "gone" and parts.done(folder)
    assert spread.measure(what, checkpoint, on="lab", workers=2) == method_ranking.rank(checkpoint, "shapes", 30)


@pytest.mark.exhaustive
def test_restarted_command_finds_its_running_job(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path
) -> None:
    """Nothing is submitted twice while a job is working on it."""
    engine = set_up(tmp_path, monkeypatch)
    what = work(checkpoint, "faithfulness", 30)

    class Killed(BaseException):
        pass

    def killed(folder: Path, *_: Any) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(spread, "_wait_for_parts", killed)
        with pytest.raises(Killed):
            spread.measure(what, checkpoint, on="lab", workers=1)
    assert spread.measure(what, checkpoint, on="lab", workers=1) == method_ranking.rank(checkpoint, "shapes", 30)
    assert len(list(engine.jobs.glob("faithfulness-*"))) == 1


def test_features_are_what_the_head_reads(build: Any, pictures: Any) -> None:
    for kind in ({}, {"prefix": (), "pool": "map"}, {"prefix": (), "pool": "mean", "norm": "after_pool"}):
        model, images = build(**kind), pictures(count=3)
        with torch.inference_mode():
            torch.testing.assert_close(model.head(features.pooled_features(model, images)), model(images).logits)


def test_features_of_a_dataset_are_those_of_its_pictures(checkpoint: Checkpoint, tmp_path: Path) -> None:
    file = tmp_path / "features.npz"
    arguments = ["features", "--checkpoint", str(checkpoint.path), "--data", "shapes", "--limit", "40"]
    assert main([*arguments, "--out", str(file)]) == 0
    with np.load(file, allow_pickle=False) as arrays:
        assert tuple(arrays["classes"]) == tuple(SHAPES)
        assert arrays["labels"].shape == (40,) and arrays["vectors"].shape == (40, checkpoint.config.dim)
        test = features.load_dataset("shapes", checkpoint.preprocess, only="test", at_most=40).test
        (images, labels), *_ = test.batches(torch.tensor([17]), 1, torch.device("cpu"))
        vector = features.pooled_features(
            checkpoint.model, Normalise(checkpoint.preprocess, torch.device("cpu"))(images)
        )[0]
        assert np.allclose(arrays["vectors"][17], vector, atol=1e-5) and arrays["labels"][17] == int(labels)


@pytest.mark.exhaustive
def test_command_line_prints_the_same(checkpoint: Checkpoint, root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["heads", "--checkpoint", str(checkpoint.path), "--data", "shapes", "--limit", "40", "--json"]
    assert main(arguments) == 0
    alone = json.loads(capsys.readouterr().out)
    assert main([*arguments, "--on", "here", "--workers", "2"]) == 0
    assert json.loads(capsys.readouterr().out) == alone


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["heads", "--on", "here", "--workers", "0"], "--workers must be at least 1"),
        (["heads", "--workers", "2"], "need --on"),
        (["evaluate", "--device", "gpu"], "need --on"),
        (["evaluate", "--workers", "2", "--report", "report.npz"], "need --on"),
        (["heads", "--on", "nowhere"], "There is no cluster nowhere"),
        (["evaluate", "--on", "here", "--report", "report.npz"], "Leave --on out"),
        (["evaluate", "--report", "missing/report.npz"], "in a folder that exists"),
        (["features", "--out", "features.txt"], "ends in .npz"),
    ],
)
def test_mistakes_are_reported_in_one_sentence(
    command: list[str], words: str, capsys: pytest.CaptureFixture[str], root: Path
) -> None:
    assert main([*command, "--data", "shapes"]) == 2
    assert words in capsys.readouterr().err
