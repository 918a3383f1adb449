"""Pictures to a model's input, and patches back to pixels of the picture."""

import numpy as np
import pytest
import torch
from drawn import difference, gradient
from PIL import Image

from vit.images.geometry import Box, Geometry
from vit.images.preprocess import Preprocess

pytestmark = pytest.mark.usefixtures("assert_silence")


def test_input_has_the_requested_size() -> None:
    assert Preprocess((24, 32))(gradient()).shape == (1, 3, 24, 32)


def test_one_mean_makes_a_grey_input() -> None:
    assert Preprocess((32, 32), mean=(0.1,), std=(0.3,))(gradient()).shape == (1, 1, 32, 32)


def test_normalisation_by_hand() -> None:
    pixels = Preprocess((1, 1), mean=(0.5, 0.0, 0.2), std=(0.5, 1.0, 0.4))(Image.new("RGB", (3, 3), (255, 51, 0)))
    assert torch.allclose(pixels.flatten(), torch.tensor([1.0, 0.2, -0.5]))


def test_picture_of_the_right_size_is_not_resampled() -> None:
    assert difference(Preprocess((32, 48), resize="squash").input_image(gradient()), gradient()) == 0


def test_shrinking_does_not_alias() -> None:
    checkers = Image.fromarray((np.indices((1000, 1000)).sum(axis=0) % 2 * 255).astype(np.uint8))
    pixels = np.asarray(Preprocess((32, 32)).input_image(checkers), float)
    assert abs(pixels - 127.5).max() < 4


def test_squash_shows_the_whole_picture() -> None:
    geometry = Preprocess((32, 32), resize="squash").geometry(Image.new("RGB", (400, 300)))
    assert geometry == Geometry(400, 300, Box(0, 0, 400, 300))


def test_landscape_loses_its_sides() -> None:
    assert Preprocess((32, 32)).geometry(Image.new("RGB", (400, 200))).box == (100, 0, 300, 200)


def test_portrait_loses_top_and_bottom() -> None:
    assert Preprocess((32, 32)).geometry(Image.new("RGB", (200, 400))).box == (0, 100, 200, 300)


def test_resizing_beyond_the_input_cuts_all_four_sides() -> None:
    # 512 x 256 keeps 224 x 224 of it, from (144, 16); an original pixel is half of one of these.
    geometry = Preprocess((224, 224), resize_to=256).geometry(Image.new("RGB", (1024, 512)))
    assert geometry.box == (288, 32, 736, 480)


@pytest.mark.parametrize("size", [(400, 300), (300, 400), (333, 77), (20, 31), (4000, 3000)])
def test_mark_shows_up_in_the_patch_that_covers_it(size: tuple[int, int]) -> None:
    preprocess = Preprocess((64, 64), resize_to=80)
    image = Image.new("RGB", size, "black")
    left, top, right, bottom = preprocess.geometry(image).box
    width, height = (right - left) / 4, (bottom - top) / 4
    patch = left + 2 * width, top + height, left + 3 * width, top + 2 * height  # row 1, col 2 of 4 x 4
    image.paste("white", tuple(round(edge) for edge in patch))
    light = np.asarray(preprocess.input_image(image).convert("L"), float).reshape(4, 16, 4, 16).mean(axis=(1, 3))
    assert np.unravel_index(light.argmax(), light.shape) == (1, 2)
    assert light[1, 2] > 180 and np.delete(light.flatten(), 6).max() < 40
