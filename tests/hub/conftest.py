"""Fixtures for tests of downloads: a Hub with a tiny model of transformers."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import transformers
from hub_server import HubServer, empty_hub
from tiny import fill
from tiny_repository import REPOSITORY
from torch import nn

SMALL = dict(
    hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, image_size=32, patch_size=8,
    id2label={0: "apple", 1: "bus", 2: "cat"},
)  # fmt: skip


@pytest.fixture(scope="session")
def theirs() -> nn.Module:
    """A tiny transformers model."""
    return fill(transformers.ViTForImageClassification(transformers.ViTConfig(**SMALL)))


@pytest.fixture(scope="session")
def files(theirs: nn.Module, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """Files that transformers writes for it, and other files as in a repository."""
    folder = tmp_path_factory.mktemp("transformers")
    theirs.save_pretrained(folder)
    transformers.ViTImageProcessorPil(size={"height": 32, "width": 32}).save_pretrained(folder)
    (folder / "README.md").write_text("# A tiny model")
    (folder / "open_clip_model.safetensors").write_bytes(b"other weights")
    (folder / "modeling_tiny.py").write_text("print('code')")
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HubServer]:
    with empty_hub(tmp_path) as server:
        yield server


@pytest.fixture
def published(server: HubServer, files: dict[str, bytes]) -> str:
    """Publish the tiny model, and return the commit."""
    return server.publish(REPOSITORY, files)
