"""SaCo, deletion and insertion: by hand, on a model whose reasons are known, and by the paper's own words."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from vit.faithfulness import (
    Faithfulness,
    centre,
    controls,
    deletion,
    enlarged,
    faithfulness,
    groups,
    insertion,
    noise,
    overlap,
    points_at,
    saco,
)

GRID, SIZE = (4, 5), (32, 40)


class Weighing:
    """A model whose logit for class 1 is a weighted sum of pixels, so what it relies on is known."""

    def __init__(self, weights: Tensor):
        self.weights = weights
        self.images = 0

    def __call__(self, images: Tensor) -> SimpleNamespace:
        self.images += len(images)
        score = (images * self.weights).sum((1, 2, 3))
        return SimpleNamespace(logits=torch.stack([torch.zeros_like(score), score], 1))


@pytest.fixture
def reasons() -> Tensor:
    """(rows, cols), no two alike."""
    return torch.randperm(20, generator=torch.Generator().manual_seed(2)).float().view(GRID)


@pytest.fixture
def model(reasons: Tensor) -> Any:
    return Weighing(enlarged(reasons, SIZE)[None] * 3e-4)


@pytest.fixture
def pixels() -> Tensor:
    """Brighter than its mean everywhere but in a corner, which holds the difference."""
    image = torch.ones(1, 3, *SIZE)
    image[..., :2, :2] = -100
    return image


def by_the_paper(salience: list[float], drops: list[float]) -> float:
    """Algorithm 1, one pair after the other."""
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
def test_saco_is_that_of_the_paper(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    salience, drops = torch.rand(10, generator=generator), torch.randn(10, generator=generator)
    assert saco(salience, drops) == pytest.approx(by_the_paper(salience.tolist(), drops.tolist()))


def test_saco_ends_at_one_and_minus_one() -> None:
    rising = torch.arange(6.0)
    assert saco(rising, rising) == 1 and saco(rising, -rising) == -1
    assert saco(torch.ones(6), rising) == 0  # a map that says nothing


def test_groups_are_of_equal_size_and_ordered() -> None:
    heatmap = noise(GRID, 0)
    group, salience = groups(heatmap, SIZE, 7)
    counts = group.flatten().bincount()
    assert len(counts) == 7 and counts.max() - counts.min() <= 1
    pixel = enlarged(heatmap, SIZE)
    assert all(pixel[group == i].min() >= pixel[group == i + 1].max() for i in range(6))
    torch.testing.assert_close(salience.sum(), pixel.double().sum())


def test_the_true_map_wins_and_its_opposite_loses(model: Any, pixels: Tensor, reasons: Tensor) -> None:
    true, upside_down, flat = faithfulness(model, pixels, 1, [reasons, -reasons, torch.ones(GRID)])
    assert model.images == 30  # ten forwards a map
    assert true > 0.9 and upside_down < -0.9 and flat == 0
    found = controls(model, pixels, 1, GRID)
    assert len(found.random) == 5 and max(map(abs, (*found.random, found.blob))) < true
    for other_class in faithfulness(model, pixels, 0, [reasons]):
        assert other_class < -0.9


def test_random_maps_are_near_zero_on_average(model: Any, pixels: Tensor) -> None:
    found = faithfulness(model, pixels, 1, [noise(GRID, seed) for seed in range(200)])
    assert abs(sum(found) / 200) < 0.1


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


def test_a_curve_s_area_by_hand() -> None:
    from vit.faithfulness import Curve

    assert Curve((0.0, 0.5, 1.0), (1.0, 0.5, 0.0)).area == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("value", "words"),
    [(0.9, "and better than a blob"), (0.5, "no better than a blob"), (0.1, "no better than chance")],
)
def test_the_verdict_follows_the_controls(value: float, words: str) -> None:
    assert words in Faithfulness(value, (-0.1, 0.0, 0.1, 0.05, -0.05), 0.6).words


def test_pointing_and_overlap() -> None:
    mask = torch.zeros(SIZE, dtype=torch.bool)
    mask[8:16, 8:16] = True
    heatmap = torch.zeros(GRID)
    heatmap[1, 1] = 1
    assert points_at(heatmap, mask) and overlap(heatmap, mask) > 0.7
    assert not points_at(-heatmap, mask) and overlap(-heatmap, mask) < 0.01


def test_the_blob_is_in_the_middle() -> None:
    found = centre((5, 7))
    assert found.argmax() == 2 * 7 + 3
    torch.testing.assert_close(found, found.flip(0, 1))


def test_the_model_is_asked_as_it_is(build: Any, pictures: Any) -> None:
    model, image = build(), pictures(count=1)
    curve = deletion(model, image, 2, noise((4, 4), 0), steps=4)
    with torch.inference_mode():
        assert curve.probabilities[0] == pytest.approx(float(model(image).logits.softmax(-1)[0, 2]), abs=1e-6)
