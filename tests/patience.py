"""Waiting for a state, on a machine as busy as it may be. No other test reads a clock."""

import sys
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 600  # [s] until a test gives up on what never comes; how long it takes is no test's business
T = TypeVar("T")


def until(condition: Callable[[], T], what: str | Callable[[], str], pause: float = 0.05) -> T:
    """Wait until a condition holds, and return what it gave.

    Args:
        what: was waited for, in words.
        pause: between two looks [s].

    Raises:
        AssertionError: it never held.
    """
    give_up = time.monotonic() + PATIENCE
    while time.monotonic() < give_up:
        if result := condition():
            return result
        time.sleep(pause)
    raise AssertionError(f"It never came: {what if isinstance(what, str) else what()}")


def calls_in(work: Callable[[], object]) -> int:
    """How many calls of Python and C functions a piece of work makes: its length, the same on every machine."""
    count = 0

    def note(frame: object, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count
