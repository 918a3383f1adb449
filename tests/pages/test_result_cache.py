"""The page's cache: computes once, within a budget."""

import gc
import threading
import weakref
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from patience import PATIENCE
from PIL import Image
from streamlit.testing.v1 import AppTest

from pages.server.result_cache import MODELS, ResultCache, models_of, size_of
from vit.explain.recorded_pass import RecordedPass


class Large(NamedTuple):
    """A result of so many bytes."""

    content: bytes


def test_results_are_cached_and_failures_retried() -> None:
    memory, done = ResultCache(), []
    for _ in range(2):
        assert memory.get("a", lambda: done.append(1) or "result") == "result"
    with pytest.raises(OSError):
        memory.get("b", Path("/nowhere/at/all").read_bytes)
    assert memory.get("b", lambda: "then") == "then" and done == [1]


def test_least_recently_used_results_are_dropped_and_the_newest_is_kept() -> None:
    memory, made = ResultCache(budget=100), []

    def get(name: str, size: int = 40) -> None:
        memory.get(name, lambda: made.append(name) or Large(bytes(size)))

    for name in ("a", "b", "a", "c", "a", "b"):  # c replaces b
        get(name)
    assert made == ["a", "b", "c", "b"]
    get("huge", 1000)
    get("huge", 1000)
    assert made[4:] == ["huge"]
    get("a")
    assert made[5:] == ["a"]


def test_concurrent_requests_wait_for_the_same_computation() -> None:
    memory, made, begun = ResultCache(), [], threading.Event()

    def work() -> str:
        begun.set()
        made.append(threading.get_ident())
        return str(len(made))

    threads = [threading.Thread(target=memory.get, args=("a", work)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert begun.is_set() and len(made) == 1


def test_tensors_count_and_the_model_does_not(build, pictures) -> None:
    model, picture = build(), pictures(count=1)
    recorded = RecordedPass.of_class(model, picture, 3)
    numbers = [*recorded.record.queries, *recorded.record.keys, *recorded.record.values, *recorded.record.gradients]
    least = sum(tensor.nbytes for tensor in numbers)
    assert least < size_of(recorded) < least * 1.2 + picture.nbytes
    assert size_of(Image.new("RGB", (10, 20))) == 600 and size_of({"a": torch.zeros(3)}) == 12


def test_results_are_dropped_with_least_recently_used_models(build) -> None:
    memory, made = ResultCache(), []

    def get(name: str, *held) -> None:
        memory.get(name, lambda: made.append(name) or held)

    models = [build(seed) for seed in range(MODELS + 1)]
    for number, model in enumerate(models):
        get(f"first of {number}", model)
        get(f"second of {number}", {"nested": [model]})
    get("of none")
    kept = [weakref.ref(model) for model in models]
    del models, model
    gc.collect()
    assert [one() is None for one in kept] == [True] + [False] * MODELS
    get("first of 1")
    get("of none")
    assert "first of 1" in made and made.count("first of 1") == made.count("of none") == 1


def test_model_with_other_classes_counts_once(build) -> None:
    model = build()
    other = model.with_head(torch.nn.Linear(model.config.dim, 2), 2)
    assert models_of({"one": model, "other": (other,)}) == models_of(model) != models_of(build(seed=1))


def test_element_after_a_progress_bar_keeps_its_place() -> None:
    def page() -> None:
        import streamlit as st

        from pages.server.result_cache import with_bar

        st.text(with_bar("a bar that keeps its place", "Working…", lambda tell: [tell(0.5), "done"][1]))

    shown = AppTest.from_function(page, default_timeout=PATIENCE).run()
    places = [place for place, one in shown.main.children.items() if one.type == "text"]
    again = shown.run()
    assert not again.exception and again.text[0].value == "done"
    assert [place for place, one in again.main.children.items() if one.type == "text"] == places
