"""Titles, groups and URL texts of a run's settings."""

import re
from typing import Any

from vit.training.loop.config import FINE_TUNING, TrainConfig

# Settings by group on the page. Data, checkpoint and device have their own controls.
GROUPS = {
    "Model": (
        "size", "image_size", "patch_size", "dim", "depth", "heads", "mlp_dim", "registers", "pool", "norm",
        "activation", "layer_scale", "dropout", "drop_path", "start",
    ),
    "From a checkpoint": FINE_TUNING,
    "Training": (
        "epochs", "batch_size", "optimizer", "lr", "muon_lr", "weight_decay", "schedule", "warmup_epochs",
        "label_smoothing", "balance", "grad_clip", "ema", "validate_every", "patience",
    ),
    "Augmentation": (
        "crop_padding", "crop_scale", "zoom_out", "flip", "operations", "magnitude", "erase", "mixup", "cutmix",
    ),
    "Machine": ("precision", "compile", "workers", "seed", "limit", "track"),
}  # fmt: skip
NAMES = tuple(name for names in GROUPS.values() for name in names)

TITLES = {
    "init_from": "Start from",
    "dim": "Width",
    "depth": "Blocks",
    "heads": "Heads per block",
    "mlp_dim": "MLP width",
    "norm": "Final LayerNorm",
    "pool": "Head reads",
    "start": "Initial weights",
    "freeze": "Frozen",
    "lora_rank": "LoRA rank",
    "layer_decay": "Layer decay",
    "probe_first": "Begin with the probe's head",
    "lr": "Learning rate, AdamW",
    "muon_lr": "Learning rate, Muon",
    "balance": "Balance of classes",
    "grad_clip": "Largest gradient",
    "ema": "Averaging, decay",
    "warmup_epochs": "Warm-up [epochs]",
    "validate_every": "Validate every [epochs]",
    "patience": "Patience [epochs]",
    "limit": "Training pictures",
    "operations": "RandAugment: changes",
    "magnitude": "RandAugment: strength",
    "erase": "Random erasing",
    "mixup": "Mixup",
    "cutmix": "CutMix",
    "flip": "Mirror",
    "compile": "Compile",
    "track": "Experiment tracker",
}
_UNIT = re.compile(r"\[\w+\]")


def label(name: str) -> str:
    """Return a setting's title without its unit, also of a setting that only another version has."""
    return TITLES.get(name, name.replace("_", " ").capitalize())


def title(name: str) -> str:
    """Return a setting's title with its unit; "" stands for all settings together."""
    if not name:
        return "the settings together"
    words = label(name)
    unit = _UNIT.search(TrainConfig.model_fields[name].description or "")
    return f"{words} {unit.group()}" if unit and "[" not in words else words


def write(value: Any) -> str:
    """Format a setting's value for a link.

    >>> write(0.002), write(True), write(None)
    ('0.002', 'true', '')
    """
    return "" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
