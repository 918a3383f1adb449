"""Features are what the head reads; cached ones are read back unchanged, or computed again if they are damaged."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.cli.main import main
from vit.data.shapes import SHAPES
from vit.explain import features
from vit.explain.features import Features, load, save, stored
from vit.images.preprocess import Normalise, Preprocess


def some(seed: int = 0) -> Features:
    random = np.random.default_rng(seed)
    return Features(random.normal(size=(5, 3)).astype(np.float32), np.arange(5) % 2, ("cat", "<dog> 照片"))


def same(one: Features, other: Features) -> bool:
    equal = np.array_equal(one.vectors, other.vectors) and np.array_equal(one.labels, other.labels)
    return equal and one.classes == other.classes and one.vectors.dtype == other.vectors.dtype


def never() -> Features:
    raise AssertionError("they were stored")


def test_features_are_what_the_head_reads(build: Any, pictures: Any) -> None:
    for kind in ({}, {"prefix": (), "pool": "map"}, {"prefix": (), "pool": "mean", "norm": "after_pool"}):
        model, images = build(**kind), pictures(count=3)
        with torch.inference_mode():
            torch.testing.assert_close(model.head(features.pooled_features(model, images)), model(images).logits)


def test_features_of_a_dataset_are_those_of_its_pictures(build: Any, tmp_path: Path) -> None:
    model = build(image_size=(16, 16), patch_size=4, num_classes=len(SHAPES))
    checkpoint = load_checkpoint(save_checkpoint(tmp_path / "toy", model, SHAPES, Preprocess((16, 16))))
    file = tmp_path / "features.npz"
    arguments = ["features", "--checkpoint", str(checkpoint.path), "--data", "shapes", "--limit", "40"]
    assert main([*arguments, "--out", str(file)]) == 0
    with np.load(file, allow_pickle=False) as arrays:
        assert tuple(arrays["classes"]) == tuple(SHAPES)
        assert arrays["labels"].shape == (40,) and arrays["vectors"].shape == (40, checkpoint.config.dim)
        test = features.load_pictures("shapes", checkpoint.preprocess, at_most=40).test
        (images, labels), *_ = test.batches(torch.tensor([17]), 1, torch.device("cpu"))
        pixels = Normalise(checkpoint.preprocess, torch.device("cpu"))(images)
        vector = features.pooled_features(checkpoint.model, pixels)[0]
        assert np.allclose(arrays["vectors"][17], vector, atol=1e-5) and arrays["labels"][17] == int(labels)


@pytest.fixture
def unlabelled(tmp_path: Path) -> Path:
    """Three pictures without classes, two of them in the same nested folder, and two other files."""
    folder = tmp_path / "holiday"
    (folder / "2026" / "May").mkdir(parents=True)
    for number, name in enumerate(("2026/May/a.png", "2026/May/b.png", "c.png")):
        Image.linear_gradient("L").rotate(90 * number).resize((48, 40)).convert("RGB").save(folder / name)
    (folder / "notes.txt").write_text("no picture")
    (folder / "2026" / "film.mov").write_text("no picture")
    return folder


def test_folder_without_classes_gives_features_of_all_its_pictures(
    build: Any, tmp_path: Path, unlabelled: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    model = build(image_size=(16, 16), patch_size=4, num_classes=2)
    checkpoint = load_checkpoint(save_checkpoint(tmp_path / "toy", model, ("a", "b"), Preprocess((16, 16))))
    data, out = f"folder:{unlabelled}", tmp_path / "features.npz"
    assert main(["features", "--checkpoint", str(checkpoint.path), "--data", data, "--out", str(out)]) == 0
    assert "3 pictures, 64 numbers each" in capsys.readouterr().out
    assert f"2 files in {str(unlabelled)!r} are no pictures and were skipped." in caplog.text
    pixels = checkpoint.preprocess(Image.open(unlabelled / "c.png"))
    last = features.pooled_features(checkpoint.model, pixels)[0]
    assert np.allclose(features.load(out).vectors[2], last, atol=1e-5), "in the order of their paths"
    assert main(["heads", "--checkpoint", str(checkpoint.path), "--data", data, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["pictures"] == 3
    assert main(["heads", "--checkpoint", str(checkpoint.path), "--data", f"folder:{tmp_path / 'none'}"]) == 2


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["evaluate", "--report", "missing/report.npz"], "in a folder that exists"),
        (["features", "--out", "features.txt"], "ends in .npz"),
    ],
)
def test_unsuitable_output_file_is_refused(command: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command, "--data", "shapes"]) == 2
    assert words in capsys.readouterr().err


def test_stored_features_are_read_and_not_computed_again(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "features"
    assert same(stored("a", folder, some), some()) and same(stored("a", folder, never), some())
    assert same(stored("b", folder, lambda: some(1)), some(1)) and same(stored("a", folder, never), some())


@pytest.mark.parametrize("content", [b"", b"PK", b"PK\x03\x04" + bytes(99), b"text"])
def test_damaged_features_are_computed_again(tmp_path: Path, content: bytes) -> None:
    stored("a", tmp_path, some)
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    assert same(stored("a", tmp_path, lambda: some(2)), some(2)) and same(stored("a", tmp_path, never), some(2))


def test_another_npz_or_pickled_objects_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.npz"
    np.savez(file, vectors=np.zeros(3), labels=np.zeros(3), classes=np.array(["a"]))
    with pytest.raises(ValueError, match="holds no features"):
        load(file)
    np.savez(file, heatmap=np.zeros(3))
    with pytest.raises(ValueError, match="holds no features"):
        load(file)
    np.savez(file, vectors=np.zeros((1, 1)), labels=np.zeros(1), classes=np.array([print], dtype=object))
    with pytest.raises(ValueError):
        load(file)


def test_unwritable_folder_means_computing_each_time(tmp_path: Path) -> None:
    folder = tmp_path / "a file"
    folder.write_text("in the way")
    assert same(stored("a", folder, some), some()) and same(stored("a", folder, lambda: some(1)), some(1))


def test_least_recently_read_features_are_deleted_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for key in "abc":
        stored(key, tmp_path, some)
        for file in tmp_path.glob("*.npz"):
            os.utime(file, (file.stat().st_atime, file.stat().st_mtime - 100))
    stored("a", tmp_path, never)  # read last
    (size,) = {file.stat().st_size for file in tmp_path.iterdir()}
    monkeypatch.setattr(features, "STORE_BYTES", 3 * size)
    stored("d", tmp_path, some)
    assert len(list(tmp_path.iterdir())) == 3
    stored("a", tmp_path, never)
    stored("c", tmp_path, never)
    with pytest.raises(AssertionError):
        stored("b", tmp_path, never)


def test_saved_features_are_read_back(tmp_path: Path) -> None:
    save(some(), tmp_path / "one.npz")
    assert same(load(tmp_path / "one.npz"), some())
