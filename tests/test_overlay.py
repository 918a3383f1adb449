"""Heatmaps as pictures, and the sample pictures."""

from typing import get_args

import matplotlib
import numpy as np
import pytest
from PIL import Image
from subprocesses import output_of

from vit.explain.names import display_name
from vit.images.encode import encode_image
from vit.images.files.decode import decode_image
from vit.images.geometry import Box
from vit.images.samples import SAMPLES, read
from vit.view.overlay import BLUE, COLORMAPS, OUTSIDE_BRIGHTNESS, Colormap, bordered, colorize, mosaic, overlay


@pytest.mark.parametrize("name", ["viridis", "cividis", "inferno", "magma"])
def test_brightness_of_a_colormap_grows_steadily(name: str) -> None:
    luma = COLORMAPS[name] @ np.array([0.2126, 0.7152, 0.0722])
    assert (np.diff(luma) > -0.5).all() and luma[-1] - luma[0] > 150


def test_colours_equal_those_of_matplotlib() -> None:
    """To update after an intended change: `np.save("vit/view/colormaps.npy", theirs)`."""
    maps = [matplotlib.colormaps[name](np.arange(256))[:, :3] for name in get_args(Colormap)]
    theirs = (np.stack(maps) * 255).round().astype(np.uint8)
    ours = np.stack([COLORMAPS[name] for name in get_args(Colormap)])
    assert ours.dtype == np.uint8 and (ours == theirs).all()


def test_values_outside_the_scale_take_its_end_colours() -> None:
    assert colorize(np.array([-5.0, 7.0]), "gray", vmax=1.0)[:, 0].tolist() == [0, 255]


def test_map_of_zeros_has_the_first_colour() -> None:
    assert (colorize(np.zeros((2, 2)), "gray") == 0).all()


def test_nan_in_a_heatmap_is_a_bug_and_not_a_colour() -> None:
    with pytest.raises(ValueError, match="NaN"):
        colorize(np.array([np.nan]))


def pixels(image: Image.Image) -> np.ndarray:
    """Return a grey RGB picture as pixels (height, width)."""
    return np.asarray(image)[..., 0].astype(int)


def test_patches_cover_their_own_pixels_and_no_others() -> None:
    heatmap = np.array([[0.0, 1.0], [0.5, 0.25]])
    result = pixels(overlay(Image.new("RGB", (6, 4)), heatmap, opacity=1, cover="film", colormap="gray"))
    assert (result == np.repeat(np.repeat([[0, 255], [128, 64]], 2, axis=0), 3, axis=1)).all()


def test_map_fills_the_box_and_the_rest_is_dimmed() -> None:
    result = pixels(
        overlay(
            Image.new("RGB", (10, 6), (100, 100, 100)),
            np.ones((3, 3)),
            Box(2, 0, 8, 6),
            opacity=1,
            cover="film",
            colormap="gray",
        )
    )
    assert (result[:, 2:8] == 255).all()
    assert (result[:, :2] == round(100 * OUTSIDE_BRIGHTNESS)).all() and (
        result[:, 8:] == round(100 * OUTSIDE_BRIGHTNESS)
    ).all()


def test_pixel_belongs_to_the_box_that_holds_its_centre() -> None:
    result = pixels(
        overlay(
            Image.new("RGB", (6, 1)), np.ones((1, 1)), Box(1.4, 0, 4.6, 1), opacity=1, cover="film", colormap="gray"
        )
    )
    assert result[0].tolist() == [0, 255, 255, 255, 255, 0]


def test_zero_opacity_leaves_the_picture_unchanged() -> None:
    picture = decode_image(read("cat"))
    assert overlay(picture, np.random.default_rng(0).random((8, 8)), opacity=0).tobytes() == picture.tobytes()


