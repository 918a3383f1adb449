"""Checkpoints: what we save opens here and in transformers, a save is all or nothing, and bad files are refused."""

import io
import json
import os
import pickle
import random
import resource
import shutil
import struct
import subprocess
import sys
import threading
import time
import zipfile
from argparse import Namespace
from pathlib import Path
from typing import Any

import apart
import numpy as np
import pytest
import torch
from conftest import LABELS, fill
from PIL import Image
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig,
    AutoImageProcessor,
    AutoModelForImageClassification,
    ViTForImageClassification,
)

from vit.card import write_card
from vit.checkpoints import (
    _opened,
    checkpoints_folder,
    find_checkpoint,
    list_checkpoints,
    load_checkpoint,
    probe,
    save_checkpoint,
    summarise,
)
from vit.errors import InvalidCheckpoint, UserError
from vit.images import Preprocess
from vit.model import VisionTransformer, ViTConfig

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


def save(folder: Path, model: VisionTransformer, **kwargs: Any) -> Path:
    """Save with labels and preprocessing that fit."""
    config = model.config
    half = (0.5,) * config.channels
    return save_checkpoint(
        folder,
        model,
        LABELS[: config.num_classes],
        Preprocess(config.image_size, mean=half, std=half),
        **kwargs,
    )


def edit(path: Path, **changes: Any) -> None:
    """Change top-level fields of a JSON file; None removes one."""
    document = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))


