"""Conversion there and back: the same bits, or the parameters that the other library adds."""

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torchvision
from conversions import MODELS, OPENS, ask, noise, open_timm, open_transformers
from safetensors.torch import load_file
from test_parity import CASES, ask_timm, opened
from tiny import difference, fill
from torch import Tensor

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.convert import SUFFIXES, convert
from vit.checkpoints.load import load_checkpoint
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer

pytestmark = pytest.mark.slow


def comparable_config(config: ViTConfig) -> dict[str, Any]:
    """Remove fields that other libraries' files lack and that do not affect answers at the training's size."""
    single = config.norm == "after_pool" and config.pool == "cls"
    return config.to_dict() | {
        "layer_scale": config.layer_scale is not None,
        "position_resize": "",
        "norm": "before_pool" if single else config.norm,
    }


def assert_equal_bits(checkpoint: Checkpoint, again: Checkpoint) -> None:
    state = again.model.state_dict()
    assert set(state) == set(checkpoint.model.state_dict())
    for key, tensor in checkpoint.model.state_dict().items():
        assert torch.equal(tensor, state[key]), key
    assert comparable_config(again.config) == comparable_config(checkpoint.config)


@pytest.mark.parametrize("name", [name for name in OPENS if not MODELS[name].read])
def test_round_trip_through_transformers_is_bit_identical(made: Any, tmp_path: Path, name: str) -> None:
    checkpoint = made(name)
    again = load_checkpoint(convert(checkpoint, tmp_path / "theirs"))
    assert_equal_bits(checkpoint, again)
    assert (again.labels, again.preprocess) == (checkpoint.labels, checkpoint.preprocess)
    assert again.facts["accuracy"] == 0.9


@torch.inference_mode()
@pytest.mark.parametrize("name", [name for name in OPENS if MODELS[name].read])
def test_parameters_added_for_transformers_are_zeros_and_ones(made: Any, tmp_path: Path, name: str) -> None:
    """LayerScale of ones, and a head with zeros for the mean or for the class token."""
    checkpoint = made(name)
    again = load_checkpoint(convert(checkpoint, tmp_path / "theirs"))
    assert comparable_config(again.config) == comparable_config(replace(checkpoint.config, **MODELS[name].read))
    state, before = again.model.state_dict(), checkpoint.model.state_dict()
    for key, tensor in state.items():
        if key == "head.weight" and tensor.shape != before[key].shape:
            halves = tensor.chunk(2, 1)
            kept, added = halves if checkpoint.config.pool == "cls" else halves[::-1]
            assert torch.equal(kept, before[key]) and not added.any()
        elif key not in before:
            assert re.search(r"\.scale[12]$", key) and torch.equal(tensor, torch.ones_like(tensor))
        else:
            assert torch.equal(tensor, before[key]), key
    assert difference(again.model(noise(checkpoint)).logits, checkpoint.model(noise(checkpoint)).logits) <= 2e-6


@pytest.mark.parametrize("name", [name for name, ours in MODELS.items() if ours.timm])
def test_round_trip_through_timm_is_bit_identical(made: Any, tmp_path: Path, name: str) -> None:
    checkpoint = made(name)
    again = load_checkpoint(convert(checkpoint, tmp_path / "theirs", "timm"))
    assert_equal_bits(checkpoint, again)
    assert (again.labels, again.preprocess) == (checkpoint.labels, replace(checkpoint.preprocess, rounding="even"))
    assert again.facts["accuracy"] == 0.9


@pytest.mark.parametrize("name", [name for name, ours in MODELS.items() if ours.torchvision])
def test_round_trip_through_torchvision_is_bit_identical(made: Any, tmp_path: Path, name: str) -> None:
    checkpoint = made(name)
    path = convert(checkpoint, tmp_path / "theirs.pth", "torchvision")
    assert_equal_bits(checkpoint, load_checkpoint(path, heads=checkpoint.config.heads))


