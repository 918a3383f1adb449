"""Dataset `shapes`: generated pictures and their masks."""

import numpy as np
import pytest
import torch

from vit.data.datasets import load_dataset
from vit.data.shapes import SHAPES, shapes
from vit.errors import InvalidDataset
from vit.images.preprocess import Preprocess

INPUT = Preprocess((8, 8), mean=(0.0,) * 3, std=(1.0,) * 3)
GREY = Preprocess((8, 8), mean=(0.0,), std=(1.0,))


def test_shapes_are_the_same_for_a_seed_and_differ_between_seeds() -> None:
    (first, mask), (again, same), (other, _) = (shapes(8, 16, seed) for seed in (1, 1, 2))
    assert torch.equal(first.images, again.images) and torch.equal(mask, same)
    assert not torch.equal(first.images, other.images)


def test_masks_lie_on_the_shapes() -> None:
    pictures, masks = shapes(40, 32, seed=0)
    grey = pictures.images.float().mean(1)
    inside = (grey * masks).sum((1, 2)) / masks.sum((1, 2))
    outside = (grey * ~masks).sum((1, 2)) / (~masks).sum((1, 2))
    assert (inside > outside + 20).all()


def test_each_shape_covers_the_area_of_its_geometry() -> None:
    _, masks = shapes(400, 64, seed=0)
    height, width = masks.any(2).sum(1).float(), masks.any(1).sum(1).float()
    filled = masks.sum((1, 2)) / (height * width)
    circle, square, triangle, cross = (filled[i :: len(SHAPES)].mean().item() for i in range(4))
    assert circle == pytest.approx(np.pi / 4, abs=0.03)
    assert square > circle > triangle
    assert cross < circle


def test_shapes_dataset_has_masks_for_its_test_pictures() -> None:
    dataset = load_dataset("shapes", INPUT, only="test")
    assert dataset.masks is not None
    assert dataset.masks.shape == (len(dataset.test.labels), 8, 8)
    assert dataset.classes == SHAPES


def test_shapes_for_a_grey_model_are_refused() -> None:
    with pytest.raises(InvalidDataset, match="in colour"):
        load_dataset("shapes", GREY)
