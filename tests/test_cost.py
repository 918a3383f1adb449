"""Estimates of durations count the passes of the work; the measured rate is replaced, so that no clock is read."""

from typing import Any

import pytest

from vit.explain import faithfulness_correlation, head_ablation, occlusion
from vit.explain.faithfulness_correlation import random_masks
from vit.model import cost
from vit.model.cost import pass_seconds
from vit.view.captions import format_duration


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Start without measured rates; returns the shapes of the batches that are timed, each as if it took 1 s."""
    shapes: list[tuple[int, ...]] = []
    monkeypatch.setattr(cost, "_rates", {})
    monkeypatch.setattr(cost, "_timed", lambda model, pixels: shapes.append(tuple(pixels.shape)) or 1.0)
    return shapes


@pytest.mark.parametrize(
    ("size", "shape"),
    [
        ((32, 32), (120, 3, 32, 32)),  # of 17 tokens each: 2,040, and 2,048 form a batch
        ((160, 160), (5, 3, 160, 160)),
    ],
)
def test_batches_of_the_work_are_timed(
    build: Any, timed: list[Any], size: tuple[int, int], shape: tuple[int, ...]
) -> None:
    assert pass_seconds(build(), size, 10) == pytest.approx(10 / shape[0])
    assert set(timed) == {shape}


def test_large_picture_is_timed_at_a_smaller_size(
    build: Any, timed: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = build()
    monkeypatch.setattr(cost, "_TIMED_PRODUCTS", 1.0)
    pass_seconds(model, (1024, 1024))
    pass_seconds(model, (32, 48))
    assert set(timed) == {(1, 3, 64, 64), (1, 3, 32, 48)}


def test_models_of_one_architecture_are_timed_once(build: Any, timed: list[Any]) -> None:
    for model, times in ((build(), 1), (build(seed=1), 1), (build(depth=1), 2), (build().double(), 3)):
        pass_seconds(model, (32, 32))
        assert len(timed) == 3 * times


def test_estimated_passes_are_those_of_the_work(build: Any, pictures: Any, timed: list[Any]) -> None:
    """The rows that go through a block's MLP are counted, since some work runs parts of the model only."""
    model, image, rows = build(depth=4), pictures(count=1), list[int]()
    masks = random_masks(16, 13)
    each = pass_seconds(model, (32, 32))
    for block in model.blocks:
        block.mlp.register_forward_pre_hook(lambda module, inputs: rows.append(len(inputs[0])))
    for estimate, work in (
        (
            faithfulness_correlation.seconds(model, (32, 32), 13),
            lambda: faithfulness_correlation.score_drops(model, image, 1, masks),
        ),
        (occlusion.occlusion_seconds(model, (32, 32)), lambda: occlusion.occlusion(model, image)),
        (head_ablation.importance_seconds(model, (32, 32)), lambda: head_ablation.importance(model, image, 1)),
    ):
        rows.clear()
        work()
        assert 0.5 < estimate / each / (sum(rows) / model.config.depth) <= 1


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.0, "a moment"), (1.9, "a few seconds"), (7.9, "a few seconds"), (30, "about half a minute"),
        (78, "about a minute"), (432, "some minutes"), (480, "about 10 minutes"), (3119, "about 50 minutes"),
        (3600, "about an hour"), (40_000, "about 11 hours"), (86_400 * 9.4, "about 9 days"), (1e12, "years"),
    ],
)  # fmt: skip
def test_durations_are_worded_by_their_order(seconds: float, words: str) -> None:
    assert format_duration(seconds) == words
