"""Queue of forward passes of all visitors: each waits until enough memory is available, first come, first served.

Code inside `reserved` only computes. It must not look up cached results or reserve memory again: a holder of memory
never waits for another one, so there are no deadlocks.
"""

import logging
import math
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import streamlit as st

from pages.server import public
from vit import out_of_memory, view
from vit.devices import memory

SHARE = 0.5  # budget as a share of the memory that was free at the first visit
UNKNOWN = 4_000_000_000  # budget if free memory is unknown [bytes]
HELPS = "Choose a smaller input, or close other programs."
UPDATE_INTERVAL = 0.5  # interval between updates of the position in the queue [s]
WAITS = "The server is computing other visitors' pictures first."
# Memory of a pass with gradients, or of several passes, in multiples of one pass; measured with ViT-B/16: 1.3 and 1.4.
WITH_GRADIENTS = 2

log = logging.getLogger(__name__)


class MemoryQueue:
    """A memory budget with a first-in, first-out queue.

    Args:
        budget: memory that can be reserved [bytes]. A larger request runs alone.
        most: maximum number of simultaneous holders.
    """

    def __init__(self, budget: int, most: float = math.inf):
        self.budget, self.most = budget, most
        self._changed = threading.Condition()
        self._waiting: list[object] = []
        self._reserved: dict[object, int] = {}

    @contextmanager
    def reserve(self, needed: int, tell: Callable[[int], None] = lambda position: None) -> Iterator[None]:
        """Reserve memory while the body runs.

        Args:
            needed: [bytes]
            tell: called periodically with the position in the queue, from 1, while waiting; an exception that it
                raises leaves the queue.
        """
        ticket = object()
        with self._changed:
            self._waiting.append(ticket)
        try:
            while position := self._place(ticket, needed):
                tell(position)
            yield
        finally:
            with self._changed:
                if ticket in self._waiting:
                    self._waiting.remove(ticket)
                self._reserved.pop(ticket, None)
                self._changed.notify_all()

    def _place(self, ticket: object, needed: int) -> int:
        """Wait at most `UPDATE_INTERVAL` seconds; return 0 if memory was reserved, else the position in the queue."""

        def is_next() -> bool:
            used = sum(self._reserved.values())
            fits = len(self._reserved) < self.most and used + needed <= self.budget
            return self._waiting[0] is ticket and (not self._reserved or fits)

        with self._changed:
            if not self._changed.wait_for(is_next, UPDATE_INTERVAL):
                return self._waiting.index(ticket) + 1
            self._waiting.remove(ticket)
            self._reserved[ticket] = needed
            self._changed.notify_all()  # the next one may fit too
            return 0


@st.cache_resource(show_spinner=False)
def _line() -> MemoryQueue:
    budget = int(SHARE * memory()[1]) or UNKNOWN
    if public.is_public():  # in a container, free memory may be reported for the whole machine
        return MemoryQueue(min(budget, public.MAX_PASS_BYTES), public.AT_A_TIME)
    return MemoryQueue(budget)


@contextmanager
def reserved(checkpoint: Any, size: tuple[int, int], times: float = 1, precision: Any = "float32") -> Iterator[None]:
    """Reserve the memory of a forward pass while the body runs; the page shows the position in the queue.

    If memory still runs out, the page shows an error and stops.

    Args:
        checkpoint, size, precision: see `vit.model.cost`.
        times: required memory in multiples of one picture's pass, see `WITH_GRADIENTS`.
    """
    placeholders: list[Any] = []

    def tell(position: int) -> None:
        if not placeholders:
            placeholders.append(st.empty())
        # Writing to the page raises if the run was stopped, so visitors who have left also leave the queue.
        placeholders[0].caption(f"{WAITS} Your position in the queue: {position}.")

    assert not getattr(_here, "computes", False), "reservations must not be nested"
    needed, problem = int(times * view.cost(checkpoint, size, precision).memory), ""
    with _line().reserve(needed, tell):
        for placeholder in placeholders:
            placeholder.empty()
        _here.computes = True
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory.is_out_of_memory(error):
                raise
            log.warning("A pass ran out of memory.", exc_info=error)
            problem = out_of_memory.describe_failure(error, "This", HELPS, needed)
        finally:
            _here.computes = False
    if problem:
        st.error(problem)
        st.stop()


_here = threading.local()
