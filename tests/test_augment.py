"""Augmentation: which changes, how large, and that randomness depends on seed and step alone."""

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from vit.data.augment import Augmentation, RandomGenerators, _recolour, _warp, crop_and_flip, erase, resized_crop

EVERYTHING = Augmentation(crop_padding=3, flip=True, operations=2, magnitude=0.5, erase=0.5, mixup=0.2, cutmix=1.0)
CPU = torch.device("cpu")


@pytest.fixture
def images() -> Tensor:
    return torch.randint(0, 256, (16, 3, 12, 20), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))


def chance(seed: int = 0, step: int = 0) -> RandomGenerators:
    chance = RandomGenerators(CPU)
    chance.seed(seed, step)
    return chance


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("channels", [1, 3])
def test_shape_and_type_are_unchanged(images: Tensor, channels: int) -> None:
    images = images[:, :channels]
    changed = EVERYTHING(images, chance())
    assert changed.shape == images.shape
    assert changed.dtype == torch.uint8


def test_disabled_augmentation_returns_its_input(images: Tensor) -> None:
    assert torch.equal(Augmentation()(images, chance()), images)


def test_input_is_not_modified(images: Tensor) -> None:
    before = images.clone()
    EVERYTHING(images, chance())
    assert torch.equal(images, before)


def test_same_seed_and_step_give_the_same_pictures(images: Tensor) -> None:
    assert torch.equal(EVERYTHING(images, chance(1, 5)), EVERYTHING(images, chance(1, 5)))


@pytest.mark.parametrize("other", [(1, 6), (2, 5), (1, -6)])
def test_another_seed_or_step_gives_other_pictures(images: Tensor, other: tuple[int, int]) -> None:
    assert not torch.equal(EVERYTHING(images, chance(1, 5)), EVERYTHING(images, chance(*other)))


def test_crop_is_a_shift_of_the_padded_picture(images: Tensor) -> None:
    shifts = torch.randint(0, 7, (2, len(images), 1), generator=generator(4))
    cropped = crop_and_flip(images, 3, shifts, None)
    padded = F.pad(images, (3, 3, 3, 3))
    for i, (down, right) in enumerate(zip(*shifts[:, :, 0].tolist(), strict=True)):
        assert torch.equal(cropped[i], padded[i, :, down : down + 12, right : right + 20])


def test_flip_mirrors_about_half_of_the_pictures(images: Tensor) -> None:
    flipped = Augmentation(flip=True)(images, chance())
    mirrored = [torch.equal(a, b.flip(-1)) for a, b in zip(flipped, images, strict=True)]
    same = [torch.equal(a, b) for a, b in zip(flipped, images, strict=True)]
    assert all(a != b for a, b in zip(mirrored, same, strict=True))
    assert 3 <= sum(mirrored) <= 13


def test_erasing_blackens_one_square_and_nothing_else(images: Tensor) -> None:
    images = images.clamp_min(1)
    erased = Augmentation(erase=1.0)(images, chance())
    for before, after in zip(images, erased, strict=True):
        gone = (after == 0).all(0)
        assert torch.equal(after[:, ~gone], before[:, ~gone])
        assert gone.sum() == gone.any(1).sum() * gone.any(0).sum()  # a full rectangle
        assert 1 <= gone.any(1).sum() <= 7  # at most half of 12 px, and one for rounding


def test_erasing_affects_only_its_share(images: Tensor) -> None:
    assert torch.equal(erase(images, 0.0, torch.rand(4, len(images), 1, 1, generator=generator())), images)


@pytest.mark.parametrize("operation", range(11))
def test_each_operation_changes_the_picture_and_stays_in_range(images: Tensor, operation: int) -> None:
    x = images.float() / 255 * 0.8 + 0.1
    choice, strength = torch.full((len(x),), operation), torch.linspace(0.3, 0.9, len(x))
    changed = _recolour(_warp(x, choice, strength), choice - 5, strength)
    assert all(not torch.allclose(a, b, atol=1e-3) for a, b in zip(changed, x, strict=True))
    assert changed.min() >= 0 and changed.max() <= 1


