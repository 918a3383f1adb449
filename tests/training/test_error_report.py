"""The report of a model's mistakes: counted by hand, read back, and refused if damaged."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from patience import until
from PIL import Image

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.errors import UserError
from vit.images.preprocess import Preprocess
from vit.model.transformer import VisionTransformer
from vit.training.loop import evaluation
from vit.training.runs import error_report, error_search

Build = Callable[..., VisionTransformer]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Test pictures of noise: three cats, one dog."""
    random = np.random.default_rng(0)
    for name, count in (("train/cat", 1), ("train/dog", 1), ("test/cat", 3), ("test/dog", 1)):
        (tmp_path / "data" / name).mkdir(parents=True)
        for i in range(count):
            pixels = random.integers(0, 256, (32, 32, 3), np.uint8)
            Image.fromarray(pixels).save(tmp_path / "data" / name / f"{i}.png")
    return tmp_path / "data"


@pytest.fixture
def constant(tmp_path: Path, build: Build) -> Checkpoint:
    """A model that classifies everything as a dog with probability 0.73, and has a class of birds, too."""
    model = build(num_classes=3)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([-9.0, 1.0, 0.0]))
    return load_checkpoint(
        save_checkpoint(tmp_path / "run" / "best", model, ("bird", "dog", "cat"), Preprocess((32, 32)))
    )


