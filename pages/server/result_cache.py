"""Expensive work, done once for everybody and remembered within a budget of memory.

Streamlit's own caches count results; of pictures of 4,097 tokens, six take gigabytes.
"""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any, NamedTuple

import streamlit as st
from PIL import Image

from pages.server import public
from pages.server.housekeeping import trim
from pages.streamlit_internals.sessions import current_id

TELL_ABOVE = 3.0  # [s]; what takes longer tells how long
ASK_ABOVE = 20.0  # [s]; what takes longer waits for a button
BUDGET = 1_000_000_000  # [bytes] of all results together; the newest one stays, however large
LARGE = 50_000_000  # [bytes] that are worth giving back at once
MODELS = 3  # that are remembered; results of others go, as they would keep their models


class Memory:
    """Results by their keys; the longest unused ones go first."""

    def __init__(self, budget: int = BUDGET):
        self.budget = budget
        self._lock = threading.Lock()
        self._found: OrderedDict[Hashable, _Found] = OrderedDict()
        self._turns: dict[Hashable, threading.Lock] = {}

    def get(self, key: Hashable, work: Callable[[], Any]) -> Any:
        """What `work` gave the first time; who asks meanwhile waits for it."""
        with self._lock:
            turn = self._turns.setdefault(key, threading.Lock())
        try:
            with turn:
                with self._lock:
                    if key in self._found:
                        self._found.move_to_end(key)
                        self._found[key].visits.add(current_id())
                        return self._found[key].result
                result = work()
                with self._lock:
                    self._found[key] = _Found(result, size_of(result), models_of(result), {current_id()})
                    freed = self._make_room()
                if freed > LARGE:
                    trim()
                return result
        finally:
            with self._lock:
                self._turns.pop(key, None)

    def stay(self, visits: set[str]) -> None:
        """Forget what only others needed than those visits that are still here."""
        with self._lock:
            for key, one in list(self._found.items()):
                one.visits.intersection_update(visits)
                if not one.visits:
                    del self._found[key]

    def _make_room(self) -> int:
        """Drop what is over the budget, or of models that were not used lately; how much that was [bytes]."""
        before, models = sum(one.size for one in self._found.values()), set[int]()
        for key in reversed(list(self._found)):
            if len(models | self._found[key].models) > MODELS and len(models):
                del self._found[key]
            else:
                models |= self._found[key].models
        while len(self._found) > 1 and sum(one.size for one in self._found.values()) > self.budget:
            self._found.popitem(last=False)
        return before - sum(one.size for one in self._found.values())


class _Found(NamedTuple):
    """A result with its size [bytes], the models that it holds on to, by their ids, and the visits that needed it."""

    result: Any
    size: int
    models: frozenset[int]
    visits: set[str]


def size_of(value: Any) -> int:
    """Memory of the tensors, arrays, bytes and pictures in a result [bytes]; models, which others use too, are free.

    >>> size_of((b"12345", {"a": b"12"}, "free"))
    7
    """
    if isinstance(value, bytes):
        return len(value)
    if isinstance(value, Image.Image):
        return value.width * value.height * len(value.getbands())
    if isinstance(value, Mapping):
        return sum(map(size_of, value.values()))
    if isinstance(value, list | tuple):
        return sum(map(size_of, value))
    if is_dataclass(value):
        return sum(size_of(getattr(value, field.name)) for field in fields(value))
    return int(value.nbytes) if hasattr(value, "nbytes") else 0


def models_of(value: Any) -> frozenset[int]:
    """The models in a result, by the ids of their first weights: with other classes, a model is the same one."""
    if callable(getattr(value, "parameters", None)):
        return frozenset(map(id, islice(value.parameters(), 1)))
    if isinstance(value, Mapping):
        return frozenset().union(*map(models_of, value.values()))
    if isinstance(value, list | tuple):
        return frozenset().union(*map(models_of, value))
    if is_dataclass(value):
        return frozenset().union(*(models_of(getattr(value, field.name)) for field in fields(value)))
    return frozenset()


@st.cache_resource(show_spinner=False)
def _memory() -> Memory:
    return Memory(public.RESULTS if public.is_public() else BUDGET)


def stay(visits: set[str]) -> None:
    """Forget what only others needed than those visits that are still here."""
    _memory().stay(visits)


def cached(key: Hashable, work: Callable[[], Any]) -> Any:
    """What some work gives, computed the first time.

    Args:
        key: tells it from all other work.
    """
    return _memory().get(key, work)


def with_bar(key: Hashable, text: str, work: Callable[[Callable[[float], object]], Any]) -> Any:
    """The same, with a bar meanwhile.

    Args:
        text: what the bar says.
        work: is given what to call with the share that is done.
    """
    placeholder = st.empty()  # there in every run, so that what follows keeps its own place

    def drawn() -> Any:
        placeholder.progress(0.0, text)
        result = work(lambda share: placeholder.progress(min(share, 1.0), text))
        placeholder.empty()
        return result

    return cached(key, drawn)
