"""The self-check accepts a correct model and detects wrong ones."""

import threading
from itertools import count
from typing import Any

import pytest
import torch

from vit.explain import record
from vit.explain.self_check import verify
from vit.model import attention


@pytest.mark.parametrize("changes", [{}, {"rope": 100.0}, {"prefix": ("cls", "reg1"), "layer_scale": 0.3}])
def test_recorded_attention_reproduces_the_blocks_outputs(
    build: Any, randomise: Any, pictures: Any, changes: Any
) -> None:
    model = randomise(build(**changes))
    result = verify(model, pictures()[:1])
    assert 0 < result < 1e-5


@pytest.mark.parametrize("wrong", ["scale", "order", "rotation"])
def test_other_attention_than_the_models_is_detected(
    build: Any, randomise: Any, pictures: Any, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    model = randomise(build(rope=100.0))
    right = record.attention_weights
    spoil = {
        "scale": lambda q, k: right(q * 1.01, k),
        "order": lambda q, k: right(q, k).flip(-1),
        "rotation": lambda q, k: right(q.roll(1, -1), k),
    }[wrong]
    monkeypatch.setattr(record, "attention_weights", spoil)
    assert verify(model, pictures()[:1]) > 1e-3


def test_error_in_one_block_is_found(
    build: Any, randomise: Any, pictures: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, calls, right = randomise(build(depth=3)), count(), attention.fused_attention
    monkeypatch.setattr(attention, "fused_attention", lambda q, k, v: right(q, k, v) * (0.9 if next(calls) == 1 else 1))
    result = verify(model, pictures()[:1])
    assert result == pytest.approx(0.1, rel=0.3)
    assert torch.is_inference_mode_enabled() is False


def test_concurrent_passes_of_the_model_do_not_count(build: Any, randomise: Any, pictures: Any) -> None:
    model, over = randomise(build(depth=3)), threading.Event()

    def ask() -> None:
        while not over.is_set():
            model(pictures(count=3))

    other = threading.Thread(target=ask)
    other.start()
    try:
        errors = [verify(model, pictures()[:1]) for _ in range(30)]
    finally:
        over.set()
        other.join()
    assert max(errors) < 1e-5