def raw_safetensors(header: Any, body: bytes = b"") -> bytes:
    """A safetensors file with any header."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


# --- Round trip -----------------------------------------------------------------------------------------------


@torch.inference_mode()
@pytest.mark.parametrize("changes", (PLAIN | ODD).values(), ids=PLAIN | ODD)
def test_what_is_saved_comes_back_bit_by_bit(tmp_path: Path, build: Any, changes: dict[str, Any]) -> None:
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


def test_whatever_changes_results_changes_the_identity(tmp_path: Path, build: Any) -> None:
    saved = save(tmp_path / "tiny", build(dim=96, heads=4))
    edits: dict[str, dict[str, Any]] = {
        "config.json": {"vit": build(dim=96, heads=4, activation="quick_gelu").config.to_dict(), "vit_probe": None},
        "preprocessor_config.json": {"image_mean": [0.4, 0.5, 0.5]},
    }
    for number, (file, changes) in enumerate(edits.items()):
        shutil.copytree(saved, tmp_path / f"edited{number}")
        edit(tmp_path / f"edited{number}" / file, **changes)
    save_file(load_file(saved / "model.safetensors"), tmp_path / "w.safetensors")  # without what ours say of themselves
    ways = [saved, tmp_path / "edited0", tmp_path / "edited1"]
    opened = [*map(load_checkpoint, ways), *(load_checkpoint(tmp_path / "w.safetensors", heads) for heads in (4, 8))]
    assert len({checkpoint.hash for checkpoint in opened}) == 2
    assert len({checkpoint.identity for checkpoint in opened}) == len(opened)


def test_a_copy_has_the_same_identity(tmp_path: Path, saved: Path) -> None:
    shutil.copytree(saved, tmp_path / "copy")
    shutil.copy(saved / "model.safetensors", tmp_path / "alone.safetensors")
    ways = (saved, tmp_path / "copy", tmp_path / "alone.safetensors")
    assert len({load_checkpoint(way).identity for way in ways}) == 1


def test_saving_changes_nothing_in_the_model(tmp_path: Path, build: Any) -> None:
    model = build().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    save(tmp_path / "tiny", model)
    assert model.training and all(p.requires_grad for p in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.slow
def test_the_same_model_gives_the_same_bytes_in_every_process(tmp_path: Path, saved: Path) -> None:
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


def test_a_loaded_model_does_not_follow_its_file(saved: Path) -> None:
    model = load_checkpoint(saved).model
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    path = saved / "model.safetensors"
    with path.open("r+b") as file:
        file.seek(path.stat().st_size // 2)
        file.write(b"\xff" * 10_000)
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.slow
def test_a_half_precision_or_compiled_model_is_saved_in_float32(tmp_path: Path, build: Any) -> None:
    model = build()
    expected = {name: tensor.half().float() for name, tensor in model.state_dict().items()}
    half = load_checkpoint(save(tmp_path / "half", model.half())).model.state_dict()
    assert all(torch.equal(half[name], tensor) for name, tensor in expected.items())
    compiled = torch.compile(build())
    assert load_checkpoint(save(tmp_path / "compiled", compiled)).config == compiled.config


def test_further_files_are_kept(tmp_path: Path, build: Any) -> None:
    folder = save(tmp_path / "tiny", build(), files={"state.pt": b"optimiser"})
    assert (folder / "state.pt").read_bytes() == b"optimiser"
    load_checkpoint(folder)
    for name in ("../x", "config.json", ".hidden", "a/b", ""):
        with pytest.raises(ValueError, match="named"):
            save(tmp_path / "other", build(), files={name: b""})


# --- transformers ---------------------------------------------------------------------------------------------


@torch.inference_mode()
@pytest.mark.parametrize("changes", PLAIN.values(), ids=PLAIN)
def test_transformers_opens_what_is_saved_and_says_the_same(
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
def test_transformers_makes_the_same_pixels_to_one_grey_level(
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
def test_what_transformers_cannot_express_it_refuses_and_the_card_says_so(
    tmp_path: Path, build: Any, changes: dict[str, Any]
) -> None:
    folder = save(tmp_path / "tiny", build(**changes))
    assert "transformers does not open this checkpoint" in (folder / "README.md").read_text()
    with pytest.raises((ValueError, KeyError)):
        AutoConfig.from_pretrained(folder)
    with pytest.raises(Exception, match=r"."):
        ViTForImageClassification.from_pretrained(folder)


@torch.inference_mode()
def test_a_checkpoint_trained_on_in_transformers_comes_back(tmp_path: Path, saved: Path, pictures: Any) -> None:
    """transformers copies our fields of config.json and changes the weights: its own fields count then."""
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


def test_a_name_a_folder_and_a_file_open_the_same(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_the_list_tells_names_sizes_and_facts_and_what_is_broken(tmp_path: Path, build: Any) -> None:
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


def test_a_list_does_not_read_weights(saved: Path) -> None:
    path = saved / "model.safetensors"
    with path.open("r+b") as file:  # NaN in every weight, which only reading them shows
        (length,) = struct.unpack("<Q", file.read(8))
        file.seek(8 + length)
        file.write(b"\xff" * (path.stat().st_size - 8 - length))
    assert list_checkpoints(saved.parent)[0].problem == ""
    with pytest.raises(InvalidCheckpoint, match="NaN"):
        load_checkpoint(saved)


def test_a_card_tells_what_is_known_and_says_what_is_not(tiny: ViTConfig) -> None:
    facts = {"accuracy": 0.9312, "data": "CIFAR-10", "recipe": {"epochs": 40}, "time": 7200, "license": "mit"}
    card = write_card("tiny", tiny, LABELS, facts)
    for section in ("Data", "Recipe", "Cost", "Accuracy", "Limits", "How to open it"):
        assert f"\n## {section}\n" in card
    for words in ("93.12%", "CIFAR-10", "epochs: 40", "7,200 s", 'license: "mit"', "--checkpoint tiny"):
        assert words in card
    assert card.startswith("---\n") and "Not recorded." in card


# --- All or nothing -------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for SIGKILL: nothing may run after it."""


