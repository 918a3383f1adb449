"""A cache of expensive results that all visitors share, with a memory budget.

Streamlit's own caches limit the number of entries, but six results with 4,097 tokens take gigabytes.
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
from pages.server.session_cleanup import trim
from pages.streamlit_internals.sessions import current_id

SHOW_DURATION_ABOVE_SECONDS = 2.0  # show the expected duration of longer computations [s]
BUTTON_ABOVE_SECONDS = 20.0  # longer computations start with a button [s]
BUDGET = 1_000_000_000  # size of all results [bytes]; the newest one stays, however large
LARGE = 50_000_000  # return this much freed memory to the operating system at once [bytes]
MODELS = 3  # models with cached results; results of more models would keep those in memory


class ResultCache:
    """A thread-safe LRU cache that computes each result once."""

    def __init__(self, budget: int = BUDGET):
        self.budget = budget
        self._lock = threading.Lock()
        self._entries: OrderedDict[Hashable, _Entry] = OrderedDict()
        self._key_locks: dict[Hashable, threading.Lock] = {}  # so that threads compute different keys in parallel

    def get(self, key: Hashable, work: Callable[[], Any]) -> Any:
        """Return the cached result, or call `work`; concurrent calls with the same key wait for the first one."""
        with self._lock:
            key_lock = self._key_locks.setdefault(key, threading.Lock())
        try:
            with key_lock:
                with self._lock:
                    if key in self._entries:
                        self._entries.move_to_end(key)
                        self._entries[key].visits.add(current_id())
                        return self._entries[key].result
                result = work()
                with self._lock:
                    self._entries[key] = _Entry(result, size_of(result), models_of(result), {current_id()})
                    freed = self._make_room()
                if freed > LARGE:
                    trim()
                return result
        finally:
            with self._lock:
                self._key_locks.pop(key, None)

    def retain(self, visits: set[str]) -> None:
        """Delete results that none of these visits used."""
        with self._lock:
            for key, entry in list(self._entries.items()):
                entry.visits.intersection_update(visits)
                if not entry.visits:
                    del self._entries[key]

    def _make_room(self) -> int:
        """Evict results over the budget and those of the least recently used models; return the freed size [bytes]."""
        before, models = sum(entry.size for entry in self._entries.values()), set[int]()
        for key in reversed(list(self._entries)):
            if len(models | self._entries[key].models) > MODELS and len(models):
                del self._entries[key]
            else:
                models |= self._entries[key].models
        while len(self._entries) > 1 and sum(entry.size for entry in self._entries.values()) > self.budget:
            self._entries.popitem(last=False)
        return before - sum(entry.size for entry in self._entries.values())


class _Entry(NamedTuple):
    """A cached result.

    Attributes:
        size: [bytes]
        models: ids of models that the result references.
        visits: session ids that used it.
    """

    result: Any
    size: int
    models: frozenset[int]
    visits: set[str]


def size_of(value: Any) -> int:
    """Return the size of the tensors, arrays, bytes and pictures in a result [bytes]. Models are shared: they count 0.

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
    """Return the models in a result, by the id of their first parameter, which models with other classes share."""
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
def _memory() -> ResultCache:
    return ResultCache(public.RESULTS if public.is_public() else BUDGET)


def retain(visits: set[str]) -> None:
    """Delete cached results that none of these visits used."""
    _memory().retain(visits)


def cached(key: Hashable, work: Callable[[], Any]) -> Any:
    """Return the cached result of `work`, which the first call computes.

    Args:
        key: identifies the work.
    """
    return _memory().get(key, work)


def with_bar(key: Hashable, text: str, work: Callable[[Callable[[float], object]], Any]) -> Any:
    """Return the cached result of `work`, with a progress bar while it is computed.

    Args:
        text: label of the bar.
        work: called with a callback that takes the progress, 0 to 1.
    """
    placeholder = st.empty()  # created in every run, so that later elements keep their positions

    def work_with_bar() -> Any:
        placeholder.progress(0.0, text)
        result = work(lambda share: placeholder.progress(min(share, 1.0), text))
        placeholder.empty()
        return result

    return cached(key, work_with_bar)
