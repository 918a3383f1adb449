"""SaCo, deletion and insertion: by hand, on a model with known weights, and against the paper's pseudocode."""

import gc
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from vit.explain import faithfulness as module
from vit.explain.faithfulness import (
    Curve,
    centre,
    deletion,
    enlarged,
    faithfulness,
    groups,
    insertion,
    memory,
    noise,
    overlap,
    points_at,
    probabilities,
    saco,
)
from vit.model.config import ViTConfig

GRID, SIZE = (4, 5), (32, 40)


class Weighing:
    """A model whose logit for class 1 is a weighted sum of pixels, so its true importances are known."""

    activation = "softmax"

    def __init__(self, weights: Tensor):
        self.weights = weights
        self.images = 0
        self.config = "a weighted sum"  # estimates of time are cached by it

    def parameters(self) -> Iterator[Tensor]:
        yield self.weights

    def probabilities(self, logits: Tensor) -> Tensor:
        return logits.softmax(-1)

    def __call__(self, images: Tensor) -> SimpleNamespace:
        self.images += len(images)
        score = (images * self.weights).sum((1, 2, 3))
        return SimpleNamespace(logits=torch.stack([torch.zeros_like(score), score], 1))


@pytest.fixture
def reasons() -> Tensor:
    """Return the true importances (rows, cols), no two equal."""
    return torch.randperm(20, generator=torch.Generator().manual_seed(2)).float().view(GRID)


@pytest.fixture
def model(reasons: Tensor) -> Any:
    return Weighing(enlarged(reasons, SIZE)[None] * 3e-4)


@pytest.fixture
def pixels() -> Tensor:
    """Return pixels brighter than their mean except in one corner, which balances the sum."""
    image = torch.ones(1, 3, *SIZE)
    image[..., :2, :2] = -100
    return image


def by_the_paper(salience: list[float], drops: list[float]) -> float:
    """Compute SaCo by algorithm 1 of the paper, pair by pair."""
    order = sorted(range(len(salience)), key=lambda i: -salience[i])
    s, d = [salience[i] for i in order], [drops[i] for i in order]
    score = total = 0.0
    for i in range(len(s) - 1):
        for j in range(i + 1, len(s)):
            weight = s[i] - s[j] if d[i] >= d[j] else -(s[i] - s[j])
            score += weight
            total += abs(weight)
    return score / total if total else 0.0


@pytest.mark.parametrize("seed", range(5))
def test_saco_equals_that_of_the_paper(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    salience, drops = torch.rand(10, generator=generator), torch.randn(10, generator=generator)
    assert saco(salience, drops) == pytest.approx(by_the_paper(salience.tolist(), drops.tolist()))


def test_saco_ends_at_one_and_minus_one() -> None:
    rising = torch.arange(6.0)
    assert saco(rising, rising) == 1 and saco(rising, -rising) == -1
    assert saco(torch.ones(6), rising) == 0  # a constant map


def test_groups_are_of_equal_size_and_ordered() -> None:
    heatmap = noise(GRID, 0)
    group, salience = groups(heatmap, SIZE, 7)
    counts = group.flatten().bincount()
    assert len(counts) == 7 and counts.max() - counts.min() <= 1
    pixel = enlarged(heatmap, SIZE)
    assert all(pixel[group == i].min() >= pixel[group == i + 1].max() for i in range(6))
    torch.testing.assert_close(salience.sum(), pixel.double().sum())


def test_true_map_wins_and_its_opposite_loses(model: Any, pixels: Tensor, reasons: Tensor) -> None:
    true, upside_down, flat = faithfulness(model, pixels, 1, [reasons, -reasons, torch.ones(GRID)])
    assert model.images == 30  # ten forward passes per map
    assert true > 0.9 and upside_down < -0.9 and flat == 0
    chance = faithfulness(model, pixels, 1, [*(noise(GRID, seed) for seed in range(5)), centre(GRID)])
    assert max(map(abs, chance)) < true
    for other_class in faithfulness(model, pixels, 0, [reasons]):
        assert other_class < -0.9


def test_random_maps_average_near_zero(model: Any, pixels: Tensor) -> None:
    result = faithfulness(model, pixels, 1, [noise(GRID, seed) for seed in range(200)])
    assert abs(sum(result) / 200) < 0.1


def test_only_the_order_and_the_differences_matter(model: Any, pixels: Tensor) -> None:
    heatmap = noise(GRID, 1)
    one, other = faithfulness(model, pixels, 1, [heatmap, 5 * heatmap])
    assert one == pytest.approx(other, abs=1e-6)


def test_curves_of_the_true_map_fall_and_rise_fastest(model: Any, pixels: Tensor, reasons: Tensor) -> None:
    assert deletion(model, pixels, 1, reasons).area < deletion(model, pixels, 1, -reasons).area
    picture = torch.randn(1, 3, *SIZE, generator=torch.Generator().manual_seed(1)) + 1
    curve = insertion(model, picture, 1, reasons)
    whole = float(model(picture).logits.softmax(-1)[0, 1])
    assert curve.shares[0] == 0 and curve.shares[-1] == 1 and len(curve.shares) == 21
    assert curve.probabilities[-1] == pytest.approx(whole)
    gone = deletion(model, picture, 1, reasons)
    assert gone.probabilities[0] == pytest.approx(whole)
    mean = picture.mean((2, 3), keepdim=True).expand_as(picture)
    assert gone.probabilities[-1] == pytest.approx(float(model(mean).logits.softmax(-1)[0, 1]))


def test_area_of_a_curve_by_hand() -> None:
    assert Curve((0.0, 0.5, 1.0), (1.0, 0.5, 0.0)).area == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("probabilities", "leads"), [((0.9, 0.1, 0.8), False), ((0.9, 0.9, 0.7), True), ((0.0, 0.5), True)]
)
def test_curve_with_equal_ends_is_uninformative(probabilities: tuple[float, ...], leads: bool) -> None:
    assert Curve((0.0,) * len(probabilities), probabilities).is_informative == leads


