"""Added checkpoints are stored completely or not at all, and deleted ones are gone at once."""

import errno
import io
import json
import os
import resource
import shutil
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save
from tiny import fill

import vit
from vit.checkpoints import manage
from vit.checkpoints.catalog import find_checkpoint
from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.load import list_checkpoints, load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.errors import InvalidCheckpoint, UserError
from vit.images.preprocess import Preprocess
from vit.model.transformer import VisionTransformer

TINY: dict[str, Any] = dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4, num_classes=5)


@pytest.fixture(scope="module")
def weights() -> bytes:
    """A file of timm's, of a width without a usual number of heads."""
    model = fill(timm.create_model("vit_base_patch16_224", **TINY))
    return save({name: tensor.contiguous() for name, tensor in model.state_dict().items()})


def brought(weights: bytes, root: Path, name: str = "mine", **more: bytes) -> Path:
    files = {"own.safetensors": weights, **{key.replace("__", "."): value for key, value in more.items()}}
    return manage.add({key: io.BytesIO(value) for key, value in files.items()}, name, root)


def test_added_checkpoint_opens(weights: bytes, tmp_path: Path) -> None:
    folder = brought(weights, tmp_path)
    assert folder == find_checkpoint("mine", tmp_path)
    assert load_checkpoint(folder, heads=4).config.heads == 4
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]  # no hidden files are left


def test_missing_number_of_heads_can_be_set_later(weights: bytes, tmp_path: Path) -> None:
    brought(weights, tmp_path)
    (info,) = list_checkpoints(tmp_path)
    assert info.choices == (1, 2, 4, 8, 16) and "heads" in info.problem
    document = b'{"architecture": "vit_base_patch16_224", "model_args": {"num_heads": 4}}'
    brought(weights, tmp_path, "told", config__json=document)
    (_, heads) = list_checkpoints(tmp_path)
    assert heads.choices == () and heads.problem == "" and heads.family.startswith("timm")


def test_refused_files_can_be_added_again(weights: bytes, tmp_path: Path) -> None:
    files = {"own.safetensors": io.BytesIO(weights), "config.json": io.BytesIO(b"{")}
    with pytest.raises(InvalidCheckpoint):
        manage.add(files, "mine", tmp_path)
    folder = manage.add({"own.safetensors": files["own.safetensors"]}, "mine", tmp_path)
    assert (folder / "own.safetensors").read_bytes() == weights


@pytest.mark.parametrize("name", ["", "../x", "A", "a/b", ".x", "x" * 65, "a.old", "mine"])
def test_impossible_name_is_refused(weights: bytes, tmp_path: Path, name: str) -> None:
    brought(weights, tmp_path)
    with pytest.raises(InvalidCheckpoint, match="name"):
        brought(weights, tmp_path, name)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_invalid_checkpoint_leaves_nothing(weights: bytes, tmp_path: Path) -> None:
    cases: list[tuple[dict[str, bytes], str]] = [
        ({}, "one file of weights"),
        ({"a.safetensors": weights, "b.pth": b""}, "one file of weights"),
        ({"a.safetensors": weights, "run.py": b""}, "run.py is not part"),
        ({"a.safetensors": b"hello"}, "neither a safetensors file"),
        ({"a.safetensors": save({"layer1.0.conv1.weight": torch.zeros(3)})}, "ResNet"),
        ({"a.safetensors": weights, "config.json": b"{"}, "not valid JSON"),
    ]
    for files, words in cases:
        with pytest.raises(InvalidCheckpoint, match=words):
            manage.add({key: io.BytesIO(value) for key, value in files.items()}, "mine", tmp_path)
        assert not list(tmp_path.iterdir())


def test_full_disk_leaves_nothing(weights: bytes, tmp_path: Path) -> None:
    with pytest.raises(InvalidCheckpoint, match="disk space"):
        manage.add({"a.safetensors": io.BytesIO(weights)}, "mine", tmp_path, keep_free=1 << 60)
    assert not list(tmp_path.iterdir())