def test_strong_values_cover_more_of_the_picture_than_weak_ones() -> None:
    white = Image.new("RGB", (4, 2), "white")
    result = np.asarray(overlay(white, np.array([[0.0, 1.0]]), opacity=0.5, cover="film")).astype(int)
    # The weakest, (68, 1, 84), covers a quarter of white, 64 of 255; the strongest, (253, 231, 37), 180 of 255.
    assert abs(result[0, 0] - (208, 191, 212)).max() <= 1
    assert abs(result[0, 3] - (254, 238, 101)).max() <= 1


def test_picture_is_clear_where_values_are_below_their_mean() -> None:
    grey = Image.new("RGB", (40, 10), (100, 100, 100))
    result = np.asarray(overlay(grey, np.array([[0.0, 0.2, 0.4, 1.0]]), opacity=0.8)).astype(int)  # the mean is 0.4
    assert (result[:, :30] == 100).all()
    strongest = COLORMAPS["viridis"][255].astype(int)
    assert abs(result[0, 35] - (100 + (strongest - 100) * 0.8**0.5)).max() <= 2


def test_coverage_grows_with_the_distance_above_the_mean() -> None:
    black = Image.new("RGB", (90, 1))
    heatmap = np.concatenate([np.zeros(20), np.linspace(0.1, 1, 10)])[None]
    covered = pixels(overlay(black, heatmap, colormap="gray"))[0, 61::3]
    assert (np.diff(covered) >= 0).all() and covered[0] == 0 and covered[-1] > 180


@pytest.mark.parametrize("value", [0.0, 0.3])
def test_constant_map_leaves_the_picture_clear(value: float) -> None:
    picture = decode_image(read("cat"))
    assert overlay(picture, np.full((8, 8), value)).tobytes() == picture.tobytes()


def test_signed_map_is_red_and_blue_over_grey_and_clear_around_zero() -> None:
    colourful = Image.new("RGB", (30, 10), (200, 40, 90))
    drawn = np.asarray(overlay(colourful, np.array([[-2.0, 0.1, 1.8]]), signed=True, opacity=1.0), int)
    left, middle, right = drawn[5, 5], drawn[5, 15], drawn[5, 25]
    grey = np.asarray(colourful.convert("L"), int)[0, 0]
    assert (middle == grey).all()
    assert left[2] > left[0] + 80 and right[0] > right[2]
    assert tuple(left) == BLUE  # the largest value is opaque
    film = np.asarray(overlay(colourful, np.array([[-2.0, 0.0, 1.0]]), signed=True, opacity=1.0, cover="film"), int)
    assert abs(film[5, 15] - 247).max() <= 1 and tuple(film[5, 5]) == BLUE


def test_smoothing_keeps_the_value_at_each_patch_centre() -> None:
    heatmap = np.random.default_rng(0).random((3, 5))
    result = pixels(
        overlay(Image.new("RGB", (55, 33)), heatmap, opacity=1, cover="film", colormap="gray", smooth=True, vmax=1)
    )
    assert (result[5::11, 5::11] == np.floor(heatmap * 255 + 0.5)).all()


def test_smoothing_stays_between_its_neighbours() -> None:
    result = pixels(
        overlay(
            Image.new("RGB", (40, 1)), np.array([[0.0, 1.0]]), opacity=1, cover="film", colormap="gray", smooth=True
        )
    )
    assert (np.diff(result[0]) >= 0).all() and result[0, 0] == 0 and result[0, -1] == 255


@pytest.mark.parametrize("smooth", [False, True])
def test_strips_leave_no_seam(smooth: bool) -> None:
    column = np.linspace(0, 1, 5)[:, None]
    tall = pixels(overlay(Image.new("RGB", (3, 1000)), column, opacity=1, cover="film", colormap="gray", smooth=smooth))
    wide = pixels(
        overlay(Image.new("RGB", (1000, 3)), column.T, opacity=1, cover="film", colormap="gray", smooth=smooth)
    )
    assert (tall == wide.T).all()


