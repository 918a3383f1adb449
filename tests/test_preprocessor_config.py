"""preprocessor_config.json: read as its processor interprets it, written, and refused with the wrong field named."""

import warnings

import numpy as np
import pytest
import torch
from PIL import Image

from vit.errors import InvalidCheckpoint
from vit.images.preprocess import Preprocess

pytestmark = pytest.mark.usefixtures("assert_silence")

IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}


@pytest.mark.parametrize(
    "preprocess",
    [
        Preprocess((32, 32)),
        Preprocess((224, 224), resize_to=256, interpolation="bicubic", mean=(0.1, 0.2, 0.3), std=(0.3, 0.2, 0.1)),
        Preprocess((224, 224), resize="squash", interpolation="lanczos"),
        Preprocess((224, 224), resize="squash", resize_to=256),
        Preprocess((96, 192), resize="squash", interpolation="nearest"),
        Preprocess((96, 192)),
        Preprocess((28, 28), mean=(0.13,), std=(0.31,)),
    ],
)
def test_writing_and_reading_a_config_changes_nothing(preprocess: Preprocess) -> None:
    assert Preprocess.from_config(preprocess.to_config()) == preprocess


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"size": 224}, Preprocess((224, 224), resize="squash")),
        ({"size": {"height": 32, "width": 64}}, Preprocess((32, 64), resize="squash")),
        (
            {"feature_extractor_type": "BeitFeatureExtractor", "size": 32, "resample": 2},
            Preprocess((32, 32), resize="squash"),
        ),
        ({"size": [32, 64]}, Preprocess((32, 64), resize="squash")),
        (
            {"feature_extractor_type": "CLIPFeatureExtractor", "size": 256, "crop_size": 224, "resample": 2},
            Preprocess(
                (224, 224),
                resize_to=256,
                mean=(0.48145466, 0.4578275, 0.40821073),
                std=(0.26862954, 0.26130258, 0.27577711),
            ),
        ),
        (
            {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256}, **IMAGENET},
            Preprocess(
                (224, 224),
                resize_to=256,
                interpolation="bicubic",
                mean=(0.485, 0.456, 0.406),
                std=(0.229, 0.224, 0.225),
            ),
        ),
        (
            {
                "image_processor_type": "DeiTImageProcessor",
                "size": {"height": 256, "width": 256},
                "crop_size": 224,
            },
            Preprocess((224, 224), resize="squash", resize_to=256, interpolation="bicubic"),
        ),
        (
            {"size": {"height": 200, "width": 300}, "crop_size": 100, "do_center_crop": True},
            Preprocess((100, 100), "squash", 200, rectangle=(200, 300)),
        ),
        ({"size": 32, "do_resize": False}, Preprocess((32, 32), resize="squash")),
        (
            {"size": 32, "do_normalize": False},
            Preprocess((32, 32), resize="squash", mean=(0.0,) * 3, std=(1.0,) * 3),
        ),
    ],
)
def test_config_is_read_as_its_processor_interprets_it(config: dict[str, object], expected: Preprocess) -> None:
    assert Preprocess.from_config(config) == expected


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": 0},
        {"size": -224},
        {"size": 224.5},
        {"size": "224"},
        {"size": True},
        {"size": 10**9},
        {"size": {"longest_edge": 224}},
        {"size": [224, 224, 3]},
        {"size": {"shortest_edge": 224}},
        {"size": {"shortest_edge": 224, "longest_edge": 448}, "do_center_crop": True},
        {"size": {"shortest_edge": 200}, "crop_size": 224, "do_center_crop": True},
        {"do_center_crop": "yes"},
        {"do_resize": False, "do_center_crop": True},
        {"resample": 9},
        {"resample": "bilinear"},
        {"resample": [2]},
        {"resample": 2.0},
        {"image_mean": 10**400},
        {"rescale_factor": 0},
        {"rescale_factor": float("nan")},
        {"image_mean": [0.5, 0.5]},
        {"image_mean": ["0.5"] * 3},
        {"image_mean": []},
        {"image_mean": [float("inf")] * 3},
        {"image_std": [0.5, 0.5, 0.0]},
        {"image_std": [0.5]},
        {"do_flip_channel_order": True},
        {"size": {"height": 224}},
        {"size": {"max_height": 224, "max_width": 224}},
        {"crop_size": {"longest_edge": 224}, "do_center_crop": True},
        {"image_processor_type": "DPTImageProcessor", "size": 518, "keep_aspect_ratio": True},
        {"ensure_multiple_of": 14, "size": 384},
        {"image_processor_type": "LayoutLMv3ImageProcessor"},
        {"image_processor_type": ["ViT"]},
    ],
)
def test_wrong_value_in_a_config_is_refused_by_name(wrong: dict[str, object]) -> None:
    field = "keep_aspect_ratio" if "keep_aspect_ratio" in wrong else next(iter(wrong)).split("_")[-1]
    with pytest.raises(InvalidCheckpoint, match=field) as caught:
        Preprocess.from_config(wrong)
    assert "None" not in str(caught.value)  # the value of the file, not of a key that it lacks


