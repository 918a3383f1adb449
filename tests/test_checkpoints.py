"""Checkpoints: our files open here and in transformers, and are found by name."""

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from saved_checkpoints import edit, save
from tiny import LABELS, fill
from transformers import AutoConfig, AutoImageProcessor, AutoModelForImageClassification, ViTForImageClassification

from vit.checkpoints.card import write_card
from vit.checkpoints.catalog import find_checkpoint
from vit.checkpoints.folder import open_files
from vit.checkpoints.load import list_checkpoints, load_checkpoint, summarise
from vit.checkpoints.save import save_checkpoint
from vit.errors import InvalidCheckpoint
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.paths import checkpoints_folder

ODD: dict[str, dict[str, Any]] = {
    "mean pool": {"pool": "mean", "prefix": (), "norm": "after_pool"},
    "registers": {"prefix": ("cls", "reg1", "reg2")},
    "registers first": {"prefix": ("reg1", "cls")},
    "layer scale": {"layer_scale": 1e-5},
    "no norm": {"norm": "none"},
    "no head": {"num_classes": 0},
}
PLAIN: dict[str, dict[str, Any]] = {
    "plain": {},
    "tanh gelu, eps": {"activation": "gelu_tanh", "eps": 1e-5},
    "quick gelu, no bias": {"activation": "quick_gelu", "qkv_bias": False},
    "not square, grey": {"image_size": (24, 40), "channels": 1},
    "norm after pool": {"norm": "after_pool"},
}


# --- Round trip -----------------------------------------------------------------------------------------------


@torch.inference_mode()
@pytest.mark.parametrize("changes", (PLAIN | ODD).values(), ids=PLAIN | ODD)
def test_saved_checkpoint_loads_bit_by_bit(tmp_path: Path, build: Any, changes: dict[str, Any]) -> None:
    model = build(**changes)
    facts = {"accuracy": 0.9, "recipe": {"epochs": 3}}
    folder = save(tmp_path / "tiny", model, facts=facts)
    checkpoint = load_checkpoint(folder)
    state = model.state_dict()
    assert checkpoint.config == model.config
    assert all(torch.equal(tensor, state[name]) for name, tensor in checkpoint.model.state_dict().items())
    assert not checkpoint.model.training
    assert checkpoint.labels == LABELS[: model.config.num_classes]
    assert checkpoint.assumed == {}
    assert checkpoint.facts == facts | {"params": sum(p.numel() for p in model.parameters())}
    assert checkpoint.name == "tiny" and "# tiny" in checkpoint.card
    lone = tmp_path / "alone.safetensors"
    shutil.copy(folder / "model.safetensors", lone)
    alone = load_checkpoint(lone)
    assert (alone.config, alone.labels, alone.preprocess) == (
        checkpoint.config,
        checkpoint.labels,
        checkpoint.preprocess,
    )
    assert (alone.name, alone.hash, alone.assumed) == ("alone", checkpoint.hash, {})
    x = torch.randn(1, model.config.channels, *model.config.image_size)
    assert torch.equal(alone.model(x).logits, model(x).logits)


def test_any_change_of_results_changes_the_identity(tmp_path: Path, build: Any) -> None:
    saved = save(tmp_path / "tiny", build(dim=96, heads=4))
    edits: dict[str, dict[str, Any]] = {
        "config.json": {"vit": build(dim=96, heads=4, activation="quick_gelu").config.to_dict(), "vit_probe": None},
        "preprocessor_config.json": {"image_mean": [0.4, 0.5, 0.5]},
    }
    for number, (file, changes) in enumerate(edits.items()):
        shutil.copytree(saved, tmp_path / f"edited{number}")
        edit(tmp_path / f"edited{number}" / file, **changes)
    save_file(load_file(saved / "model.safetensors"), tmp_path / "w.safetensors")  # without our metadata
    ways = [saved, tmp_path / "edited0", tmp_path / "edited1"]
    opened = [*map(load_checkpoint, ways), *(load_checkpoint(tmp_path / "w.safetensors", heads) for heads in (4, 8))]
    assert len({checkpoint.hash for checkpoint in opened}) == 2
    assert len({checkpoint.identity for checkpoint in opened}) == len(opened)


def test_copy_has_the_same_identity(tmp_path: Path, saved: Path) -> None:
    shutil.copytree(saved, tmp_path / "copy")
    shutil.copy(saved / "model.safetensors", tmp_path / "alone.safetensors")
    ways = (saved, tmp_path / "copy", tmp_path / "alone.safetensors")
    assert len({load_checkpoint(way).identity for way in ways}) == 1


