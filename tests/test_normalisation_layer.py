"""A normalisation layer inside a model: its mean and deviation are the preprocessing's."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image
from test_own_heads import keep, of_timm
from tiny import difference
from torch import Tensor, nn
from torchvision.transforms.functional import to_tensor

from vit.checkpoints.load import load_checkpoint
from vit.checkpoints.modules.in_memory import checkpoint_from_module
from vit.images.preprocess import Preprocess


class Normalise(nn.Module):
    """Normalise pictures with pixels from 0 to 1, and pass them to a model."""

    def __init__(self, mean: str, std: str, white: int = 1, channels: int = 3, model: nn.Module | None = None):
        super().__init__()
        self.white, self.names, self.model = white, (mean, std), model or nn.Identity()
        for name, values in ((mean, (0.1, 0.2, 0.3)), (std, (0.4, 0.5, 0.6))):
            self.register_buffer(name, white * torch.tensor(values[:channels]).view(1, -1, 1, 1))

    def forward(self, pixels: Tensor) -> Tensor:
        mean, std = map(self.get_buffer, self.names)
        return self.model((self.white * pixels - mean) / std)


NORMALISED: dict[str, Callable[[], nn.Module]] = {
    "`0.mean` and `0.std`": lambda: nn.Sequential(Normalise("mean", "std"), of_timm()),
    "`mean` and `std`": lambda: Normalise("mean", "std", model=of_timm()),
    "`mu` and `sigma`": lambda: Normalise("mu", "sigma", channels=1, model=of_timm(in_chans=1)),
    "`0.pixel_mean` and `0.pixel_std`": lambda: nn.Sequential(Normalise("pixel_mean", "pixel_std", 255), of_timm()),
}


@torch.inference_mode()
@pytest.mark.parametrize("names", NORMALISED)
def test_normalisation_inside_the_model_is_the_preprocessings(names: str, tmp_path: Path) -> None:
    module = NORMALISED[names]()
    picture = Image.effect_noise((40, 50), 90).convert("RGB")
    for checkpoint in (load_checkpoint(keep(module.state_dict(), tmp_path)), checkpoint_from_module(module)):
        assert names in checkpoint.assumed["normalisation"] and "left_out" not in checkpoint.assumed
        pixels = to_tensor(checkpoint.preprocess.input_image(picture))
        assert difference(checkpoint.model(checkpoint.preprocess(picture)).logits, module(pixels[None])) < 1e-5


@pytest.mark.parametrize(
    "extra", [{"y.mean": 2, "y.std": 2}, {"mean": 3}, {"a.mean": 3, "a.std": 3, "b.mean": 3, "b.std": 3}]
)
def test_other_means_are_left_out(extra: dict[str, int], tmp_path: Path) -> None:
    state = {f"vit.{name}": tensor for name, tensor in of_timm().state_dict().items()}
    checkpoint = load_checkpoint(keep(state | {name: torch.ones(count) for name, count in extra.items()}, tmp_path))
    assert checkpoint.preprocess.mean == (0.5, 0.5, 0.5) and "normalisation" not in checkpoint.assumed


def test_stated_preprocessing_wins_over_a_normalisation_inside_the_model(tmp_path: Path) -> None:
    keep(NORMALISED["`mean` and `std`"]().state_dict(), tmp_path)
    stated = Preprocess((32, 32), mean=(0.2, 0.2, 0.2)).to_config()
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(stated))
    checkpoint = load_checkpoint(tmp_path)
    assert checkpoint.preprocess.mean == (0.2, 0.2, 0.2) and "left out" in checkpoint.assumed["normalisation"]
