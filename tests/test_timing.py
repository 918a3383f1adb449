"""Estimates of durations, with a clock that only the tests advance."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from vit.explain import head_ablation, occlusion, sensitivity, timing
from vit.explain.timing import Kind, Pace, WorkSample, expected, piece_size
from vit.view.captions import format_duration

SMALL, LARGE = Kind("verdict", (32, 32)), Kind("verdict", (64, 64))


class Clock:
    """A clock that only advances explicitly."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def taking(self, *seconds: float) -> Callable[[], None]:
        """Return work that takes `first` on its first call, the next on its second, and the last from then on."""
        left = list(seconds)

        def work() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]

        return work


class Architecture:
    """An object that can be distinguished from others."""


@pytest.fixture(autouse=True)
def clear_measurements(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start without earlier measurements."""
    monkeypatch.setattr(timing, "PACE", Pace())


@pytest.fixture
def clock() -> Clock:
    return Clock()


def estimate(
    one: Pace, model: Architecture, kind: Kind, passes: float, work: Callable[[], Any], products: float = 1.0
) -> float:
    """Estimate with pieces of one pass at 32 px, of one product."""
    return one.expected(model, kind, passes, products, lambda: WorkSample(SMALL, 1.0, work))


def test_actual_duration_at_another_size_replaces_the_sample(clock: Clock) -> None:
    pace, model = Pace(clock), Architecture()
    with pace.timed(model, SMALL, passes=2, products=1.0):
        clock.now += 6.0
    assert estimate(pace, model, LARGE, 5, clock.taking(100.0), products=4.0) == pytest.approx(5 * 4 * 3.0)
    assert clock.now == 6.0, "the sample was run"


def test_fastest_of_several_pieces_counts(clock: Clock) -> None:
    assert estimate(Pace(clock), Architecture(), SMALL, 10, clock.taking(0.9, 0.02, 0.03)) == pytest.approx(0.2)


def test_slow_pieces_are_timed_only_twice(clock: Clock) -> None:
    assert estimate(Pace(clock), Architecture(), SMALL, 10, clock.taking(5, 3)) == pytest.approx(30)
    assert clock.now == 8


def test_piece_is_timed_once(clock: Clock) -> None:
    one, model = Pace(clock), Architecture()
    first = estimate(one, model, SMALL, 10, clock.taking(0.2))
    spent = clock.now
    assert estimate(one, model, SMALL, 20, clock.taking(99)) == pytest.approx(2 * first)
    assert estimate(one, model, LARGE, 10, clock.taking(99), products=6) == pytest.approx(6 * first)
    assert clock.now == spent


def test_estimate_follows_measured_durations(clock: Clock) -> None:
    one, model = Pace(clock), Architecture()
    assert estimate(one, model, SMALL, 220, clock.taking(0.6)) == pytest.approx(132)
    for seconds in (3.8, 1.9, 7.9):
        with one.timed(model, SMALL, 220, 1.0):
            clock.now += seconds
    assert estimate(one, model, SMALL, 220, clock.taking(0.6)) == pytest.approx(1.9)
    for _ in range(3):  # the machine has become slower
        with one.timed(model, SMALL, 110, 1.0):
            clock.now += 4
    assert estimate(one, model, SMALL, 220, clock.taking(0.6)) == pytest.approx(8)


def test_measurement_of_one_model_corrects_the_estimate_of_another(clock: Clock) -> None:
    one, known, new = Pace(clock), Architecture(), Architecture()
    estimate(one, known, SMALL, 10, clock.taking(1))
    with one.timed(known, SMALL, 10, 1.0):
        clock.now += 3  # not 10
    assert estimate(one, new, SMALL, 10, clock.taking(2)) == pytest.approx(20 * 0.3)
    assert estimate(one, new, Kind("census", (32, 32)), 10, clock.taking(2)) == pytest.approx(20), "that is other work"
    assert estimate(one, new, LARGE, 10, clock.taking(2), products=4) == pytest.approx(80), "from a smaller piece"


def test_failed_work_is_not_measured(clock: Clock) -> None:
    one, model = Pace(clock), Architecture()
    with pytest.raises(KeyError), one.timed(model, SMALL, 10, 1.0):
        clock.now += 1
        raise KeyError
    assert estimate(one, model, SMALL, 10, clock.taking(2)) == pytest.approx(20)


@pytest.mark.parametrize(
    ("size", "per_batch", "batch"),
    [
        ((32, 32), 1, (1, 32)),
        ((32, 32), 50, (50, 32)),
        ((32, 32), 9999, (120, 32)),  # of 17 tokens each: 2,040, and 2,048 form a batch
        ((160, 160), 9999, (5, 160)),
    ],
)
def test_piece_is_done_in_the_batches_of_the_work(
    build: Any, size: tuple[int, int], per_batch: int, batch: tuple[int, int]
) -> None:
    collected: list[torch.Tensor] = []
    expected(build(), Kind("verdict", size), 10, collected.append, per_batch)
    assert len(collected) >= 2 and {(len(pixels), pixels.shape[2]) for pixels in collected} == {batch}


def test_models_of_one_architecture_are_timed_once(build: Any) -> None:
    collected: list[torch.Tensor] = []
    kind = Kind("verdict", (32, 32))
    assert expected(build(), kind, 10, collected.append) > 0
    timed = len(collected)
    assert expected(build(seed=1), kind, 10, collected.append) > 0 and len(collected) == timed
    for other in (build(depth=1), build().double()):
        before = len(collected)
        assert expected(other, kind, 10, collected.append) > 0 and len(collected) > before


def test_large_picture_is_estimated_from_a_smaller_one(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model = build()
    assert piece_size(model.config, (256, 256)) == (256, 256), "this model is small"
    monkeypatch.setattr(timing, "PIECE_PRODUCTS", 1.0)
    assert piece_size(model.config, (1024, 1024)) == (64, 64) and piece_size(model.config, (32, 48)) == (32, 48)


def test_measured_durations_replace_estimates(
    build: Any, pictures: Any, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """Call the functions that do the work, with a clock that advances by 1 s at every reading."""

    def later() -> float:
        clock.now += 1
        return clock.now

    monkeypatch.setattr(timing, "PACE", Pace(later))
    model, image = build(), pictures(count=1)
    sensitivity.score_drops(model, image, 1, sensitivity.random_masks(16, 6))
    occlusion.occlusion(model, image)
    head_ablation.importance(model, image, 1)
    assert sensitivity.seconds(model, (32, 32), 13) == pytest.approx(2)  # one pass per mask, and one without
    assert occlusion.occlusion_seconds(model, (32, 32)) == pytest.approx(1)
    assert head_ablation.importance_seconds(model, (32, 32)) == pytest.approx(1)


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
