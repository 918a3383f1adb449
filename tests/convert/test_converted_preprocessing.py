"""Converted labels, preprocessing and input sizes."""

import io
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
import transformers
from conversions import assert_same, noise, open_timm, open_transformers
from PIL import Image
from test_parity import Answer, ask_timm
from tiny import LABELS
from torch import Tensor, nn

from vit.checkpoints.convert import convert, obstacle
from vit.checkpoints.families.timm_preprocess import crop_pct
from vit.checkpoints.load import load_checkpoint
from vit.images import samples
from vit.images.preprocess import Preprocess
from vit.model.transformer import VisionTransformer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def photo() -> Image.Image:
    return Image.open(io.BytesIO(samples.read("cat"))).convert("RGB")


@torch.inference_mode()
@pytest.mark.parametrize("name", ["plain", "registers and LayerScale", "distilled", "mean", "CLIP classifier"])
def test_pipeline_of_transformers_gives_our_labels(made: Any, tmp_path: Path, photo: Image.Image, name: str) -> None:
    checkpoint = made(name)
    folder = convert(checkpoint, tmp_path / "theirs")
    processor = transformers.AutoImageProcessor.from_pretrained(folder, backend="pil")
    pixels = processor(photo, return_tensors="pt")["pixel_values"]
    assert (pixels - checkpoint.preprocess(photo)).abs().max() <= 2.001 / 255  # of -1 to 1: one grey level
    pipeline = transformers.pipeline("image-classification", model=str(folder), image_processor=processor)
    result = {each["label"]: each["score"] for each in pipeline(photo, top_k=5)}
    expected = checkpoint.model(checkpoint.preprocess(photo)).logits[0].softmax(0)
    assert set(result) == set(LABELS)
    assert all(abs(result[label] - float(expected[i])) < 0.02 for i, label in enumerate(LABELS))


@torch.inference_mode()
@pytest.mark.parametrize(
    "preprocess",
    [
        Preprocess((32, 32)),
        Preprocess((32, 32), resize_to=37, interpolation="bicubic", mean=(0.4, 0.5, 0.6), std=(0.2, 0.3, 0.4)),
        Preprocess((32, 32), "squash", interpolation="bilinear"),
        Preprocess((32, 32), "squash", 36, "lanczos"),
    ],
)
def test_timm_preprocesses_a_photo_equally(
    made: Any, tmp_path: Path, photo: Image.Image, preprocess: Preprocess
) -> None:
    checkpoint = made("plain", preprocess)
    folder = convert(checkpoint, tmp_path / "theirs", "timm")
    settings = timm.data.resolve_model_data_config(open_timm(folder))
    theirs = timm.data.create_transform(**settings, is_training=False)(photo)
    std = torch.tensor(preprocess.std)[:, None, None]
    again = load_checkpoint(folder).preprocess
    assert again == replace(preprocess, rounding="even")
    assert ((theirs - again(photo)[0]) * std * 255).abs().max() <= 1.001
    wrapped = transformers.AutoImageProcessor.from_pretrained(folder)(photo)["pixel_values"][0]
    assert torch.equal(wrapped, theirs)


def test_timms_crop_ratio_recovers_every_size() -> None:
    for size in (28, 32, 196, 224, 384, 518):
        for shorter in range(size, 3 * size):
            crop = crop_pct(Preprocess((size, size), resize_to=shorter))
            assert crop is not None and math.floor(size / crop) == shorter == int(size / crop)


def test_preprocessing_unsupported_by_timm_is_refused(made: Any) -> None:
    checkpoint = made("not square", Preprocess((32, 48)))
    assert "timm does not resize pictures to 32 x 48 px as it does" in obstacle(checkpoint, "timm")


@torch.inference_mode()
@pytest.mark.parametrize(("name", "to"), [("plain", "transformers"), ("plain", "timm"), ("SigLIP", "transformers")])
def test_positions_are_interpolated_to_the_input_size(made: Any, tmp_path: Path, name: str, to: Any) -> None:
    checkpoint = made(name, Preprocess((48, 48)))
    folder = convert(checkpoint, tmp_path / "theirs", to)
    model = open_timm(folder) if to == "timm" else open_transformers(folder)
    result = ask_timm(model, noise(checkpoint)) if to == "timm" else ask_sized(model, noise(checkpoint))
    assert_same(checkpoint, result)
    card = (folder / "README.md").read_text()
    assert "interpolated from 4 x 4 to 6 x 6 patches" in card
    assert checkpoint.hash in card and f"identity {checkpoint.identity}" in card


def ask_sized(model: nn.Module, images: Tensor) -> Answer:
    result = model(images, output_attentions=True)
    return Answer(result.logits if "logits" in result else result.pooler_output, list(result.attentions))


@torch.inference_mode()
@pytest.mark.parametrize(("to", "resize"), [("transformers", "bicubic_antialias"), ("timm", "bicubic_antialias")])
def test_positions_stay_if_the_library_interpolates_them_equally(
    made: Any, tmp_path: Path, to: Any, resize: Any
) -> None:
    checkpoint = made("registers", Preprocess((48, 48)))
    config = replace(checkpoint.config, position_resize=resize)
    model = VisionTransformer(config).eval()
    model.load_state_dict(checkpoint.model.state_dict())
    checkpoint = replace(checkpoint, config=config, model=model)
    folder = convert(checkpoint, tmp_path / "theirs", to)
    theirs = open_timm(folder) if to == "timm" else open_transformers(folder)
    assert_same(checkpoint, (ask_timm if to == "timm" else ask_sized)(theirs, noise(checkpoint)))
    assert torch.equal(load_checkpoint(folder).model.pos_embed, checkpoint.model.pos_embed)