def reference(config: dict[str, object], image: Image.Image) -> torch.Tensor:
    """Return the output of transformers' Pillow backend."""
    import transformers

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        kind = getattr(transformers, f"{config['image_processor_type']}Pil")
        return kind(**{key: value for key, value in config.items() if key != "image_processor_type"})(
            image, return_tensors="pt"
        )["pixel_values"]


NOISE = Image.fromarray(np.random.default_rng(3).integers(0, 256, (90, 131, 3), dtype=np.uint8))


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        {"image_processor_type": "ViTImageProcessor"},
        {"image_processor_type": "ViTImageProcessor", "size": 48, "resample": 3, **IMAGENET},
        {
            "image_processor_type": "ViTImageProcessor",
            "size": {"height": 32, "width": 48},
            "rescale_factor": 1 / 127.5,
        },
        {"image_processor_type": "DeiTImageProcessor"},
        {"image_processor_type": "DeiTImageProcessor", "size": 64, "crop_size": 48},
        {"image_processor_type": "CLIPImageProcessor"},
        {"image_processor_type": "CLIPImageProcessor", "size": 64, "crop_size": 48},
        {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256}, **IMAGENET},
        {"image_processor_type": "SiglipImageProcessor"},
        {"image_processor_type": "BeitImageProcessor"},
        {"image_processor_type": "BeitImageProcessor", "size": 64, "crop_size": 48, "do_center_crop": True},
        {"image_processor_type": "ChineseCLIPImageProcessor", "size": 64, "crop_size": 48},
        {"image_processor_type": "DPTImageProcessor"},
        {"image_processor_type": "DPTImageProcessor", "size": 64, "ensure_multiple_of": 32, **IMAGENET},
        {"image_processor_type": "FlavaImageProcessor"},
        {"image_processor_type": "FlavaImageProcessor", "size": 64, "crop_size": 48},
        Preprocess((32, 32)).to_config(),
        Preprocess((48, 48), resize_to=56, interpolation="bicubic").to_config(),
        Preprocess((48, 48), resize="squash", resize_to=56).to_config(),
    ],
)
def test_pixels_equal_those_of_transformers(config: dict[str, object]) -> None:
    ours, theirs = Preprocess.from_config(config)(NOISE), reference(config, NOISE)
    assert ours.shape == theirs.shape
    assert (ours - theirs).abs().max() < 1e-5


def test_comparison_with_transformers_notices_another_filter() -> None:
    config = {"image_processor_type": "ViTImageProcessor", "resample": 2}
    ours = Preprocess.from_config({**config, "resample": 3})(NOISE)
    assert (ours - reference(config, NOISE)).abs().max() > 0.1
