"""torchvision's published weights by name: fetched once, completely, with results equal to torchvision's."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from hub_server import HubServer, refusal
from tiny import fill
from torch import nn

import vit
from vit.checkpoints.families import torchvision as torchvision_family
from vit.checkpoints.hub import models as hub


@pytest.fixture
def torchvision_file(server: HubServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., nn.Module]:
    """Return `torchvision_file(weights, **changes)`, which publishes a tiny model at the address of these weights."""

    def publish(weights: Any, digits: int = 8, patch: int = 8) -> nn.Module:
        model = torchvision.models.VisionTransformer(
            image_size=4 * patch, patch_size=patch, num_layers=2, num_heads=3, hidden_dim=192, mlp_dim=96
        )
        torch.save(fill(model).state_dict(), tmp_path / "weights")
        content = (tmp_path / "weights").read_bytes()
        file = f"vit_tiny-{hashlib.sha256(content).hexdigest()[:digits]}.pth"
        server.files[file] = content
        monkeypatch.setattr(weights.value, "url", f"{server.store}/models/{file}")
        return model

    torchvision_family.imagenet_labels()  # hashes in the names of the real files
    yield publish
    torchvision_family._published.cache_clear()


def test_torchvision_names_resolve_to_file_labels_and_transforms(
    server: HubServer, torchvision_file: Callable[..., nn.Module]
) -> None:
    weights = torchvision.models.ViT_H_14_Weights.IMAGENET1K_SWAG_E2E_V1
    model = torchvision_file(weights, patch=14)
    torchvision_family._published.cache_clear()
    reports: list[tuple[int, int | None]] = []
    fetched = hub.fetch("torchvision/vit_h_14", lambda *step: reports.append(step))
    checkpoint = vit.load_checkpoint("torchvision/vit_h_14")
    assert checkpoint.name == str(fetched.name) == "torchvision/vit_h_14.IMAGENET1K_SWAG_E2E_V1"
    pictures = torch.randn(1, 3, 56, 56, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        assert torch.allclose(checkpoint.model(pictures).logits, model(pictures), rtol=1e-5, atol=1e-5)
    assert checkpoint.labels == tuple(weights.meta["categories"])
    assert checkpoint.preprocess.size == (518, 518)
    assert checkpoint.preprocess.interpolation == "bicubic"
    assert reports[-1][0] == reports[-1][1]
    assert hub.cached() == [fetched]


def test_torchvision_weights_by_name_are_fetched_once(
    server: HubServer, torchvision_file: Callable[..., nn.Module]
) -> None:
    torchvision_file(torchvision.models.ViT_B_16_Weights.IMAGENET1K_SWAG_E2E_V1)
    name = "torchvision/vit_b_16.IMAGENET1K_SWAG_E2E_V1"
    assert vit.load_checkpoint(name).name == vit.load_checkpoint(name).name == name
    assert vit.load_checkpoint("torchvision/vit_b_16.IMAGENET1K_SWAG_E2E_V1").name == name
    assert [request.method for request in server.requests] == ["GET"]
    assert hub.find("torchvision/vit_b_16") is None  # whose default weights are others


def test_weights_unpublished_by_torchvision_are_refused(
    server: HubServer, torchvision_file: Callable[..., nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    torchvision_file(torchvision.models.ViT_B_16_Weights.IMAGENET1K_V1)
    (file,) = server.files
    server.files[file] = server.files[file][:-1] + b"x"
    assert "its hash differs" in refusal("torchvision/vit_b_16")
    server.files.clear()
    assert "404" in refusal("torchvision/vit_b_16")
    weights = torchvision.models.ViT_B_16_Weights.IMAGENET1K_V1
    monkeypatch.setattr(weights.value, "url", f"http://127.0.0.1:9/{file}")
    assert "127.0.0.1:9 did not send it ([Errno 111] Connection refused)" in refusal("torchvision/vit_b_16")


def test_unknown_torchvision_name_lists_the_known_ones(server: HubServer) -> None:
    assert "There are: vit_b_16, vit_b_32, vit_h_14, vit_l_16, vit_l_32." in refusal("torchvision/swin_t")
    assert "There are: IMAGENET1K_V1." in refusal("torchvision/vit_b_32.V7")
    assert server.requests == []
