"""What a button changes: whether the visitor may, and what came of it, said once when the page runs again."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import streamlit as st

from pages.links import session
from pages.server import access
from pages.shared.escape import plain
from vit.errors import UserError

_DOUBLE = 1.0  # [s] within which the same change is a double click


@dataclass
class _Changes:
    """A session's last change that worked, and what is still to be said of changes: whether it worked, and words.

    The lock is there because Streamlit runs a second click's callback beside the first one's.
    """

    lock: Lock = field(default_factory=Lock)
    change: tuple[Any, ...] = ()
    result: Any = None
    when: float = 0.0
    outcome: tuple[bool, str] = (True, "")


def attempt(what: str, done: str, action: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Change something, from a button's callback; `tell` says what came of it. A double click changes it once.

    Args:
        what: is changed, for a visitor who may not.
        done: said when it worked; "" for nothing, and for what a second click shall change further.

    Returns:
        What the action returns; None if it was not to be.
    """
    try:
        if not access.may_train():
            raise UserError(f"You may look at {what} here, but not change them.")
        last = session.of(_Changes)
        change = action, done, *(argument for argument in arguments if isinstance(argument, str))
        with last.lock:
            if not done or change != last.change or time.monotonic() > last.when + _DOUBLE:
                last.result = action(*arguments, **named)
                last.change, last.when = change, time.monotonic()
            result = last.result
    except UserError as error:
        session.of(_Changes).outcome = (False, str(error))
        return None
    say(done)
    return result


def say(text: str) -> None:
    """Say that something worked, when the page runs again."""
    session.of(_Changes).outcome = (True, text)


def refuse(why: str) -> None:
    """Say why nothing was changed, when the page runs again."""
    session.of(_Changes).outcome = (False, why)


def tell() -> None:
    """Say what came of the last change, once; its place stays, so that what is below keeps its own."""
    changes = session.of(_Changes)
    (worked, text), changes.outcome = changes.outcome, (True, "")
    container = st.container()
    if not worked:
        container.error(plain(text))
    elif text:
        st.toast(plain(text))
