"""Checkpoints whose last layers are no linear head, wrapped modules, and layers before the model."""

from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from tiny import difference, fill
from torch import nn

from vit.checkpoints.load import load_checkpoint
from vit.errors import InvalidCheckpoint

IMAGE = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(3))
SIZES = {"img_size": 32, "patch_size": 8, "embed_dim": 192, "depth": 1, "num_heads": 3}


def model(classes: int = 5, seed: int = 0) -> Any:
    return fill(timm.models.VisionTransformer(**SIZES, num_classes=classes), seed)


def saved(path: Path, content: Any) -> Path:
    torch.save(content, path / "weights.pth")
    return path / "weights.pth"


BACKBONE = model(0)
LSTM = nn.LSTM(192, 8)
APART: dict[str, dict[str, Any]] = {
    "cosine": {"classifier.weight": torch.ones(5, 192), "classifier.scale": torch.ones(())},
    "arcface": {"arc.weight": torch.ones(50, 192)},
    "embedding and norm": {
        **nn.ModuleDict({"embed": nn.Linear(192, 8), "norm_out": nn.BatchNorm1d(8)}).state_dict(),
    },
    "recurrent": {f"lstm.{name}": one for name, one in LSTM.state_dict().items()} | {"fc.weight": torch.ones(5, 8)},
    "attention": {f"pool.{name}": one for name, one in nn.MultiheadAttention(192, 3).state_dict().items()},
}  # fmt: skip


@pytest.mark.parametrize("tensors", APART.values(), ids=APART)
def test_nonlinear_head_is_left_out(tmp_path: Path, tensors: dict[str, Any]) -> None:
    names = {f"backbone.{name}": tensor for name, tensor in BACKBONE.state_dict().items()}
    checkpoint = load_checkpoint(saved(tmp_path, names | tensors))
    assert (
        checkpoint.config.num_classes == 0
        and f"`{next(iter(tensors)).partition('.')[0]}`" in (checkpoint.assumed["left_out"])
    )
    with torch.no_grad():
        assert difference(checkpoint.model(IMAGE).logits, BACKBONE(IMAGE)) < 1e-5


def test_head_with_computed_weights_or_over_all_patches_is_left_out(tmp_path: Path) -> None:
    whole = model(0)
    for head in (nn.utils.parametrizations.weight_norm(nn.Linear(192, 5)), nn.Linear(192 * 16, 5)):
        whole.head = head
        checkpoint = load_checkpoint(saved(tmp_path, whole.state_dict()))
        assert checkpoint.config.num_classes == 0 and "`head`" in checkpoint.assumed["left_out"]


def test_metas_classifier_reads_class_token_and_mean_of_patches(tmp_path: Path) -> None:
    """`dinov2_vitb14_lc` of Meta's hub; the variant over four layers reads more than this app computes."""
    whole = nn.ModuleDict({"backbone": model(0), "linear_head": nn.Linear(384, 7)})
    fill(whole)
    names = {**whole.state_dict(), "backbone.mask_token": torch.zeros(1, 192)}
    checkpoint = load_checkpoint(saved(tmp_path, names))
    with torch.no_grad():
        tokens = whole["backbone"].forward_features(IMAGE)
        expected = whole["linear_head"](torch.cat([tokens[:, 0], tokens[:, 1:].mean(1)], 1))
        assert difference(checkpoint.model(IMAGE).logits, expected) < 1e-5
    names["linear_head.weight"] = torch.ones(7, 5 * 192)
    assert load_checkpoint(saved(tmp_path, names)).config.num_classes == 0


def test_transforms_before_the_model_are_refused(tmp_path: Path) -> None:
    names = {f"vit.{name}": tensor for name, tensor in model().state_dict().items()}
    before = nn.ModuleDict({"to_rgb": nn.Sequential(nn.Conv2d(12, 16, 3), nn.ReLU(), nn.Conv2d(16, 3, 1))})
    with pytest.raises(InvalidCheckpoint, match=r"before the model sees them \(`to_rgb.2.weight`\)"):
        load_checkpoint(saved(tmp_path, before.state_dict() | names))
    after = nn.ModuleDict({"up": nn.ConvTranspose2d(192, 16, 2), "segment": nn.Conv2d(16, 3, 1)})
    assert "`segment`" in load_checkpoint(saved(tmp_path, names | after.state_dict())).assumed["left_out"]


def test_compiled_modules_and_lists_of_models_open(tmp_path: Path) -> None:
    one, other = model(seed=1), model(seed=2)
    with torch.no_grad():
        expected = one(IMAGE)
    for content in (torch.compile(one), (3, one.state_dict()), {0: one.state_dict(), 1: other.state_dict()}):
        with torch.no_grad():
            assert difference(load_checkpoint(saved(tmp_path, content)).model(IMAGE).logits, expected) < 1e-5
    assert "#1" in load_checkpoint(tmp_path / "weights.pth").assumed["model"]
    with pytest.raises(InvalidCheckpoint, match="holds no tensors by name"):
        load_checkpoint(saved(tmp_path, list(one.parameters())))


def test_pooler_beside_a_custom_head_is_reported_separately(tmp_path: Path) -> None:
    sizes = dict(hidden_size=48, num_hidden_layers=1, num_attention_heads=3, intermediate_size=96)
    whole = nn.ModuleDict()
    for pooling in (True, False):
        config = transformers.ViTConfig(**sizes, image_size=32, patch_size=8)
        whole["vit"], whole["fc"] = transformers.ViTModel(config, add_pooling_layer=pooling), nn.Linear(48, 4)
        assumed = load_checkpoint(saved(tmp_path, whole.state_dict()), heads=3).assumed
        assert ("pooler" in assumed) == pooling
