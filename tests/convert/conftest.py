"""Fixture for tests of conversion: a model with random parameters, saved by us."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from conversions import MODELS
from tiny import LABELS, TINY, fill

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer


@pytest.fixture
def made(tmp_path: Path) -> Callable[..., Checkpoint]:
    """Return `made(name, preprocess=None)`: one of `MODELS`, random, saved by us and loaded."""

    def make(name: str, preprocess: Preprocess | None = None) -> Checkpoint:
        config = ViTConfig(**TINY | MODELS[name].changes)
        model = fill(VisionTransformer(config))
        with torch.no_grad():
            for parameter_name, parameter in model.named_parameters():
                if re.search(MODELS[name].zero, parameter_name):
                    parameter.zero_()
        half = (0.5,) * config.channels
        square = config.image_size[0] == config.image_size[1]
        preprocess = preprocess or Preprocess(
            config.image_size, "shortest" if square else "squash", mean=half, std=half
        )
        folder = tmp_path / "ours" / "tiny"
        save_checkpoint(folder, model, LABELS[: config.num_classes], preprocess, facts={"accuracy": 0.9})
        return load_checkpoint(folder)

    return make