def test_maps_with_one_vmax_can_be_compared() -> None:
    strong, weak = (
        overlay(Image.new("RGB", (2, 2)), np.full((1, 1), v), opacity=1, cover="film", colormap="gray", vmax=1)
        for v in (1, 0.5)
    )
    assert pixels(strong)[0, 0] == 255 and pixels(weak)[0, 0] == 128


@pytest.mark.slow
def test_fifty_megapixels_take_less_than_a_gigabyte() -> None:
    """Tested with a quarter of the pixels and of the memory, which are proportional."""
    code = (
        "import resource; import numpy as np; from PIL import Image\n"
        "from vit.view.overlay import overlay; from vit.images.geometry import Box\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "start = peak(); picture = Image.new('RGB', (4080, 3060))\n"
        "overlay(picture, np.random.rand(37, 37), Box(510, 0, 3570, 3060), smooth=True)\n"
        "print((peak() - start) / 1024)"
    )
    assert float(output_of(code)) < 250


def test_mosaic_has_a_row_per_block_and_a_column_per_head() -> None:
    heatmaps = np.array([[0.0, 0.25, 0.5], [0.75, 1.0, 0.5]])[:, :, None, None]
    tiles = pixels(mosaic(heatmaps, "gray", cell=10, labels=False))
    assert tiles.shape == (21, 32)
    assert tiles[5::11, 5::11].tolist() == [[0, 64, 128], [191, 255, 128]]


def test_maps_of_a_mosaic_may_have_their_own_scales() -> None:
    heatmaps = np.array([[0.1, 1.0]])[:, :, None, None]
    assert (pixels(mosaic(heatmaps, "gray", cell=10, labels=False, shared=False))[5, [5, 16]] == 255).all()


def test_cells_of_a_mosaic_have_the_aspect_of_their_maps() -> None:
    assert mosaic(np.ones((1, 1, 2, 4)), cell=20, labels=False).size == (20, 10)


def test_labels_add_margins_with_text() -> None:
    bare, labelled = (mosaic(np.ones((2, 3, 2, 2)), labels=labels) for labels in (False, True))
    assert labelled.width > bare.width and labelled.height > bare.height
    assert pixels(labelled.crop((0, 0, labelled.width - bare.width, labelled.height))).min() < 100


def test_mosaic_survives_as_png() -> None:
    grid = mosaic(np.random.default_rng(0).random((2, 2, 3, 3)))
    assert decode_image(encode_image(grid)).tobytes() == grid.tobytes()


def test_labels_count_from_one() -> None:
    assert display_name("Head", 11) == "Head 12"


@pytest.mark.parametrize("name", SAMPLES)
def test_sample_is_a_small_picture_with_a_credit(name: str) -> None:
    data = read(name)
    assert len(data) < 150_000 and max(decode_image(data).size) <= 800
    assert SAMPLES[name].credit and SAMPLES[name].licence


def test_every_sample_is_credited_in_the_readme() -> None:
    readme = SAMPLES["cat"].path.with_name("README.md").read_text()
    assert all(f"`{name}.jpg`" in readme for name in SAMPLES)


def test_outline_surrounds_marked_patches_and_nothing_else() -> None:
    marked = np.array([[True, True, False], [False, False, False]])
    grey = Image.new("RGB", (120, 80), (128, 128, 128))
    changed = pixels(bordered(grey, marked, Box(0, 0, 120, 80))) != 128
    rows, cols = changed.any(1).nonzero()[0], changed.any(0).nonzero()[0]
    assert rows.max() in (40, 41) and cols.max() in (80, 81)  # no line between the two, none around the others
    assert not changed[10:30, 10:70].any()
    assert pixels(grey).min() == 128


def test_no_outline_without_a_patch() -> None:
    grey = Image.new("RGB", (30, 30), (128, 128, 128))
    assert (pixels(bordered(grey, np.zeros((3, 3), bool))) == 128).all()
