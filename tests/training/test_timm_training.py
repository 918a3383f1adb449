"""Checkpoints of timm's training script: the model and the preprocessing that its arguments state."""

import argparse
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import torchvision
from PIL import Image
from test_timm_architectures import TINY, assert_equal
from tiny import fill
from torch import nn

from vit.checkpoints.load import load_checkpoint
from vit.errors import InvalidCheckpoint


def trained(
    folder: Path, name: str, changes: dict[str, Any], **args: Any
) -> tuple[nn.Module, Path, argparse.Namespace]:
    """Save a random model as timm's training does."""
    unset = dict.fromkeys(("gp", "img_size", "input_size", "crop_pct", "mean", "std", "crop_mode"))
    stated = argparse.Namespace(**unset | {"model": name, "interpolation": "", "model_kwargs": TINY | changes} | args)
    model = fill(timm.create_model(name, global_pool=stated.gp, **stated.model_kwargs)).eval()
    saver = timm.utils.CheckpointSaver(model, torch.optim.SGD(model.parameters()), stated, checkpoint_dir=folder)
    saver.save_checkpoint(0)
    return model, folder / "last.pth.tar", stated


MODELS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "QuickGELU": ("vit_base_patch32_clip_quickgelu_224.openai", {"pre_norm": True}, {}),
    "heads by the name": ("vit_base_patch16_gap_224", {"num_heads": 16}, {}),
    "rotary": ("vit_small_patch16_rope_224", {}, {"img_size": 32}),
    "mean": ("vit_tiny_patch16_224", {}, {"gp": "avg"}),
    "mean of all": ("vit_tiny_patch16_224", {"pool_include_prefix": True}, {"gp": "avg"}),
    "not square": ("vit_tiny_patch16_224", {"img_size": (16, 64)}, {"input_size": (3, 16, 64)}),
    "tanh": ("vit_tiny_patch16_224", {"act_layer": "gelu_tanh"}, {}),
}


@pytest.mark.parametrize("case", MODELS)
def test_model_is_the_stated_one(tmp_path: Path, case: str) -> None:
    name, changes, args = MODELS[case]
    model, path, _ = trained(tmp_path, name, changes, **args)
    checkpoint = load_checkpoint(path)
    assert not checkpoint.assumed.keys() & {"activation", "eps", "heads"}
    assert_equal(checkpoint, model, checkpoint.config.image_size)


def test_pool_that_is_not_computed_is_refused(tmp_path: Path) -> None:
    _, path, _ = trained(tmp_path, "vit_tiny_patch16_224", {}, gp="avgmax")
    with pytest.raises(InvalidCheckpoint, match="pools by avgmax"):
        load_checkpoint(path)


WHOLE = {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6], "interpolation": "bilinear", "crop_pct": 0.8}


@pytest.mark.parametrize(
    ("args", "missing"),
    [
        (WHOLE, ""),
        (WHOLE | {"crop_mode": "squash", "img_size": 32}, ""),
        (WHOLE | {"mean": [0.2]}, ""),
        ({"std": [0.4, 0.5, 0.6]}, "mean, interpolation, crop_pct"),
        ({"img_size": 32}, "mean, std, interpolation, crop_pct"),
    ],
)
def test_preprocessing_is_the_stated_one(tmp_path: Path, args: dict[str, Any], missing: str) -> None:
    model, path, stated = trained(tmp_path, "vit_tiny_patch16_224", {}, **args)
    model.pretrained_cfg["input_size"] = (3, 32, 32)
    checkpoint = load_checkpoint(path)
    settings = timm.data.resolve_data_config(vars(stated), model=model)
    picture = Image.effect_noise((50, 40), 90).convert("RGB")
    expected = timm.data.create_transform(**settings, is_training=False)(picture)
    assert (checkpoint.preprocess(picture)[0] - expected).abs().max() < 1e-5
    assert missing in checkpoint.assumed.get("preprocess", "") and bool(missing) == ("preprocess" in checkpoint.assumed)


@pytest.mark.parametrize("wrong", [{"crop_pct": 3.0}, {"mean": [0.1, 0.2]}, {"interpolation": "cubic"}, {"std": ["a"]}])
def test_wrong_argument_is_refused_or_ignored(tmp_path: Path, wrong: dict[str, Any]) -> None:
    _, path, _ = trained(tmp_path, "vit_tiny_patch16_224", {}, **wrong)
    if "std" in wrong:
        assert load_checkpoint(path).preprocess.std == (0.5, 0.5, 0.5)
    else:
        with pytest.raises(InvalidCheckpoint, match=next(iter(wrong)).split("_")[0]):
            load_checkpoint(path)


def test_architecture_of_another_library_changes_nothing(tmp_path: Path) -> None:
    model = torchvision.models.VisionTransformer(32, 8, 1, 3, 192, 384, num_classes=5)
    for content in ({"state_dict": model.state_dict()}, {"state_dict": model.state_dict(), "arch": "vit_b_16"}):
        torch.save(content, tmp_path / f"{len(content)}.pth")
    alone, named = (load_checkpoint(tmp_path / f"{count}.pth") for count in (1, 2))
    assert (named.config, named.preprocess, named.assumed) == (alone.config, alone.preprocess, alone.assumed)