def unfolded(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Normalise what a round trip changes: two constants that are only ever added, and unused tensors."""
    tensors_left = {k: v for k, v in tensors.items() if not re.search(r"mask_token|pooler\.|decoder|position_ids", k)}
    tokens = [
        k for k in tensors_left if re.search(r"(cls_token|class_embedding|class_token|dist(illation)?_token)$", k)
    ]
    places = next(
        (k for k in tensors_left if re.search(r"(pos_embed|position_embeddings|position_embedding\.weight)$", k)), None
    )
    if places is None:
        return tensors_left
    rows = tensors_left[places].reshape(-1, tensors_left[places].shape[-1])
    own = rows.shape[0] - math.isqrt(rows.shape[0]) ** 2
    for row, token in enumerate(sorted(tokens)[:own]):  # cls before dist
        tensors_left[token] = tensors_left[token].flatten() + rows[row]
    tensors_left[places] = rows[own:]
    return {k: v.flatten() if k in tokens else v for k, v in tensors_left.items()}


# Their models that are written as another class of theirs, because our config does not distinguish the two.
OTHER_CLASS = (
    "transformers · ViT without head", "transformers · SigLIP classifier", "transformers · MSN", "transformers · MAE",
    "timm · EVA giant",
)  # fmt: skip
SAME_CLASS = sorted(set(CASES) - {*OTHER_CLASS, "timm · DINOv3"})  # timm's DINOv3 is refused


@torch.inference_mode()
@pytest.mark.parametrize("name", SAME_CLASS)
def test_round_trip_of_transformers_and_timm_files_is_bit_identical(tmp_path: Path, name: str) -> None:
    case, model, checkpoint = opened(name)
    library = name.split(" ")[0]
    before = load_file(case.save(model, tmp_path / "before") / "model.safetensors")
    folder = convert(checkpoint, tmp_path / "after", library)
    one, other = unfolded(before), unfolded(load_file(folder / "model.safetensors"))
    if "CLIP classifier" in name:  # it writes an unused LayerNorm
        one, other = ({k: v for k, v in each.items() if "post_layernorm" not in k} for each in (one, other))
    if re.search("teacher|distilled", name):  # of two biases only the mean is known
        heads = [[each.pop(k) for k in sorted(each) if re.search(r"(classifier|head|head_dist)\.bias$", k)]
                 for each in (one, other)]  # fmt: skip
        assert torch.equal(*(sum(pair) for pair in heads))
    assert set(one) == set(other)
    for key in one:
        assert torch.equal(one[key], other[key].reshape(one[key].shape)), key
    again = open_timm(folder) if library == "timm" else open_transformers(folder)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(7))
    expected, result = case.ask(model, images), (ask_timm if library == "timm" else ask)(again, images)
    assert difference(result.logits, expected.logits) <= 1e-6


@torch.inference_mode()
@pytest.mark.parametrize("name", OTHER_CLASS)
def test_converted_to_another_class_gives_the_same_answers(tmp_path: Path, name: str) -> None:
    case, model, checkpoint = opened(name)
    library = name.split(" ")[0]
    folder = convert(checkpoint, tmp_path / "after", library)
    again, asked = (open_timm(folder), ask_timm) if library == "timm" else (open_transformers(folder), ask)
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(7))
    assert difference(asked(again, images).logits, case.ask(model, images).logits) <= 1e-6


@pytest.mark.parametrize(("name", "to"), [("plain", "transformers"), ("registers", "timm"), ("plain", "torchvision")])
def test_half_precision_weights_are_written_in_full_precision(made: Any, tmp_path: Path, name: str, to: Any) -> None:
    checkpoint = made(name)
    half = VisionTransformer(checkpoint.config).eval()
    half.load_state_dict({key: tensor.half() for key, tensor in checkpoint.model.state_dict().items()}, assign=True)
    path = convert(replace(checkpoint, model=half), tmp_path / f"theirs{SUFFIXES.get(to, ('',))[0]}", to)
    again = load_checkpoint(path, heads=2 if to == "torchvision" else None)
    for key, tensor in half.state_dict().items():
        assert torch.equal(again.model.state_dict()[key].float(), tensor.float()), key
    if path.is_dir():
        assert {tensor.dtype for tensor in load_file(path / "model.safetensors").values()} == {torch.float32}


@torch.inference_mode()
def test_round_trip_of_torchvision_files_is_bit_identical(tmp_path: Path) -> None:
    arguments = dict(image_size=32, patch_size=8, num_layers=2, num_heads=4, hidden_dim=64, mlp_dim=96, num_classes=5)
    model = fill(torchvision.models.VisionTransformer(**arguments))
    torch.save(model.state_dict(), tmp_path / "before.pth")
    path = convert(load_checkpoint(tmp_path / "before.pth", 4), tmp_path / "after.pth", "torchvision")
    before, after = model.state_dict(), torch.load(path)
    assert list(before) != [] and set(before) == set(after)
    again = torchvision.models.VisionTransformer(**arguments)
    again.load_state_dict(after, strict=True)
    for key in set(before) - {"class_token", "encoder.pos_embedding"}:
        assert torch.equal(before[key], after[key]), key
    images = torch.randn(2, 3, 32, 32)
    assert torch.equal(again.eval()(images), model(images))  # the class token and its position are added beforehand
