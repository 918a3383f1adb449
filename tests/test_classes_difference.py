"""Why one class rather than another: against maps and drops of both classes, computed apart."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from vit.cli.main import main
from vit.errors import UserError
from vit.explain.classes.difference import class_from_difference
from vit.explain.faithfulness_correlation import random_masks, score_drops
from vit.explain.methods import METHODS

LABELS = ("cat", "dog", "cow", "bee", "ant")


@pytest.fixture
def opened(tmp_path: Path, build: Any, preprocess: Any) -> vit.Checkpoint:
    return vit.load_checkpoint(vit.save_checkpoint(tmp_path / "one", build(depth=3), LABELS, preprocess))


@pytest.fixture
def image(tmp_path: Path) -> Image.Image:
    picture = Image.effect_noise((60, 40), 90).convert("RGB")
    picture.save(tmp_path / "picture.png")
    return picture


def test_attnlrp_of_the_difference_is_the_difference_of_both_maps(opened: vit.Checkpoint, image: Image.Image) -> None:
    pixels = opened.preprocess(image)
    both = opened.with_classes(class_from_difference(opened, 1, 3))
    apart = [vit.attnlrp(opened.model, pixels, index) for index in (1, 3)]
    torch.testing.assert_close(vit.attnlrp(both.model, pixels, 0), apart[0] - apart[1], rtol=1e-4, atol=1e-6)


def test_drops_are_those_of_the_ratio_of_both_probabilities(opened: vit.Checkpoint, image: Image.Image) -> None:
    pixels, masks = opened.preprocess(image), random_masks(16, 20)
    both = opened.with_classes(class_from_difference(opened, 1, 3))
    apart = [score_drops(opened.model, pixels, index, masks) for index in (1, 3)]
    torch.testing.assert_close(score_drops(both.model, pixels, 0, masks), apart[0] - apart[1], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", [name for name, one in METHODS.items() if one.of_class])
def test_every_method_of_a_class_explains_a_difference(
    opened: vit.Checkpoint, image: Image.Image, tmp_path: Path, method: str
) -> None:
    there = vit.heatmap(opened, image, method, target="cow", against="ant")
    assert there.isfinite().all() and there.any()
    arguments = [str(tmp_path / "picture.png"), "--checkpoint", str(opened.path), "--method", method]
    assert main(["explain", *arguments, "--target=cow", "--against=4", "--out", str(tmp_path / "map.npz")]) == 0
    with np.load(tmp_path / "map.npz") as arrays:
        np.testing.assert_allclose(arrays["heatmap"], there, rtol=1e-3, atol=1e-6)
        assert json.loads(str(arrays["meta"]))["view"]["target"]["label"] == "cow rather than ant"


def test_without_a_target_it_is_the_predicted_class(opened: vit.Checkpoint, image: Image.Image) -> None:
    with torch.inference_mode():
        order = opened.model(opened.preprocess(image)).logits[0].argsort(descending=True).tolist()
    named = vit.heatmap(opened, image, target=order[0], against=order[1])
    torch.testing.assert_close(vit.heatmap(opened, image, against=order[1]), named)


def test_questions_without_an_answer(opened: vit.Checkpoint, image: Image.Image) -> None:
    with pytest.raises(UserError, match="Compare “cat” with another class than itself"):
        vit.heatmap(opened, image, target="cat", against=0)
    with pytest.raises(UserError, match="There is no class 'elk'"):
        vit.heatmap(opened, image, target="cat", against="elk")
    with pytest.raises(UserError, match="There is no class 9"):
        vit.heatmap(opened, image, target="cat", against=9)