@pytest.mark.parametrize("step", range(14))
def test_a_save_that_is_cut_off_leaves_a_whole_checkpoint(
    saved: Path, build: Any, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop before the n-th call that changes the disk; then read, and save again."""
    old = load_checkpoint(saved).hash
    calls = 0

    def counting(function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls > step:
                raise Killed
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        patch.setattr("os.rename", counting(os.rename))
        patch.setattr("os.fsync", counting(os.fsync))
        patch.setattr("shutil.rmtree", counting(shutil.rmtree))
        with_kill = step < 11
        if with_kill:
            with pytest.raises(Killed):
                save(saved, build(seed=1))
        else:
            save(saved, build(seed=1))
            assert calls == 11
    assert [entry.name for entry in list_checkpoints(saved.parent)] == ["tiny"]
    assert load_checkpoint(find_checkpoint("tiny", saved.parent)).name == "tiny"
    found = load_checkpoint(saved)
    expected = build(seed=int(found.hash != old)).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in found.model.state_dict().items())
    assert "accuracy" in found.facts or found.hash != old  # config and card are of the same save
    save(saved, build(seed=2))
    assert sorted(os.listdir(saved.parent)) == ["tiny"]
    assert torch.equal(load_checkpoint(saved).model.pos_embed, build(seed=2).pos_embed)


@pytest.mark.slow
def test_killed_processes_leave_whole_checkpoints(tmp_path: Path, build: Any) -> None:
    code = """
import itertools, sys
from vit.checkpoints import load_checkpoint, save_checkpoint
opened = [load_checkpoint(source) for source in sys.argv[2:]]
for i in itertools.count():
    of = opened[i % 2]
    save_checkpoint(sys.argv[1], of.model, of.labels, of.preprocess, facts={"seed": i % 2})
    print(i, flush=True)
"""
    folder = tmp_path / "tiny"
    models = [build(seed=seed) for seed in (0, 1)]
    sources = [save(tmp_path / f"model {seed}", model) for seed, model in enumerate(models)]
    delay = random.Random(0)
    for attempt in range(4):
        saves = tmp_path / f"saves of {attempt}"
        process = apart.begin(code, folder, *sources, out=saves)
        while not saves.exists() or not saves.stat().st_size:
            assert process.is_alive()
            time.sleep(0.01)
        time.sleep(delay.uniform(0, 0.1))
        process.kill()
        process.join()
        checkpoint = load_checkpoint(folder)
        assert torch.equal(checkpoint.model.pos_embed, models[checkpoint.facts["seed"]].pos_embed)


@pytest.mark.slow
def test_a_reader_during_saves_sees_whole_checkpoints(saved: Path, build: Any) -> None:
    models = [build(seed=0), build(seed=1)]
    save(saved, models[0], facts={"seed": 0})
    stop = threading.Event()

    def write() -> None:
        i = 0
        while not stop.is_set():
            i += 1
            save(saved, models[i % 2], facts={"seed": i % 2})

    writer = threading.Thread(target=write)
    writer.start()
    try:
        for _ in range(40):
            checkpoint = load_checkpoint(saved)
            assert torch.equal(checkpoint.model.pos_embed, models[checkpoint.facts["seed"]].pos_embed)
            assert checkpoint.assumed == {}
    finally:
        stop.set()
        writer.join()


def test_saving_never_deletes_what_is_not_a_checkpoint(tmp_path: Path, build: Any) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.txt").write_text("years of work")
    with pytest.raises(UserError, match=r"chapter.txt"):
        save(tmp_path / "thesis", build())
    (tmp_path / "note").write_text("x")
    with pytest.raises(UserError, match="not a folder"):
        save(tmp_path / "note", build())
    (tmp_path / "link").symlink_to(tmp_path / "thesis")
    with pytest.raises(UserError, match="not a folder"):
        save(tmp_path / "link", build())
    assert sorted(os.listdir(tmp_path)) == ["link", "note", "thesis"]
    assert os.listdir(tmp_path / "thesis") == ["chapter.txt"]


def test_a_full_disk_is_said_and_nothing_is_left(saved: Path, build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    old = load_checkpoint(saved).hash

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(UserError, match="not saved: No space left"):
            save(saved, build(seed=1))
    assert os.listdir(saved.parent) == ["tiny"] and load_checkpoint(saved).hash == old


@pytest.mark.parametrize("bug", [ValueError("not enough values to unpack"), OSError(5, "Input/output error")])
def test_a_bug_behind_the_opening_is_no_mistake_of_the_users(saved: Path, bug: Exception) -> None:
    with pytest.raises(type(bug)) as found, _opened(saved):
        raise bug
    assert found.value is bug


@pytest.mark.parametrize("name", ["a\0b", "\ud800"])
def test_a_name_that_no_file_can_have_is_told(tmp_path: Path, name: str) -> None:
    for path in (tmp_path / name, tmp_path / name / "model.safetensors"):
        with pytest.raises(InvalidCheckpoint):
            load_checkpoint(path)
        assert summarise(path).problem


def test_what_does_not_fit_is_not_saved(tmp_path: Path, build: Any, preprocess: Preprocess) -> None:
    model = build()
    with pytest.raises(ValueError, match="4 labels for 5 classes"):
        save_checkpoint(tmp_path / "x", model, LABELS[:4], preprocess)
    with pytest.raises(InvalidCheckpoint, match="channels"):
        save_checkpoint(tmp_path / "x", model, LABELS, Preprocess((32, 32), mean=(0.5,), std=(0.5,)))
    model.head.bias.data[0] = float("nan")
    with pytest.raises(InvalidCheckpoint, match="NaN"):
        save_checkpoint(tmp_path / "x", model, LABELS, preprocess)
    assert os.listdir(tmp_path) == []


# --- Bad files ------------------------------------------------------------------------------------------------


def vit_field(**changes: Any) -> Any:
    """Change fields of our config, in the folder's config.json."""

    def change(folder: Path) -> None:
        document = json.loads((folder / "config.json").read_text())
        edit(folder / "config.json", vit=document["vit"] | changes)

    return change


def weights(**changes: Any) -> Any:
    """Change tensors by name; a function of the old value, None to remove."""

    def change(folder: Path) -> None:
        path = folder / "model.safetensors"
        with safe_open(path, "pt") as file:
            metadata = file.metadata()
        tensors = load_file(path)
        for name, function in changes.items():
            name = name.replace("__", ".")
            tensors[name] = function(tensors.get(name)).contiguous()
        save_file({name: tensor for name, tensor in tensors.items() if tensor.numel()}, path, metadata)

    return change


def write(name: str, content: bytes | str) -> Any:
    """Replace a file."""
    return lambda folder: (folder / name).write_bytes(content.encode() if isinstance(content, str) else content)


def replace_by(name: str, make: Any) -> Any:
    """Replace a file by a link, a pipe or a folder."""

    def change(folder: Path) -> None:
        (folder / name).rename(folder.parent / "elsewhere")
        make(folder / name)

    return change


def truncate(folder: Path) -> None:
    """Cut the weights in half."""
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


GONE = torch.zeros(0)
TENSOR = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BAD: dict[str, tuple[Any, str]] = {
    "garbage": (write("model.safetensors", os.urandom(5000)), "neither a safetensors|not a valid|damaged"),
    "empty": (write("model.safetensors", b""), "neither a safetensors"),
    "truncated": (truncate, "not a valid safetensors"),
    "lfs": (write("model.safetensors", "version https://git-lfs.github.com/spec/v1\n"), "Git LFS"),
    "header too long": (write("model.safetensors", struct.pack("<Q", 1 << 60) + b"{}" * 50), "not a valid"),
    "offsets overlap": (
        write("model.safetensors", raw_safetensors({"a": TENSOR, "b": TENSOR}, b"\0" * 8)), "not a valid"
    ),
    "hole": (write("model.safetensors", raw_safetensors({"a": TENSOR}, b"\0" * 12)), "not a valid"),
    "shape lies": (
        write("model.safetensors", raw_safetensors({"a": TENSOR | {"shape": [10**6, 10**6]}}, b"\0" * 8)), "not a valid"
    ),
    "huge side": (
        write("model.safetensors", raw_safetensors({"a": TENSOR | {"shape": [10**30, 0], "data_offsets": [0, 0]}})),
        "not a valid",
    ),
    "names twice": (
        write("model.safetensors", raw_safetensors(b'{"a":' + json.dumps(TENSOR).encode() + b',"a":[]}', b"\0" * 8)),
        "not a valid",
    ),
    "eight-bit": (
        write("model.safetensors", raw_safetensors({"a": TENSOR | {"dtype": "F8_E4M3"}}, b"\0" * 8)),
        "stored as F8_E4M3",
    ),
    "deep header": (write("model.safetensors", raw_safetensors(b'{"a":' + b"[" * 200_000, b"")), "not a valid"),
    "no weights": (lambda folder: (folder / "model.safetensors").unlink(), "no weights"),
    "index of another name": (
        lambda folder: (folder / "model.safetensors").rename(folder / "model.fp16.safetensors.index.json"), "split"
    ),
    "link": (
        replace_by("model.safetensors", lambda path: path.symlink_to(path.parent.parent / "elsewhere")), "is a link"
    ),
    "config link": (replace_by("config.json", lambda path: path.symlink_to("/etc/passwd")), "is a link"),
    "pipe": (replace_by("model.safetensors", os.mkfifo), "not a regular file"),
    "folder": (replace_by("model.safetensors", os.mkdir), "not a regular file"),
    "device": (replace_by("config.json", lambda path: path.symlink_to("/dev/zero")), "is a link"),
    "NaN": (weights(classifier__bias=lambda t: t * float("nan")), "NaN"),
    "infinite": (weights(vit__layernorm__weight=lambda t: t / 0), "NaN or infinite"),
    "overflow": (weights(classifier__bias=lambda t: t.double() * 1e300), "NaN or infinite"),
    "whole numbers": (weights(classifier__bias=lambda t: t.long()), "not floating-point"),
    "missing": (weights(vit__layernorm__weight=lambda t: GONE), "1 tensor missing"),
    "extra": (weights(vit__extra=lambda t: torch.zeros(3)), "extra"),
    "wrong shape": (weights(classifier__weight=lambda t: t[:, :-1]), "another shape"),
    "scalar": (weights(vit__embeddings__position_embeddings=lambda t: torch.zeros(())), "wrong shape"),
    "config garbage": (write("config.json", b"\xff\xfe"), "config.json is not valid JSON"),
    "config list": (write("config.json", "[]"), "config.json is not a JSON object"),
    "config deep": (write("config.json", "[" * 100_000), "not valid JSON"),
    "config without ours": (lambda folder: edit(folder / "config.json", vit=None), 'lacks the field "vit"'),
    "config huge": (vit_field(dim=10**9), "dim must be a whole number from 1 to 8192"),
    "config long number": (vit_field(dim=int("9" * 4000)), "dim must be a whole number"),
    "config deep model": (vit_field(depth=10**6), "depth must be a whole number from 1 to 100"),
    "config text": (vit_field(depth="2"), "depth must be a whole number"),
    "config true": (vit_field(depth=True), "depth must be a whole number"),
    "config NaN": (vit_field(eps=float("nan")), "eps must be a small number"),
    "config unknown": (vit_field(colour=1), "colour"),
    "config channels": (vit_field(channels=2), "1 .grey. or 3"),
    "config prefix": (vit_field(prefix=["cls", "<b>"]), "prefix must name"),
    "config nested": (vit_field(activation=["gelu"]), "activation must be a word"),
    "many patches": (vit_field(image_size=[4096, 4096], patch_size=8), "at most 4096"),
    "heads do not divide": (vit_field(heads=5), "heads 5 does not divide dim 64"),
    "other depth": (vit_field(depth=3), "missing"),
    "other classes": (vit_field(num_classes=6), "5 classes and its head has 6|another shape"),
    "other heads": (vit_field(heads=4), "other results than when it was saved"),
    "other activation": (vit_field(activation="quick_gelu"), "other results than when it was saved"),
    "other eps": (vit_field(eps=1e-2), "other results than when it was saved"),
    "changed weight": (weights(classifier__bias=lambda t: t + 1), "other results than when it was saved"),
    "bad probe": (lambda folder: edit(folder / "config.json", vit_probe=["x"]), "other results"),
    "few labels": (lambda folder: edit(folder / "config.json", id2label={"0": "a"}), "names 1 classes"),
    "labels misnumbered": (
        lambda folder: edit(folder / "config.json", id2label={str(i + 1): "x" for i in range(5)}), "numbered 0 to 4"
    ),
    "label not text": (
        lambda folder: edit(folder / "config.json", id2label={str(i): i for i in range(5)}), "Class names"
    ),
    "label half a character": (
        lambda folder: edit(folder / "config.json", id2label={str(i): "\ud800" for i in range(5)}), "not valid JSON"
    ),
    "labels a list": (lambda folder: edit(folder / "config.json", id2label=["a"]), "id2label must map"),
    "preprocess": (lambda folder: edit(folder / "preprocessor_config.json", size=-1, crop_size=-1), "size"),
    "preprocess patches": (
        lambda folder: edit(folder / "preprocessor_config.json", crop_size={"height": 30, "width": 30}), "do not fill"
    ),
    "preprocess channels": (
        lambda folder: edit(folder / "preprocessor_config.json", image_mean=[0.5], image_std=[0.5]), "channels"
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_refused_with_one_clear_sentence(saved: Path, case: str) -> None:
    spoil, words = BAD[case]
    spoil(saved)
    with pytest.raises(InvalidCheckpoint, match=words) as caught:
        load_checkpoint(saved)
    message = str(caught.value)
    assert len(message) < 300 and "\n" not in message and str(saved.parent) not in message
    list_checkpoints(saved.parent)  # one bad checkpoint does not hide the others


def test_a_fresh_checkpoint_is_not_refused(saved: Path) -> None:
    load_checkpoint(saved)


@pytest.mark.parametrize(
    "path", ["", "nowhere", "a\0b", "x" * 5000, "/dev/zero", "/dev/null", "/proc/self/mem", "\ud800"]
)
def test_paths_that_lead_nowhere_are_refused(path: str) -> None:
    with pytest.raises(InvalidCheckpoint):
        load_checkpoint(path)
    with pytest.raises(InvalidCheckpoint):
        load_checkpoint(Path(path) if path else Path("nowhere"))


@pytest.mark.slow
def test_a_fuzzed_file_raises_only_invalid_checkpoint(saved: Path) -> None:
    """Flip, cut, insert and repeat bytes in each file of a checkpoint, and in pickles of both kinds."""
    chance = random.Random(0)
    state = load_file(saved / "model.safetensors")
    pickles = saved.parent / "pickles"
    pickles.mkdir()
    document = json.loads((saved / "config.json").read_text())
    (pickles / "config.json").write_text(json.dumps(document))
    targets = [saved / name for name in ("model.safetensors", "config.json", "preprocessor_config.json")]
    for zipped in (True, False):
        folder = pickles / str(zipped)
        folder.mkdir()
        shutil.copy(pickles / "config.json", folder)
        torch.save(state, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
        load_checkpoint(folder)
        targets.append(folder / "pytorch_model.bin")
    outcomes = {"refused": 0, "opened": 0}
    for target in targets:
        original = target.read_bytes()
        for _ in range(60):
            content = bytearray(original)
            for _ in range(chance.choice((1, 1, 3, 30))):
                reach = len(content) if chance.random() < 0.3 else min(len(content), 4000)
                at = chance.randrange(max(1, reach)) if chance.random() < 0.7 else len(content) - 1 - chance.randrange(
                    max(1, min(len(content), 4000))
                )  # fmt: skip
                match chance.randrange(5):
                    case 0:
                        content[at : at + 1] = bytes([chance.randrange(256)])
                    case 1:
                        del content[at : at + chance.randrange(1, 200)]
                    case 2:
                        content[at:at] = chance.randbytes(chance.randrange(1, 50))
                    case 3:
                        content[at:at] = content[: chance.randrange(200)]
                    case 4:
                        content[at : at + 4] = chance.choice((b"\xff\xff\xff\xff", b"\0\0\0\0", b"9999", b"-1,0"))
                content = content or bytearray(b"x")
            target.write_bytes(content)
            try:
                load_checkpoint(target.parent)
                outcomes["opened"] += 1
            except InvalidCheckpoint:
                outcomes["refused"] += 1
            list_checkpoints(target.parent.parent)
        target.write_bytes(original)
    assert outcomes["refused"] > 100, outcomes


# --- Pickles --------------------------------------------------------------------------------------------------


@pytest.fixture
def pickled(tmp_path: Path, saved: Path) -> Any:
    """`pickled(content, zipped)`: a folder with our config of transformers and that content as pytorch_model.bin."""

    def make(content: Any, zipped: bool = True) -> Path:
        folder = tmp_path / "pickled"
        folder.mkdir(exist_ok=True)
        shutil.copy(saved / "config.json", folder)
        if isinstance(content, bytes):
            (folder / "pytorch_model.bin").write_bytes(content)
        else:
            torch.save(content, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
        return folder

    return make


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"model": state, "epoch": 3, "args": Namespace(lr=0.1)},
        lambda state: {
            "state_dict": {f"module.{name}": tensor for name, tensor in state.items()},
            "optimizer": {},
        },
        lambda state: {"model": {f"_orig_mod.module.{k}": torch.nn.Parameter(v) for k, v in state.items()}},
    ],
    ids=["bare", "model", "state_dict and module", "compiled"],
)
def test_pickles_with_the_usual_wrappings_are_read(saved: Path, pickled: Any, wrap: Any, zipped: bool) -> None:
    state = load_file(saved / "model.safetensors")
    checkpoint = load_checkpoint(pickled(wrap(state), zipped))
    assert torch.equal(checkpoint.model.pos_embed, load_checkpoint(saved).model.pos_embed)


class Attack:
    """Runs a command when unpickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch pwned",)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
@pytest.mark.parametrize("protocol", [2, 4])
def test_code_in_a_pickle_is_named_and_never_run(
    pickled: Any, zipped: bool, protocol: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = pickled({"a": torch.zeros(2)})
    torch.save(
        {"a": torch.zeros(2), "b": Attack()}, folder / "pytorch_model.bin",
        _use_new_zipfile_serialization=zipped, pickle_protocol=protocol,
    )  # fmt: skip
    with pytest.raises(InvalidCheckpoint, match=r"holds code.*Only plain tensors") as caught:
        load_checkpoint(folder)
    assert protocol > 2 or "posix.system" in str(caught.value)
    assert not (tmp_path / "pwned").exists()


def test_a_bare_pickle_with_code_is_refused(pickled: Any) -> None:
    for protocol in range(6):
        with pytest.raises(InvalidCheckpoint):
            load_checkpoint(pickled(pickle.dumps({"a": Attack()}, protocol)))


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_a_small_file_that_promises_a_trillion_numbers_is_refused(pickled: Any, zipped: bool) -> None:
    """A million by a million from one stored number, by a stride of 0."""
    folder = pickled({"classifier.weight": torch.zeros(1).expand(10**6, 10**6)}, zipped)
    assert (folder / "pytorch_model.bin").stat().st_size < 10_000
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InvalidCheckpoint, match="promises more"):
        load_checkpoint(folder)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 50_000  # [KB]


def test_a_million_numbers_from_one_are_refused_too(pickled: Any) -> None:
    with pytest.raises(InvalidCheckpoint, match="promises more"):
        load_checkpoint(pickled({"classifier.weight": torch.zeros(1).expand(10**6)}))


def test_a_zip_that_unpacks_to_more_than_its_size_is_refused(pickled: Any) -> None:
    stored, packed = io.BytesIO(), io.BytesIO()
    torch.save({"classifier.weight": torch.zeros(10**6)}, stored)
    with zipfile.ZipFile(stored) as source, zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as target:
        for name in source.namelist():
            target.writestr(name, source.read(name))
    with pytest.raises(InvalidCheckpoint, match=r"damaged or not a file that torch.save wrote"):
        load_checkpoint(pickled(packed.getvalue()))


@pytest.mark.parametrize(
    "content",
    [
        {"a": np.float64(1)}, [torch.zeros(2)], {}, {"a": 1}, torch.zeros(3), {1: torch.zeros(2)},
        {"a": torch.zeros(3).to_sparse()}, {"model": {"model": {"model": {"model": {}}}}}, {"a": bytearray(9)},
    ],
    ids=lambda content: str(content)[:30],
)  # fmt: skip
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])
def test_pickles_of_other_things_are_refused(pickled: Any, content: Any, zipped: bool) -> None:
    with pytest.raises(InvalidCheckpoint):
        load_checkpoint(pickled(content, zipped))


def test_programs_and_other_archives_are_refused(pickled: Any) -> None:
    program = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Linear(2, 2)), program)
    with pytest.raises(InvalidCheckpoint, match="TorchScript"):
        load_checkpoint(pickled(program.getvalue()))
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as target:
        target.writestr("data.txt", "x")
    with pytest.raises(InvalidCheckpoint):
        load_checkpoint(pickled(archive.getvalue()))


def test_the_probe_is_the_same_on_every_machine(build: Any) -> None:
    """The picture comes from whole-number arithmetic; these are its first numbers, worked out by hand."""
    from vit.checkpoints import _probe_picture

    def expected(i: int) -> float:
        for factor, shift in ((2654435761, 15), (2246822519, 13)):
            i = i * factor % 2**32
            i ^= i >> shift
        return i / 2**31 - 1

    picture = _probe_picture(build().config).flatten()
    assert picture[:50].tolist() == pytest.approx([expected(i) for i in range(1, 51)], abs=1e-6)
    assert -1 <= picture.min() < -0.99 and 0.99 < picture.max() <= 1 and abs(picture.mean()) < 0.05
    assert probe(build(seed=0)) != probe(build(seed=1))
