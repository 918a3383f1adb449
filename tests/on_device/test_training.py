"""A short run of each preset trains on the device, and no step makes the host wait for it."""

import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from pretended import no_waits

from tests.tiny import LABELS, TINY, fill
from vit.checkpoints.save import save_checkpoint
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer
from vit.training.loop.config import TrainConfig
from vit.training.loop.distributed import Process
from vit.training.loop.metrics import read_metrics
from vit.training.loop.presets import PRESETS, train_config
from vit.training.loop.trainer import Trainer

SHORT: dict[str, Any] = dict(
    data="shapes", image_size=16, limit=80, batch_size=16, crop_padding=2, epochs=2, compile=False, device="cpu",
    precision="float32", workers=0, init_from="", layer_decay=1.0,
)  # fmt: skip
SMALL: dict[str, Any] = SHORT | dict(patch_size=4, dim=24, depth=2, heads=2, mlp_dim=32)


def assert_trains(config: TrainConfig, device: str, run: Path) -> None:
    run.mkdir()
    trainer = Trainer(config, run, Process(torch.device(device), autocast=False))
    train_step = trainer.update.train_step

    def step_without_waiting(*arguments: Any) -> Any:
        with no_waits():
            return train_step(*arguments)

    trainer.update.train_step = step_without_waiting  # type: ignore[method-assign]
    result, ending = trainer.train(0, threading.Event())
    kinds = [record["kind"] for record in read_metrics(run / "metrics.jsonl")]
    assert ending[0] == "finished" and result.test is not None and "note" not in kinds
    assert trainer.progress.step >= 6


@pytest.fixture
def few_pictures(tmp_path: Path) -> str:
    """A dataset of pictures of two classes."""
    for split, count in (("train", 24), ("val", 4), ("test", 4)):
        for number, name in enumerate(("dark", "light")):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for index in range(count):
                picture = Image.new("RGB", (20, 20), (120 * number + index, 20, 30))
                picture.save(tmp_path / "data" / split / name / f"{index}.png")
    return f"folder:{tmp_path / 'data'}"


@pytest.mark.parametrize("name", PRESETS)
def test_preset_trains(name: str, device: str, tmp_path: Path, few_pictures: str) -> None:
    data = few_pictures if PRESETS[name].settings["data"] == "mnist" else "shapes"
    assert_trains(train_config(name, **SMALL | {"data": data}), device, tmp_path / "run")


def test_adapted_model_with_balanced_loss_trains(device: str, tmp_path: Path) -> None:
    model = fill(VisionTransformer(ViTConfig(**TINY)))
    start = save_checkpoint(tmp_path / "start", model, LABELS, Preprocess((32, 32)))
    changes = {"init_from": str(start), "image_size": 32, "lora_rank": 2, "balance": "loss", "ema": 0.9}
    assert_trains(train_config(**SHORT | changes), device, tmp_path / "run")


def test_streamed_pictures_train(
    device: str, tmp_path: Path, few_pictures: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("vit.training.loop.pictures.memory_budget", lambda _: 0)
    config = train_config(**SMALL | {"data": few_pictures, "balance": "loss", "limit": None})
    assert_trains(config, device, tmp_path / "run")
