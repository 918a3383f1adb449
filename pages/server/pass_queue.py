"""Passes through models, for all visitors together: each waits until there is memory for it, in the order they came.

Only what computes stands inside `reserved`, and never what asks for something remembered or reserves again: who holds
memory waits for nobody, so nobody waits forever.
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

SHARE = 0.5  # of the memory that was free when the first visitor came
UNKNOWN = 4_000_000_000  # [bytes] where the machine does not say
HELPS = "Choose a smaller input, or close other programs."
BEAT = 0.5  # [s] between two words to who waits
WAITS = "Others' pictures come first: what they need of this server is in use."
KEPT = 2  # times what a pass takes, for one that keeps its gradients, or several; measured with ViT-B/16: 1.3 and 1.4

log = logging.getLogger(__name__)


class Line:
    """Memory that is handed out; who finds none left waits in line.

    Args:
        budget: to hand out [bytes]. What needs more than all of it goes alone.
        most: that hold some at a time.
    """

    def __init__(self, budget: int, most: float = math.inf):
        self.budget, self.most = budget, most
        self._changed = threading.Condition()
        self._waiting: list[object] = []
        self._reserved: dict[object, int] = {}

    @contextmanager
    def reserve(self, needed: int, tell: Callable[[int], None] = lambda position: None) -> Iterator[None]:
        """Hold memory while the body runs.

        Args:
            needed: [bytes]
            tell: called with the place in the line, from 1, every now and then while it waits; what it raises ends the
                waiting.
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
        """Wait for a moment; 0 once the memory is reserved, else the place in the line."""

        def goes() -> bool:
            used = sum(self._reserved.values())
            fits = len(self._reserved) < self.most and used + needed <= self.budget
            return self._waiting[0] is ticket and (not self._reserved or fits)

        with self._changed:
            if not self._changed.wait_for(goes, BEAT):
                return self._waiting.index(ticket) + 1
            self._waiting.remove(ticket)
            self._reserved[ticket] = needed
            self._changed.notify_all()  # the next one may fit too
            return 0


@st.cache_resource(show_spinner=False)
def _line() -> Line:
    budget = int(SHARE * memory()[1]) or UNKNOWN
    if public.is_public():  # what is free may be the whole machine's, of which a container has a part
        return Line(min(budget, public.PASSES), public.AT_A_TIME)
    return Line(budget)


@contextmanager
def reserved(checkpoint: Any, size: tuple[int, int], times: float = 1, precision: Any = "float32") -> Iterator[None]:
    """Hold the memory that a pass takes while the body runs it; the page says for how many it waits.

    Where memory runs out all the same, the page says so and ends there.

    Args:
        checkpoint, size, precision: see `vit.explain.cost`.
        times: as much as one picture's pass, see `KEPT`.
    """
    placeholders: list[Any] = []

    def tell(position: int) -> None:
        if not placeholders:
            placeholders.append(st.empty())
        # Streamlit ends a run that was stopped where it writes to the page, so who has left leaves the line too.
        placeholders[0].caption(f"{WAITS} You are number {position} in the line.")

    assert not getattr(_here, "computes", False), "what computes reserves once"
    needed, problem = int(times * view.cost(checkpoint, size, precision).memory), ""
    with _line().reserve(needed, tell):
        for one in placeholders:
            one.empty()
        _here.computes = True
        try:
            yield
        except (RuntimeError, MemoryError) as error:
            if not out_of_memory.is_out_of_memory(error):
                raise
            log.warning("A pass ran out of memory.", exc_info=error)
            problem = out_of_memory.explained(error, "This", HELPS, needed)
        finally:
            _here.computes = False
    if problem:
        st.error(problem)
        st.stop()


_here = threading.local()