def test_last_operation_is_the_identity(images: Tensor) -> None:
    x = images.float() / 255
    choice, strength = torch.full((len(x),), 11), torch.ones(len(x))
    assert torch.allclose(_recolour(_warp(x, choice, strength), choice - 5, strength), x, atol=1e-4)


def test_geometry_without_magnitude_is_the_identity(images: Tensor) -> None:
    x = images.float() / 255
    for operation in range(5):
        moved = _warp(x, torch.full((len(x),), operation), torch.zeros(len(x)))
        assert torch.equal((moved * 255).round().to(torch.uint8), images)


def test_quarter_turn_is_exact() -> None:
    x = torch.zeros(1, 1, 9, 9)
    x[0, 0, 4, 7] = 1  # to the right of the centre
    turned = _warp(x, torch.tensor([4]), torch.tensor([1.5]))  # 1.5 * 60 degrees
    assert turned[0, 0].argmax().item() in (1 * 9 + 4, 7 * 9 + 4)  # above or below it


def test_autocontrast_leaves_a_uniform_picture_unchanged() -> None:
    x = torch.full((1, 3, 4, 4), 0.6)
    assert torch.allclose(_recolour(x, torch.tensor([5]), torch.tensor([0.5])), x)


def test_randaugment_leaves_some_pictures_and_changes_others(images: Tensor) -> None:
    recipe = Augmentation(operations=1, magnitude=0.5)
    changed = recipe(images, chance())
    same = [torch.equal(a, b) for a, b in zip(changed, images, strict=True)]
    assert not all(same)
    assert recipe(images, chance()).equal(changed)


@pytest.mark.parametrize("recipe", [Augmentation(mixup=0.5), Augmentation(cutmix=1.0)])
def test_targets_of_a_mixed_picture_are_its_shares_of_pixels(recipe: Augmentation) -> None:
    classes = 5
    images = torch.arange(classes).float().view(-1, 1, 1, 1).expand(-1, 3, 8, 8)  # picture i has the value i
    for step in range(10):
        mixed, targets = recipe.mix(images, torch.eye(classes), chance(step=step))
        assert torch.allclose(targets.sum(1), torch.ones(classes))
        assert torch.allclose(mixed.mean((1, 2, 3)), targets @ torch.arange(classes).float(), atol=1e-5)


def test_cutmix_mixes_no_pixels() -> None:
    images = torch.arange(5).float().view(-1, 1, 1, 1).expand(-1, 3, 8, 8)
    mixed, _ = Augmentation(cutmix=1.0).mix(images, torch.eye(5), chance())
    assert torch.equal(mixed, mixed.round())


def test_both_mixup_and_cutmix_occur_if_enabled() -> None:
    images = torch.arange(5).float().view(-1, 1, 1, 1).expand(-1, 3, 8, 8)
    whole = set()
    for step in range(20):
        mixed, _ = Augmentation(mixup=1.0, cutmix=1.0).mix(images, torch.eye(5), chance(step=step))
        whole.add(torch.equal(mixed, mixed.round()))
    assert whole == {True, False}


def test_disabled_mixing_returns_its_input(images: Tensor) -> None:
    targets = torch.eye(16)
    mixed = Augmentation().mix(images.float(), targets, chance())
    assert torch.equal(mixed[0], images.float())
    assert torch.equal(mixed[1], targets)


def test_other_random_numbers_do_not_affect_it(images: Tensor) -> None:
    before = EVERYTHING(images, chance())
    torch.manual_seed(99)
    random.seed(99)
    assert torch.equal(EVERYTHING(images, chance()), before)


