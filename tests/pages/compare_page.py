"""Run page Compare without a browser, and read what it shows."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from streamlit.testing.v1 import AppTest

from tests.pages.controls import ROOT, app_page
from vit.checkpoints.save import save_checkpoint
from vit.data.shapes import SHAPES
from vit.images.encode import encode_image
from vit.images.preprocess import Preprocess


def write_checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Callable[..., Any]) -> Path:
    """Write a folder with the shipped checkpoint, one of another grid, and one without classes; no runs, no data."""
    folder = tmp_path / "checkpoints"
    shutil.copytree(ROOT / "checkpoints" / "cifar10", folder / "cifar10")
    save_checkpoint(folder / "coarse", build(num_classes=4), SHAPES, Preprocess((32, 32)))
    save_checkpoint(folder / "bare", build(num_classes=0), (), Preprocess((32, 32)))
    monkeypatch.setenv("VIT_CHECKPOINTS", str(folder))
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("VIT_DATA_ROOTS", str(tmp_path / "data"))
    return folder


def show(**link: str) -> AppTest:
    return app_page("compare", **link)


def png(*size: int) -> bytes:
    return encode_image(Image.linear_gradient("L").resize(size).convert("RGB"))
