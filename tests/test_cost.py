"""Estimates of durations follow the work, and the machine is measured once per architecture."""

from typing import Any

import pytest

from vit.explain import head_ablation, occlusion, sensitivity
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
    first = pass_seconds(build(), (32, 32))
    done = len(timed)
    assert pass_seconds(build(seed=1), (32, 32), 2) == pytest.approx(2 * first) and len(timed) == done
    for other in (build(depth=1), build().double()):
        before = len(timed)
        assert pass_seconds(other, (32, 32)) > 0 and len(timed) > before


def test_work_takes_the_time_of_its_passes(build: Any, timed: list[Any]) -> None:
    model = build()
    each = pass_seconds(model, (32, 32))
    assert sensitivity.seconds(model, (32, 32), 13) == pytest.approx(14 * each)  # one per mask, and one without
    assert occlusion.occlusion_seconds(model, (32, 32)) == pytest.approx(16 * each)
    heads = model.config.depth * model.config.heads
    assert head_ablation.importance_seconds(model, (32, 32)) == pytest.approx(heads / 2 * each)


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