class Counting(Weighing):
    """Counts for every batch the pictures held in memory, including the batch's own."""

    def __init__(self, weights: Tensor):
        super().__init__(weights)
        self.held: list[int] = []

    def __call__(self, images: Tensor) -> SimpleNamespace:
        every = (one for one in gc.get_objects() if type(one) is Tensor and one.shape[1:] == (3, *SIZE))
        self.held.append(sum(map(len, every)))
        return super().__call__(images)


@pytest.fixture
def unseen() -> Iterator[None]:
    """Hide objects from before the test from `gc.get_objects`."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("unseen")
@pytest.mark.parametrize("at_once", [1, 4, 1000])
def test_memory_does_not_grow_with_the_maps(
    pixels: Tensor, reasons: Tensor, monkeypatch: pytest.MonkeyPatch, at_once: int
) -> None:
    every = [noise(GRID, seed) for seed in range(7)]
    model: Any = Counting(enlarged(reasons, SIZE)[None] * 3e-4)
    expected = faithfulness(model, pixels, 1, every)
    monkeypatch.setattr(module, "_BATCH_NUMBERS", at_once * pixels.numel() + 1)
    model.held.clear()
    result = faithfulness(model, pixels, 1, every)
    assert len(model.held) == -(-70 // at_once)
    assert max(model.held) <= 2 * min(at_once, 70) + 2  # its parts and the whole; this picture and the next batch
    assert result == expected
    curve = deletion(model, pixels, 1, every[0], 40)
    assert max(model.held) <= 2 * min(at_once, 70) + 3 and len(curve.probabilities) == 41


def test_memory_estimate_is_that_of_a_batch() -> None:
    config = ViTConfig(image_size=(224, 224))
    small, large = memory(config, (224, 224)), memory(config, (1024, 1024))
    assert 2 * 4 * 3 * 1024**2 * 2 < large < 1.5e9  # two pictures twice, and their pass
    assert small > 55 * 2 * 4 * 3 * 224**2  # 55 of them


def test_probabilities_are_in_the_order_of_the_pictures(model: Any, pixels: Tensor) -> None:
    def each() -> Iterator[Tensor]:
        for factor in range(5):
            yield pixels * factor

    result = probabilities(model, each(), 1)
    assert result.tolist() == [float(model(pixels * factor).logits.softmax(-1)[0, 1]) for factor in range(5)]


def test_pointing_and_overlap() -> None:
    mask = torch.zeros(SIZE, dtype=torch.bool)
    mask[8:16, 8:16] = True
    heatmap = torch.zeros(GRID)
    heatmap[1, 1] = 1
    assert points_at(heatmap, mask) and overlap(heatmap, mask) > 0.7
    assert not points_at(-heatmap, mask) and overlap(-heatmap, mask) < 0.01


def test_blob_is_in_the_middle() -> None:
    result = centre((5, 7))
    assert result.argmax() == 2 * 7 + 3
    torch.testing.assert_close(result, result.flip(0, 1))


def test_model_is_used_as_it_is(build: Any, pictures: Any) -> None:
    model, image = build(), pictures(count=1)
    curve = deletion(model, image, 2, noise((4, 4), 0), steps=4)
    with torch.inference_mode():
        assert curve.probabilities[0] == pytest.approx(float(model(image).logits.softmax(-1)[0, 2]), abs=1e-6)
