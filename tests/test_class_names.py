"""Class names: words in place of WordNet ids; and classes of unequal size."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vit.data.folders import folders_of_classes, list_files
from vit.data.layouts import class_names
from vit.errors import InvalidDataset
from vit.training.loop.distributed import set_up_process
from vit.training.loop.presets import train_config
from vit.training.loop.step import class_weights
from vit.training.loop.trainer import Trainer

IDS = ("n01440764", "n02979186", "n03888257")
WORDS = ("tench", "cassette player", "parachute")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Class folders named by WordNet ids: many tenches, few others."""
    for name, count in zip(IDS, (24, 6, 6), strict=True):
        (tmp_path / name).mkdir()
        for number in range(count):
            Image.new("RGB", (8, 8), (number, 0, 0)).save(tmp_path / name / f"{number}.png")
    return tmp_path


def test_wordnet_ids_become_words(folder: Path) -> None:
    assert list_files(folder).classes == WORDS
    assert folders_of_classes(folder) == IDS


def test_other_folders_keep_their_names(folder: Path) -> None:
    (folder / IDS[0]).rename(folder / "fish")
    assert list_files(folder).classes == ("fish", *IDS[1:])


def test_configured_names_are_used_and_labels_are_unchanged(folder: Path) -> None:
    before = list_files(folder)
    class_names.rename(folder, IDS, ["Schleie", "", "парашют"])
    after = list_files(folder)
    assert after.classes == ("Schleie", WORDS[1], "парашют")
    assert after[1:] == before[1:]
    class_names.rename(folder, IDS, ["a", "b", "c"])
    assert list_files(folder).classes == ("a", "b", "c")


def test_duplicate_names_are_refused_and_nothing_is_written(folder: Path) -> None:
    with pytest.raises(InvalidDataset, match="'fish'"):
        class_names.rename(folder, IDS, ["fish", "fish ", "c"])
    with pytest.raises(InvalidDataset, match="at most"):
        class_names.rename(folder, IDS, ["x" * 101, "b", "c"])
    assert not (folder / class_names.FILE).exists()


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[1]",
        b"{",
        b'{"n01440764": 7}',
        b'{"n01440764": ""}',
        b'{"n01440764": "parachute"}',
        b"\xff\xfe",
        b"{}" * 10,
    ],
)
def test_damaged_names_file_is_ignored(folder: Path, content: bytes) -> None:
    (folder / class_names.FILE).write_bytes(content)
    names = list_files(folder).classes
    assert names in (WORDS, IDS)  # duplicate names: the folders' own are used
    assert len(set(names)) == 3


def test_checkpoint_has_the_names(folder: Path, tmp_path: Path) -> None:
    class_names.rename(folder, IDS, ["a", "b", "c"])
    config = train_config(data=f"folder:{folder}", image_size=8, patch_size=4, dim=8, depth=1, heads=1, mlp_dim=8)
    assert Trainer(config, tmp_path / "run", set_up_process(config)).data.classes == ("a", "b", "c")


# --- Classes of unequal size ----------------------------------------------------------------------------------


def trainer(folder: Path, balance: str, **more: object) -> Trainer:
    config = train_config(
        data=f"folder:{folder}", image_size=8, patch_size=4, dim=8, depth=1, heads=1, mlp_dim=8, batch_size=7,
        balance=balance, device="cpu", precision="float32", **more,
    )  # fmt: skip
    return Trainer(config, folder / "run", set_up_process(config))


def test_balanced_sampling_shows_every_class_equally_often(folder: Path) -> None:
    balanced, plain = trainer(folder, "sampling"), trainer(folder, "none")
    counts = []
    for one in (balanced, plain):
        total = torch.zeros(3)
        for epoch in range(200):
            one.progress.step = epoch * one.data.steps_per_epoch
            total += one.data.train.labels[one._epoch_order()].bincount(minlength=3)
        counts.append((total / total.sum()).numpy())
    assert np.abs(counts[0] - 1 / 3).max() < 0.04
    assert counts[1][0] > 0.6
    balanced.progress.step = 3 * balanced.data.steps_per_epoch
    assert torch.equal(balanced._epoch_order(), balanced._epoch_order())  # a function of seed and epoch


def test_class_weights_balance_the_gradient(folder: Path) -> None:
    """The head's bias has a gradient for each class; with equal logits those of all classes cancel out."""
    pulls = []
    for balance in ("none", "loss", "prior", "auto"):
        one = trainer(folder, balance, label_smoothing=0.0)
        images, labels = one.data.train.images, one.data.train.labels  # type: ignore[attr-defined]
        one.update.gradients(one.data.normalise(images), labels)
        pulls.append(one.update.model.head.bias.grad.abs().max().item())  # type: ignore[union-attr,operator]
    assert pulls[0] > 0.1 and max(pulls[1:]) < 1e-6


def test_classes_of_unequal_size_are_balanced_unless_switched_off(folder: Path) -> None:
    assert [trainer(folder, balance).update.balance for balance in ("auto", "none")] == ["prior", "none"]
    assert "18 pictures, so the loss balances" in trainer(folder, "auto").notes[0] and not trainer(folder, "none").notes


@pytest.mark.parametrize("parts", [2, 7])
def test_weighted_batches_in_parts_have_the_gradient_of_the_whole(folder: Path, parts: int) -> None:
    one = trainer(folder, "loss")
    order = torch.arange(0, 26, 2)[torch.arange(14) % 13]
    inputs = one.data.normalise(one.data.train.images[order])  # type: ignore[attr-defined]
    labels = one.data.train.labels[order]
    found = []
    for number in (1, parts):
        one.update.parts = number
        one.update.gradients(inputs, labels)
        found.append([p.grad.clone() for p in one.update.model.parameters() if p.grad is not None])
        one.update.model.zero_grad(set_to_none=True)
    for whole, summed in zip(*found, strict=True):
        assert torch.allclose(whole, summed, atol=1e-6)


def test_class_without_pictures_has_a_finite_weight() -> None:
    assert class_weights(torch.tensor([0, 0, 2]), 3).isfinite().all()


def test_names_survive_a_round_trip_through_json(folder: Path) -> None:
    class_names.rename(folder, IDS, ["a", "", "c"])
    assert json.loads((folder / class_names.FILE).read_text()) == {IDS[0]: "a", IDS[2]: "c"}
