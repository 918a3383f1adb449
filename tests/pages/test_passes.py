"""Memory for passes is granted in order, within a budget, and nobody waits forever."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from patience import PATIENCE
from streamlit.testing.v1 import AppTest

from pages.server import pass_queue, result_cache
from pages.server.pass_queue import MemoryQueue
from tests.pages.controls import app_page

ROOT = Path(__file__).parents[2]


class Visitor(threading.Thread):
    """Reserves memory, reports it, and holds it until released."""

    def __init__(
        self, line: MemoryQueue, needed: int, order: list["Visitor"], leave: Callable[[], bool] = lambda: False
    ):
        super().__init__(daemon=True)
        self.line, self.needed, self.order, self.leave = line, needed, order, leave
        self.waits, self.computes, self.go = threading.Event(), threading.Event(), threading.Event()
        self.places: list[int] = []
        self.start()

    def tell(self, place: int) -> None:
        self.places.append(place)
        self.waits.set()
        if self.leave():
            raise InterruptedError

    def run(self) -> None:
        try:
            with self.line.reserve(self.needed, self.tell):
                self.order.append(self)
                self.computes.set()
                self.go.wait(PATIENCE)
        except InterruptedError:
            self.go.set()


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pass_queue, "UPDATE_INTERVAL", 0.01)


def test_passes_share_the_budget_and_the_rest_queue() -> None:
    line, order = MemoryQueue(100), list[Visitor]()
    one, two = Visitor(line, 60, order), None
    assert one.computes.wait(PATIENCE)
    two = Visitor(line, 60, order)
    assert two.waits.wait(PATIENCE)
    three = Visitor(line, 10, order)  # it would fit, but is behind
    assert three.waits.wait(PATIENCE)
    assert (two.places[-1], three.places[-1]) == (1, 2) and order == [one]
    one.go.set()
    assert two.computes.wait(PATIENCE) and three.computes.wait(PATIENCE)
    assert order == [one, two, three]


def test_pass_larger_than_the_budget_runs_alone() -> None:
    line, order = MemoryQueue(100), list[Visitor]()
    small = Visitor(line, 10, order)
    assert small.computes.wait(PATIENCE)
    huge = Visitor(line, 1000, order)
    assert huge.waits.wait(PATIENCE)
    small.go.set()
    assert huge.computes.wait(PATIENCE)


def test_cancelled_visitor_does_not_block_the_queue() -> None:
    line, order, left = MemoryQueue(100), list[Visitor](), threading.Event()
    one = Visitor(line, 100, order)
    assert one.computes.wait(PATIENCE)
    two = Visitor(line, 100, order, left.is_set)
    assert two.waits.wait(PATIENCE)
    three = Visitor(line, 100, order)
    assert three.waits.wait(PATIENCE)
    left.set()
    two.join(PATIENCE)
    one.go.set()
    assert three.computes.wait(PATIENCE) and order == [one, three]


def test_failed_pass_releases_its_memory() -> None:
    line = MemoryQueue(100)
    with pytest.raises(ZeroDivisionError), line.reserve(100):
        raise ZeroDivisionError
    with line.reserve(100, lambda place: pytest.fail("it waits")):
        pass


def test_page_shows_the_queue_position_and_a_stopped_run_leaves_it(monkeypatch: pytest.MonkeyPatch) -> None:
    line, nothing = MemoryQueue(10), result_cache.ResultCache()  # forget requests of other tests
    monkeypatch.setattr(pass_queue, "_line", lambda: line)
    monkeypatch.setattr(result_cache, "_memory", lambda: nothing)
    told: list[Any] = []
    real = MemoryQueue._place

    def place(self: MemoryQueue, ticket: object, needed: int) -> int:
        found = real(self, ticket, needed)
        if found and threading.current_thread() is not threading.main_thread():
            told.append(found)
            if len(told) == 3:
                gone.set()  # the one that computes is done
        return found

    monkeypatch.setattr(MemoryQueue, "_place", place)
    gone, holds = threading.Event(), threading.Event()

    def hold() -> None:
        with line.reserve(10):
            holds.set()
            gone.wait(PATIENCE)

    threading.Thread(target=hold, daemon=True).start()
    assert holds.wait(PATIENCE)
    app_page()
    assert told[:3] == [1, 1, 1]
    assert not line._waiting and not line._reserved


def test_pass_that_runs_out_of_memory_is_reported_in_one_sentence() -> None:
    def page() -> None:
        import streamlit as st
        import torch

        import vit
        from pages.server import pass_queue

        checkpoint = vit.load_checkpoint("cifar10")
        with pass_queue.reserved(checkpoint, checkpoint.preprocess.size):
            torch.empty(1 << 60, dtype=torch.uint8)
        st.write("What comes after it.")

    run = AppTest.from_function(page, default_timeout=PATIENCE).run()
    assert not run.exception and not run.markdown
    (error,) = run.error
    assert error.value.startswith("This ran out of memory: it needs about")
    assert error.value.endswith("free. Choose a smaller input, or close other programs.")
