"""Name and files of the tiny model that tests publish on a Hub, and its input."""

import os
from pathlib import Path

import torch
from torch import Tensor

import vit

ROOT = Path(vit.__file__).parent.parent
REPOSITORY = "ada/tiny-vit"


def environment(**changes: str) -> dict[str, str]:
    """Environment of a separate process with network access."""
    return {k: v for k, v in os.environ.items() if "OFFLINE" not in k} | changes


def images() -> Tensor:
    return torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def without(files: dict[str, bytes], *names: str, **more: bytes) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name not in names}