def test_saving_does_not_change_the_model(tmp_path: Path, build: Any) -> None:
    model = build().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save(tmp_path / "tiny", model)
    assert model.training and all(p.requires_grad for p in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.exhaustive
@pytest.mark.slow
def test_same_model_gives_the_same_bytes_in_every_process(tmp_path: Path, saved: Path) -> None:
    again = save_checkpoint(tmp_path / "again" / "tiny", load_checkpoint(saved).model, LABELS, Preprocess((32, 32)),
                            facts={"accuracy": 0.9, "data": "noise"})  # fmt: skip
    code = (
        "import sys; from vit.checkpoints import *; c = load_checkpoint(sys.argv[1]);"
        "save_checkpoint(sys.argv[2], c.model, c.labels, c.preprocess, facts={'data': 'noise', 'accuracy': 0.9})"
    )
    other = tmp_path / "other" / "tiny"
    subprocess.run([sys.executable, "-c", code, saved, other], check=True, env=os.environ | {"PYTHONHASHSEED": "5"})
    for name in os.listdir(saved):
        assert (saved / name).read_bytes() == (again / name).read_bytes() == (other / name).read_bytes(), name


def test_folder_of_a_run_opens_its_best_checkpoint(tmp_path: Path, saved: Path) -> None:
    run = tmp_path / "run"
    shutil.copytree(saved, run / "checkpoints" / "best")
    (run / "report.npz").write_bytes(b"PK\3\4")  # of the run, no weights
    assert load_checkpoint(run).identity == load_checkpoint(saved).identity


def test_loaded_model_does_not_follow_its_file(saved: Path) -> None:
    model = load_checkpoint(saved).model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    path = saved / "model.safetensors"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 10_000)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.slow
def test_half_precision_or_compiled_model_is_saved_in_float32(tmp_path: Path, build: Any) -> None:
    model = build()
    expected = {name: tensor.half().float() for name, tensor in model.state_dict().items()}
    half = load_checkpoint(save(tmp_path / "half", model.half())).model.state_dict()
    assert all(torch.equal(half[name], tensor) for name, tensor in expected.items())
    compiled = torch.compile(build())
    assert load_checkpoint(save(tmp_path / "compiled", compiled)).config == compiled.config


# --- transformers ---------------------------------------------------------------------------------------------


@torch.inference_mode()
@pytest.mark.parametrize("changes", PLAIN.values(), ids=PLAIN)
def test_transformers_loads_it_with_equal_results(
    tmp_path: Path, build: Any, pictures: Any, changes: dict[str, Any]
) -> None:
    model = build(**changes)
    folder = save(tmp_path / "tiny", model)
    theirs, report = ViTForImageClassification.from_pretrained(
        folder, output_loading_info=True, attn_implementation="eager"
    )
    assert not any(report.values())  # missing, unexpected, mismatched keys, errors
    images = pictures(*model.config.image_size, channels=model.config.channels)
    expected, output = theirs(images, output_attentions=True), model(images, output_attentions=True)
    assert (output.logits - expected.logits).abs().max() <= 1e-5 * expected.logits.abs().max()
    assert len(expected.attentions) == 2
    for mine, their in zip(output.attentions, expected.attentions, strict=True):
        assert (mine - their).abs().max() <= 1e-5
    assert theirs.config.id2label == dict(enumerate(LABELS))
    assert theirs.config.label2id == {label: i for i, label in enumerate(LABELS)}
    assert isinstance(AutoModelForImageClassification.from_pretrained(folder), ViTForImageClassification)


@pytest.mark.parametrize(
    "preprocess",
    [
        Preprocess((32, 32)),
        Preprocess((32, 32), "squash", mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4)),
        Preprocess((32, 32), "shortest", 48, "bicubic"),
    ],
    ids=["shortest", "squash", "crop"],
)
def test_transformers_preprocesses_equally_to_one_grey_level(
    tmp_path: Path, build: Any, preprocess: Preprocess
) -> None:
    folder = save_checkpoint(tmp_path / "tiny", build(), LABELS, preprocess)
    assert load_checkpoint(folder).preprocess == preprocess
    noise = np.random.default_rng(0).integers(0, 256, (70, 90, 3), np.uint8)
    image = Image.fromarray(noise).resize((120, 100), Image.Resampling.BICUBIC)
    theirs = AutoImageProcessor.from_pretrained(folder)(image, return_tensors="pt")["pixel_values"]
    one_level = 1 / 255 / min(preprocess.std) + 1e-5
    assert (preprocess(image) - theirs).abs().max() <= one_level
    flipped = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    assert (preprocess(flipped) - theirs).abs().max() > one_level  # negative control


@pytest.mark.parametrize("changes", ODD.values(), ids=ODD)
def test_features_unsupported_by_transformers_are_refused_and_stated_in_the_card(
    tmp_path: Path, build: Any, changes: dict[str, Any]
) -> None:
    folder = save(tmp_path / "tiny", build(**changes))
    assert "transformers does not open this checkpoint" in (folder / "README.md").read_text()
    with pytest.raises((ValueError, KeyError)):
        AutoConfig.from_pretrained(folder)
    with pytest.raises(Exception, match=r"."):
        ViTForImageClassification.from_pretrained(folder)


