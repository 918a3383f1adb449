"""Runs that train a tiny model on pictures of noise in a second: their settings and their results."""

from pathlib import Path
from typing import Any

from vit.training.loop.config import TrainConfig
from vit.training.loop.metrics import read_metrics
from vit.training.loop.presets import train_config

# Everything that draws random numbers or has state, on a model that trains in a second.
EVERYTHING: dict[str, Any] = dict(
    image_size=16, dim=24, heads=2, depth=2, mlp_dim=48, registers=1, epochs=8, batch_size=8, device="cpu",
    optimizer="muon", start="mimetic", warmup_epochs=2, label_smoothing=0.1, ema=0.9, dropout=0.1, drop_path=0.2,
    crop_padding=2, flip=True, operations=2, erase=0.3, mixup=0.3, cutmix=1.0, seed=5,
)  # fmt: skip


def describe(folder: Path, **settings: Any) -> TrainConfig:
    return train_config(**EVERYTHING | {"data": f"folder:{folder}"} | settings)


def weights(run: Path, name: str = "last") -> bytes:
    return (run / "checkpoints" / name / "model.safetensors").read_bytes()


def figures(run: Path) -> list[dict[str, Any]]:
    """Return the metrics without those that depend on time and machine."""
    aside = ("t", "seconds", "attempt", "pictures_per_second", "data_per_second", "model_per_second", "memory")
    return [
        {key: value for key, value in record.items() if key not in aside}
        for record in read_metrics(run / "metrics.jsonl")
        if record["kind"] in ("step", "validation", "test")
    ]


def last_step(run: Path) -> dict[str, Any]:
    return [record for record in read_metrics(run / "metrics.jsonl") if record["kind"] == "step"][-1]
