"""Fixtures for tests of training: pictures of noise, and a run that trained on them."""

from pathlib import Path

import numpy as np
import pytest
from noise_runs import describe
from PIL import Image

from vit.training.loop.train import train


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """16 training, 4 validation and 4 test pictures of each of 2 classes: light or dark noise."""
    root = tmp_path_factory.mktemp("pictures")
    random_numbers = np.random.default_rng(0)
    for label, light in (("dark", 0), ("light", 60)):
        for split, count in (("train", 16), ("val", 4), ("test", 4)):
            (root / split / label).mkdir(parents=True)
            for i in range(count):
                noise = random_numbers.integers(light, light + 196, (16, 16, 3), dtype=np.uint8)
                Image.fromarray(noise).save(root / split / label / f"{i}.png")
    return root


@pytest.fixture(scope="session")
def whole(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without interruption."""
    run = tmp_path_factory.mktemp("runs") / "whole"
    train(describe(folder), run)
    return run