@torch.inference_mode()
def test_checkpoint_trained_further_in_transformers_loads(tmp_path: Path, saved: Path, pictures: Any) -> None:
    """transformers copies our fields of config.json and changes the weights: its own fields have priority then."""
    theirs = fill(ViTForImageClassification.from_pretrained(saved, num_labels=2, ignore_mismatched_sizes=True), 9)
    theirs.save_pretrained(tmp_path / "tuned")
    assert "vit_probe" in json.loads((tmp_path / "tuned" / "config.json").read_text())
    checkpoint = load_checkpoint(tmp_path / "tuned")
    expected = theirs(pictures()).logits
    assert (checkpoint.model(pictures()).logits - expected).abs().max() <= 1e-5 * expected.abs().max()


# --- Names, lists, cards --------------------------------------------------------------------------------------

HOSTILE = ["", ".", "..", "../tiny", "tiny/", "tiny/../tiny", "/etc", "~", "TINY", "tiny\0", "tiny\n", "a" * 65, "*",
           "tiny\\", "file:///etc/passwd", "%2e%2e", ".tiny.old", "..\\tiny", "tiny ", "\ud800",
           "checkpoints/tiny"]  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
def test_names_are_looked_up_and_never_joined(saved: Path, name: str) -> None:
    with pytest.raises(InvalidCheckpoint, match="no checkpoint"):
        find_checkpoint(name, saved.parent)


def test_name_folder_and_file_open_the_same(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIT_CHECKPOINTS", str(saved.parent))
    assert checkpoints_folder() == saved.parent
    ways = ["tiny", saved, str(saved), saved / "model.safetensors"]
    assert {(load_checkpoint(way).hash, load_checkpoint(way).name) for way in ways} == {
        (load_checkpoint("tiny").hash, "tiny")
    }
    with pytest.raises(InvalidCheckpoint, match=r"no checkpoint 'other'. There are: tiny"):
        load_checkpoint("other")


def test_checkpoints_are_found_beside_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VIT_CHECKPOINTS", raising=False)
    assert checkpoints_folder() == Path(__file__).parent.parent / "checkpoints"


def test_list_shows_names_sizes_facts_and_errors(tmp_path: Path, build: Any) -> None:
    for name, changes in {"b": {}, "a": ODD["registers"]}.items():
        save(tmp_path / name, build(**changes), facts={"accuracy": 0.5})
    (tmp_path / "c").mkdir()
    (tmp_path / ".hidden").mkdir()
    (tmp_path / "Upper").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    (tmp_path / "file").write_text("x")
    a, b, c = list_checkpoints(tmp_path)
    assert (a.name, b.name, c.name) == ("a", "b", "c")
    assert a.params == sum(p.numel() for p in build(**ODD["registers"]).parameters())
    assert (b.size, b.labels) == ((tmp_path / "b" / "model.safetensors").stat().st_size, 5)
    assert b.facts["accuracy"] == 0.5 and b.folder == tmp_path / "b"
    assert (a.problem, b.problem) == ("", "") and "no weights" in c.problem
    assert list_checkpoints(tmp_path / "nowhere") == []


def test_listing_does_not_read_weights(saved: Path) -> None:
    path = saved / "model.safetensors"
    with path.open("r+b") as file:  # NaN in every weight, which only reading them shows
        (length,) = struct.unpack("<Q", file.read(8))
        file.seek(8 + length)
        file.write(b"\xff" * (path.stat().st_size - 8 - length))
    assert list_checkpoints(saved.parent)[0].problem == ""
    with pytest.raises(InvalidCheckpoint, match="NaN"):
        load_checkpoint(saved)


def test_card_states_known_facts_and_what_is_unknown(tiny: ViTConfig) -> None:
    facts = {"accuracy": 0.9312, "data": "CIFAR-10", "recipe": {"epochs": 40}, "time": 7200, "license": "mit"}
    card = write_card("tiny", tiny, LABELS, facts)
    for section in ("Data", "Recipe", "Cost", "Accuracy", "Limits", "How to open it"):
        assert f"\n## {section}\n" in card
    for words in ("Accuracy: 93.1%\n", "CIFAR-10", "epochs: 40", "7,200 s", 'license: "mit"', "--checkpoint tiny"):
        assert words in card
    assert card.startswith("---\n") and "Not recorded." in card


@pytest.mark.parametrize("bug", [ValueError("not enough values to unpack"), OSError(5, "Input/output error")])
def test_bug_while_opening_is_not_reported_as_a_users_mistake(saved: Path, bug: Exception) -> None:
    with pytest.raises(type(bug)) as caught, open_files(saved):
        raise bug
    assert caught.value is bug


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_impossible_file_name_is_refused(tmp_path: Path, name: str) -> None:
    for path in (tmp_path / name, tmp_path / name / "model.safetensors"):
        with pytest.raises(InvalidCheckpoint):
            load_checkpoint(path)
        assert summarise(path).problem