def test_random_crop_keeps_at_least_its_share_of_the_picture() -> None:
    ramp = torch.arange(64, dtype=torch.uint8).repeat(64, 1) * 4  # brightness is the column, times 4
    pictures = torch.stack([ramp, ramp.T, ramp])[None].repeat(200, 1, 1, 1)
    crops = resized_crop(pictures, 0.5, (64, 64), torch.rand(4, len(pictures), generator=generator())).float() / 4
    width = crops[:, 0, 0, -1] - crops[:, 0, 0, 0] + 1
    height = crops[:, 1, -1, 0] - crops[:, 1, 0, 0] + 1
    area = width * height / 64**2
    assert area.min() > 0.4 and area.max() <= 1.0  # the longest side may be cut at the edge
    assert area.mean() == pytest.approx(0.74, abs=0.04)
    assert (width / height).min() > 0.7 and (width / height).max() < 1.43


def test_random_crop_of_everything_changes_only_the_aspect() -> None:
    pictures = torch.full((8, 3, 16, 16), 77, dtype=torch.uint8)
    assert torch.equal(
        resized_crop(pictures, 1.0, (16, 16), torch.rand(4, len(pictures), generator=generator())), pictures
    )


def test_crop_of_a_larger_picture_is_sharper_than_an_enlarged_one() -> None:
    """Stripes of two pixels are visible in a quarter of the picture only if it was cropped before shrinking."""
    stripes = (torch.arange(96) // 2 % 2 * 255).to(torch.uint8).expand(64, 3, 96, 96)
    shrunk = torch.nn.functional.interpolate(stripes.float(), (48, 48), mode="bilinear", antialias=True)
    places = torch.rand(4, len(stripes), generator=generator())
    sharp = resized_crop(stripes, 0.25, (48, 48), places).float()
    blurred = resized_crop(shrunk.round().to(torch.uint8), 0.25, (48, 48), places).float()
    assert sharp.shape == blurred.shape == (64, 3, 48, 48)
    assert sharp.std(-1).mean() > 2 * blurred.std(-1).mean()


def test_zooming_out_shrinks_the_picture_and_mirrors_it_around() -> None:
    picture = torch.randint(0, 256, (3, 32, 32), dtype=torch.uint8, generator=generator())
    whole, centred, four = torch.ones(1), torch.full((1,), 0.5), torch.full((1,), 4.0)
    draws = torch.stack([whole, centred, centred, centred])
    zoomed = resized_crop(picture[None], 1.0, (32, 32), draws, four)[0]
    mirrored = np.pad(picture.numpy(), ((0, 0), (16, 16), (16, 16)), mode="symmetric").astype(float)
    shrunk = mirrored.reshape(3, 32, 2, 32, 2).mean((2, 4))
    assert np.abs(zoomed.numpy() - shrunk).max() <= 0.51  # rounding


def test_zooming_out_makes_a_small_photo_as_sharp_as_a_large_one() -> None:
    stripes = (torch.arange(32) % 2 * 255).to(torch.uint8).expand(64, 3, 32, 32)
    enlarged = F.interpolate(stripes.float(), (80, 80), mode="bilinear").round().to(torch.uint8)
    recipe = Augmentation(crop_scale=0.9, size=(64, 64))

    def steepest(recipe: Augmentation) -> Tensor:
        """Largest difference of neighbouring pixels, averaged over the pictures."""
        return recipe(enlarged, chance()).float().diff(dim=-1).abs().amax((1, 2, 3)).mean()

    assert steepest(replace(recipe, zoom_out=4)) > 1.2 * steepest(recipe)


def test_all_changes_compile_into_one_graph_with_the_same_result() -> None:
    images = torch.randint(0, 256, (8, 3, 12, 12), dtype=torch.uint8, generator=generator())
    recipe = Augmentation(crop_padding=2, flip=True, operations=2, magnitude=0.5, erase=0.5, crop_scale=0.5, zoom_out=4)
    traced = torch.compile(Augmentation.apply, fullgraph=True, backend="eager")  # as one graph, without a C++ compiler
    assert torch.equal(recipe(images, chance()), traced(recipe, images, recipe.draw(len(images), chance())))
