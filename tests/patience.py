"""Wait for a state, however busy the machine is. No other test reads a clock."""

import sys
import time
from collections.abc import Callable
from typing import TypeVar

PATIENCE = 600  # timeout [s]; generous, since no test is about speed
T = TypeVar("T")


def until(condition: Callable[[], T], what: str | Callable[[], str], pause: float = 0.05) -> T:
    """Wait until a condition holds, and return its value.

    Args:
        what: description of the condition, for the error.
        pause: between two checks [s].

    Raises:
        AssertionError: the condition did not hold in time.
    """
    give_up = time.monotonic() + PATIENCE
    while time.monotonic() < give_up:
        if result := condition():
            return result
        time.sleep(pause)
    raise AssertionError(f"It never came: {what if isinstance(what, str) else what()}")


def calls_in(work: Callable[[], object]) -> int:
    """Count the calls of Python and C functions in a piece of work: a measure of cost that is the same on every
    machine.
    """
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
