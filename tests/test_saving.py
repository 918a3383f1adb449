"""Saving a checkpoint is atomic, and never deletes other files."""

import os
import random
import shutil
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import subprocesses
import torch
from saved_checkpoints import save
from tiny import LABELS

from vit.checkpoints.catalog import find_checkpoint
from vit.checkpoints.load import list_checkpoints, load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.errors import InvalidCheckpoint, UserError
from vit.images.preprocess import Preprocess


class Killed(BaseException):
    """Stands for SIGKILL: nothing may run after it."""


@pytest.mark.parametrize("step", range(14))
def test_interrupted_save_leaves_a_complete_checkpoint(
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
    result = load_checkpoint(saved)
    expected = build(seed=int(result.hash != old)).state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in result.model.state_dict().items())
    assert "accuracy" in result.facts or result.hash != old  # config and card are of the same save
    save(saved, build(seed=2))
    assert sorted(os.listdir(saved.parent)) == ["tiny"]
    assert torch.equal(load_checkpoint(saved).model.pos_embed, build(seed=2).pos_embed)


@pytest.mark.slow
def test_killed_processes_leave_complete_checkpoints(tmp_path: Path, build: Any) -> None:
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
        process = subprocesses.begin(code, folder, *sources, out=saves)
        while not saves.exists() or not saves.stat().st_size:
            assert process.is_alive()
            time.sleep(0.01)
        time.sleep(delay.uniform(0, 0.1))
        process.kill()
        process.join()
        checkpoint = load_checkpoint(folder)
        assert torch.equal(checkpoint.model.pos_embed, models[checkpoint.facts["seed"]].pos_embed)


@pytest.mark.slow
def test_reader_during_saves_sees_complete_checkpoints(saved: Path, build: Any) -> None:
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


def test_saving_never_deletes_other_files(tmp_path: Path, build: Any) -> None:
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


def test_full_disk_is_reported_and_leaves_nothing(saved: Path, build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    old = load_checkpoint(saved).hash

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        with pytest.raises(UserError, match="not saved: No space left"):
            save(saved, build(seed=1))
    assert os.listdir(saved.parent) == ["tiny"] and load_checkpoint(saved).hash == old


def test_inconsistent_arguments_are_not_saved(tmp_path: Path, build: Any, preprocess: Preprocess) -> None:
    model = build()
    with pytest.raises(ValueError, match="4 labels for 5 classes"):
        save_checkpoint(tmp_path / "x", model, LABELS[:4], preprocess)
    with pytest.raises(InvalidCheckpoint, match="channels"):
        save_checkpoint(tmp_path / "x", model, LABELS, Preprocess((32, 32), mean=(0.5,), std=(0.5,)))
    model.head.bias.data[0] = float("nan")
    with pytest.raises(InvalidCheckpoint, match="NaN"):
        save_checkpoint(tmp_path / "x", model, LABELS, preprocess)
    assert os.listdir(tmp_path) == []


def test_checkpoint_in_float16_takes_half_the_space_and_holds_the_rounded_weights(tmp_path: Path, build: Any) -> None:
    model = build()
    whole, half = (
        save_checkpoint(tmp_path / name, model, LABELS, Preprocess((32, 32)), half=name == "half")
        for name in ("whole", "half")
    )
    sizes = [(folder / "model.safetensors").stat().st_size for folder in (whole, half)]
    assert sizes[1] < 0.6 * sizes[0]
    opened = load_checkpoint(half).model.state_dict()
    assert opened.keys() == model.state_dict().keys()
    assert all(torch.equal(opened[name], tensor.half().float()) for name, tensor in model.state_dict().items())


def test_weights_too_large_for_float16_are_not_saved(tmp_path: Path, build: Any) -> None:
    model = build()
    with torch.no_grad():
        model.head.bias[0] = 1e5
    with pytest.raises(InvalidCheckpoint, match="infinite"):
        save_checkpoint(tmp_path / "half", model, LABELS, Preprocess((32, 32)), half=True)
    assert not (tmp_path / "half").exists()