ACTIONS: dict[str, Callable[[bytes, Path], object]] = {
    "saved": lambda weights, root: brought(weights, root, "other"),
    "renamed": lambda weights, root: manage.rename("mine", "other", root),
    "deleted": lambda weights, root: manage.delete("mine", root),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_write_protected_folder_is_reported(
    weights: bytes, tmp_path: Path, read_only: Callable[[Path], Any], action: str
) -> None:
    (tmp_path / "shelf").mkdir()
    brought(weights, tmp_path / "shelf")
    with read_only(tmp_path / "shelf") as root:
        with pytest.raises(InvalidCheckpoint, match=f"was not {action}: Permission denied\\.$"):
            ACTIONS[action](weights, root)
        assert os.listdir(root) == ["mine"] and os.listdir(root / "mine") == ["own.safetensors"]


def test_folder_that_cannot_be_created_is_reported(weights: bytes, tmp_path: Path, read_only: Any) -> None:
    with read_only(tmp_path) as closed, pytest.raises(InvalidCheckpoint, match="Permission denied"):
        brought(weights, closed / "not there")


@pytest.mark.parametrize("action", ["saved", "renamed"])
def test_second_of_two_servers_that_use_one_name_is_refused(
    weights: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    brought(weights, tmp_path)
    check = manage._check_free

    def check_too_early(name: str, root: Path | None) -> None:
        check(name, root)
        monkeypatch.setattr(manage, "_check_free", check)
        brought(weights, tmp_path, "other")

    monkeypatch.setattr(manage, "_check_free", check_too_early)
    with pytest.raises(InvalidCheckpoint, match=r"There is a checkpoint 'other' already\. Choose another name\."):
        ACTIONS[action](weights, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["mine", "other"]


def test_concurrently_saved_probes_of_one_name_are_both_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Callable[..., VisionTransformer]
) -> None:
    backbone = save_checkpoint(tmp_path / "backbone", build(num_classes=0), [], Preprocess((32, 32)))
    noise = np.random.default_rng(0).integers(0, 256, (6, 32, 32, 3), dtype=np.uint8)
    pictures = [Image.fromarray(one) for one in noise]
    checkpoint = load_checkpoint(backbone)
    custom = vit.classes_from_pictures(checkpoint, {"a": pictures[:3], "b": pictures[3:]})
    probed, check = checkpoint.with_classes(custom), manage._check_free

    def check_too_early(name: str, root: Path | None) -> None:
        check(name, root)
        monkeypatch.setattr(manage, "_check_free", check)
        save_checkpoint(tmp_path / "other", build(), list("abcde"), Preprocess((32, 32)))

    monkeypatch.setattr(manage, "_check_free", check_too_early)
    with pytest.raises(InvalidCheckpoint, match="already"):
        manage.save_with_classes(probed, "other", tmp_path)
    assert load_checkpoint(tmp_path / "other").labels == tuple("abcde")
    saved = load_checkpoint(manage.save_with_classes(probed, "third", tmp_path))
    assert saved.labels == ("a", "b") and "\n# third\n" in saved.card


@pytest.mark.parametrize(
    "to", ["transformers", "timm", "torchvision", pytest.param("onnx", marks=pytest.mark.exhaustive)]
)
def test_conversion_on_a_full_disk_is_refused_in_one_sentence(tmp_path: Path, checkpoint: Checkpoint, to: Any) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, limits[1]))  # [bytes] of a file, as if the disk were full
    try:
        with pytest.raises(UserError, match=r"was not (written|saved): File too large\.$"):
            manage.converted(checkpoint, to)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_conversion_without_a_temporary_folder_is_refused_in_one_sentence(
    checkpoint: Checkpoint, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(UserError, match="was not converted: No such file or directory"):
        manage.converted(checkpoint, "torchvision")


def test_rename_and_delete(weights: bytes, tmp_path: Path) -> None:
    brought(weights, tmp_path)
    brought(weights, tmp_path, "other")
    with pytest.raises(InvalidCheckpoint, match="already"):
        manage.rename("mine", "other", tmp_path)
    assert manage.rename("mine", "new", tmp_path).name == "new"
    manage.delete("other", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["new"]
    for gone in ("mine", "../new", ""):
        with pytest.raises(InvalidCheckpoint, match="no checkpoint"):
            manage.delete(gone, tmp_path)


def test_card_states_the_checkpoints_name(tmp_path: Path, build: Callable[..., VisionTransformer]) -> None:
    folder = save_checkpoint(tmp_path / "best", build(), list("abcde"), Preprocess((32, 32)))
    expected = save_checkpoint(tmp_path / "cats", build(), list("abcde"), Preprocess((32, 32)))
    written = (expected / "README.md").read_bytes()
    shutil.rmtree(expected)
    copied = manage.copy(folder, "copy", tmp_path)
    assert manage.rename("best", "cats", tmp_path).name == "cats"
    assert (tmp_path / "cats" / "README.md").read_bytes() == written
    assert load_checkpoint(copied).card == written.decode().replace("cats", "copy")
    assert "\n# copy\n" in load_checkpoint(copied).card


def test_card_of_another_library_is_unchanged(weights: bytes, tmp_path: Path) -> None:
    brought(weights, tmp_path, README__md=b"# mine\n")
    assert (manage.rename("mine", "new", tmp_path) / "README.md").read_bytes() == b"# mine\n"


def test_zip_unpacks_to_a_folder_of_its_name_and_opens(weights: bytes, tmp_path: Path) -> None:
    folder = brought(weights, tmp_path)
    archive = zipfile.ZipFile(io.BytesIO(b"".join(manage.zip_chunks(folder, "again"))))
    assert archive.testzip() is None
    assert archive.namelist() == ["again/own.safetensors"]
    archive.extractall(tmp_path)
    assert load_checkpoint(tmp_path / "again", heads=4).hash == load_checkpoint(folder, heads=4).hash


def test_zip_is_streamed_and_outlives_the_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "large"
    folder.mkdir()
    content = os.urandom(20 * manage._CHUNK_BYTES)
    (folder / "model.safetensors").write_bytes(content)
    pieces = manage.zip_chunks(folder, "large")
    shutil.rmtree(folder)
    sent = list(pieces)
    assert max(map(len, sent)) < 2 * manage._CHUNK_BYTES
    assert zipfile.ZipFile(io.BytesIO(b"".join(sent))).read("large/model.safetensors") == content


@pytest.mark.parametrize(
    "name", ["a b.safetensors", "../../a_b.safetensors", "c:\\x\\a$b.safetensors", "..a_b.safetensors"]
)
def test_file_is_stored_in_its_folder_whatever_its_name(weights: bytes, tmp_path: Path, name: str) -> None:
    root = tmp_path / "deep" / "shelf"
    folder = manage.add({name: io.BytesIO(weights)}, "mine", root)
    assert [path.name for path in folder.iterdir()] == ["a_b.safetensors"]
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == ["a_b.safetensors"]


@pytest.mark.parametrize(("to", "file"), [("timm", "mine-timm.zip"), ("torchvision", "mine.pth")])
def test_checkpoint_is_exported_in_another_librarys_format(weights: bytes, tmp_path: Path, to: Any, file: str) -> None:
    checkpoint = load_checkpoint(brought(weights, tmp_path), heads=4)
    name, content = manage.converted(checkpoint, to)
    assert name == file
    (tmp_path / name).write_bytes(content)
    if name.endswith(".zip"):
        zipfile.ZipFile(tmp_path / name).extractall(tmp_path / "out")
        model = timm.create_model(f"local-dir:{tmp_path / 'out' / 'mine'}", pretrained=True).eval()
        with torch.inference_mode():
            images = torch.randn(1, 3, 32, 32)
            assert torch.allclose(model(images), checkpoint.model(images).logits, atol=1e-5)
    else:
        assert "conv_proj.weight" in torch.load(tmp_path / name, weights_only=True)


@pytest.mark.parametrize(
    ("file", "config", "name"),
    [
        ("model.safetensors", {"architecture": "vit_base_patch16_224", "num_classes": 5}, "vit_base_patch16_224"),
        ("model-00001-of-00002.safetensors", {"_name_or_path": "google/vit-base-patch16-224"}, "vit-base-patch16-224"),
        ("open_clip_pytorch_model.bin", {"model_type": "clip_vision_model"}, "clip_vision_model"),
        ("pytorch_model.bin", {"architecture": ["no", "text"]}, "pytorch_model"),
        ("my cats.safetensors", {"architecture": "vit_base_patch16_224"}, "my-cats"),
        ("model.safetensors", {"architecture": "taken"}, "taken-2"),
        ("model.safetensors", None, "model"),
    ],
)
def test_file_without_a_meaningful_name_is_named_after_its_config(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, file: str, config: dict[str, Any] | None, name: str
) -> None:
    monkeypatch.setenv("VIT_CHECKPOINTS", str(tmp_path))
    (tmp_path / "taken").mkdir()
    content = b"{" if config is None else json.dumps(config).encode()
    assert manage.suggest(file, content) == name
    assert manage.NAME.fullmatch(name)


def test_copy_onto_a_full_disk_names_the_disk(
    tmp_path: Path, build: Callable[[], VisionTransformer], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = save_checkpoint(tmp_path / "best", build(), list("abcde"), Preprocess((32, 32)))

    def full(source: str, target: str, **options: bool) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), target)

    monkeypatch.setattr(shutil, "copyfile", full)
    with pytest.raises(InvalidCheckpoint, match=r"^The checkpoint was not saved: No space left on device\.$"):
        manage.copy(folder, "copy", tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["best"]