def test_mistakes_equal_those_counted_by_hand(constant: Checkpoint, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.npz"
    error_search.write(constant, f"folder:{folder}", file=file)
    result = error_report.read(file)
    assert result.confusion.tolist() == [[0, 0, 0], [0, 1, 0], [0, 3, 0]]
    assert result.accuracy == 0.25
    np.testing.assert_equal(result.per_class, [np.nan, 1, 0])
    assert result.indices.tolist() == [0, 1, 2]
    assert result.true.tolist() == [2, 2, 2] and result.predicted.tolist() == [1, 1, 1]
    assert result.probability == pytest.approx([1 / (1 + np.exp(-1))] * 3, abs=1e-3)
    assert result.classes == ("bird", "dog", "cat")
    assert result.names == ("test/cat/0.png", "test/cat/1.png", "test/cat/2.png")
    assert result.checkpoint == constant.hash
    first = np.array(Image.open(folder / "test" / "cat" / "0.png"))
    assert (result.pictures[0] == first).all()
    assert result.overlays.shape == (3, 160, 160, 3)


def test_most_confident_mistakes_come_first_for_any_batch_size(
    tmp_path: Path, build: Build, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build(num_classes=2)
    saved = load_checkpoint(save_checkpoint(tmp_path / "best", model, ("dog", "cat"), Preprocess((32, 32))))
    whole, _ = error_search.write(saved, f"folder:{folder}", file=tmp_path / "whole.npz")
    monkeypatch.setattr(evaluation, "_BATCH_PICTURES", 1)
    parts, _ = error_search.write(saved, f"folder:{folder}", file=tmp_path / "parts.npz")
    assert len(whole.indices) > 1
    assert whole.indices.tolist() == parts.indices.tolist()
    assert (np.diff(whole.probability) <= 0).all()
    monkeypatch.setattr(error_search, "WORST_MISTAKES", 1)
    fewer, _ = error_search.write(saved, f"folder:{folder}", file=tmp_path / "fewer.npz")
    assert fewer.indices.tolist() == whole.indices.tolist()
    assert (fewer.pictures == whole.pictures[:1]).all() and len(fewer.overlays) == 1


def test_model_without_mistakes_has_a_report(tmp_path: Path, build: Build) -> None:
    for name in ("train/a", "train/b", "test/a"):
        (tmp_path / "data" / name).mkdir(parents=True)
        Image.new("RGB", (32, 32)).save(tmp_path / "data" / name / "0.png")
    model = build(num_classes=2)
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.copy_(torch.tensor([1.0, 0.0]))
    saved = load_checkpoint(save_checkpoint(tmp_path / "best", model, ("a", "b"), Preprocess((32, 32))))
    error_search.write(saved, f"folder:{tmp_path / 'data'}", file=tmp_path / "r.npz")
    assert error_report.read(tmp_path / "r.npz").accuracy == 1.0


def test_damaged_report_is_refused_in_one_sentence(constant: Checkpoint, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.npz"
    with pytest.raises(UserError, match="not been evaluated"):
        error_report.read(file)
    error_search.write(constant, f"folder:{folder}", file=file)
    file.write_bytes(file.read_bytes()[:-300])
    with pytest.raises(UserError, match="damaged"):
        error_report.read(file)
    np.savez(file, meta=np.array(["a", "b"], object))
    with pytest.raises(UserError, match="damaged"):
        error_report.read(file)
    file.unlink()
    os.mkfifo(file)  # a pipe without a writer
    with pytest.raises(UserError, match="damaged"):
        error_report.read(file)


def test_report_of_an_earlier_version_is_read(constant: Checkpoint, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "report.npz"
    error_search.write(constant, f"folder:{folder}", file=file)
    with np.load(file) as arrays:
        earlier = {name: values for name, values in arrays.items() if name != "names"}
    earlier |= {"meta": np.array([constant.hash, "shapes"]), "identity": np.array("0" * 16)}
    np.savez(file, **earlier)
    report = error_report.read(file)
    assert report.checkpoint == constant.hash and report.names == ()


def test_folder_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "checkpoints" / "best").mkdir(parents=True)
    (tmp_path / error_report._LOCK).mkdir()
    with pytest.raises(UserError, match="cannot be changed"):
        error_report.start(tmp_path, "shapes", "data")


def wait(run: Path) -> error_report.State:
    until(lambda: error_report.state(run).status != "running", "the end of the evaluation")
    return error_report.state(run)


@pytest.mark.slow
def test_run_is_evaluated_in_a_separate_process(constant: Checkpoint, folder: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(UserError, match="no checkpoint yet"):
        error_report.start(run, "shapes", "data")
    (run / "checkpoints").mkdir()
    (run / "best").rename(run / "checkpoints" / "best")
    assert error_report.state(run).status == "none"
    error_report.start(run, f"folder:{folder}", "data")
    assert error_report.state(run).status == "running"
    with pytest.raises(UserError, match="already"):
        error_report.start(run, f"folder:{folder}", "data")
    assert wait(run).status == "done"
    assert error_report.read(run / error_report.FILE).accuracy == 0.25


@pytest.mark.exhaustive
@pytest.mark.slow
def test_failed_evaluation_reports_the_reason_and_leaves_no_zombie(
    constant: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, started, real = tmp_path / "run", list[subprocess.Popen](), subprocess.Popen
    (run / "checkpoints").mkdir()
    (run / "best").rename(run / "checkpoints" / "best")
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(real(*a, **k)) or started[-1])
    error_report.start(run, "folder:/nowhere", "data")
    result = wait(run)
    assert result.status == "failed" and "nowhere" in result.reason
    until(lambda: started[0].returncode is not None, "the thread that waits for the process")
    assert started[0].returncode


def test_progress_is_parsed_from_the_bar(tmp_path: Path) -> None:
    import fcntl

    (tmp_path / "report.log").write_bytes(b"\r 10%|#  | 1/10\r 40%|####  | 4/10")
    lock = os.open(tmp_path / "report.lock", os.O_CREAT | os.O_RDWR)
    fcntl.flock(lock, fcntl.LOCK_EX)
    assert error_report.state(tmp_path) == ("running", 0.4, "")
    os.close(lock)
    assert error_report.state(tmp_path).status == "failed"


def test_reading_needs_no_torch() -> None:
    import subprocess
    import sys

    code = "import sys, vit.training.runs.error_report; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
