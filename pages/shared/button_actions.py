"""Actions of buttons: check permission, ignore double clicks, and report the outcome once in the next run."""

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from threading import Lock
from typing import Any

import streamlit as st

from pages.links import session
from pages.server import access
from pages.shared.escape import plain, with_code
from vit.errors import UserError

_DOUBLE = 1.0  # the same action within this time is a double click [s]


@dataclass
class _Changes:
    """A session's last successful action, and the outcome (success, message) that is not reported yet.

    The lock is necessary because Streamlit runs the callback of a second click concurrently with the first one's.
    """

    lock: Lock = field(default_factory=Lock)
    change: tuple[Any, ...] = ()
    result: Any = None
    when: float = 0.0
    outcome: tuple[bool, str] = (True, "")


def attempt(what: str, done: str, action: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Run an action in a button's callback; `show_outcome` reports the outcome. A double click runs it once.

    Args:
        what: name of the changed things, for the message to a visitor without permission.
        done: message of success; "" for no message and for actions that may be repeated quickly.

    Returns:
        What the action returns; None if it is not permitted or fails with a `UserError`.
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
    report_success(done)
    return result


def confirm_or_keep(
    verb: str, action: Callable[..., None], arguments: tuple[Any, ...] = (), keep: str = "Keep it"
) -> None:
    """Draw the two buttons of a confirmation dialog; both close it.

    Args:
        verb: label of the button that runs the action.
        action: a button's callback, called with the arguments.
        keep: label of the button that changes nothing.
    """
    with st.container(horizontal=True):
        confirmed = st.button(verb, key=f"really {verb.lower()}", type="primary", on_click=action, args=arguments)
        if st.button(keep, key="not confirmed") or confirmed:
            st.rerun()


def report_success(text: str) -> None:
    """Report success in the next run of the page."""
    session.of(_Changes).outcome = (True, text)


def report_failure(why: str) -> None:
    """Report why nothing was changed, in the next run of the page."""
    session.of(_Changes).outcome = (False, why)


def show_outcome() -> None:
    """Show the outcome of the last action once.

    The container is always created, so that later elements keep their positions.
    """
    changes = session.of(_Changes)
    (worked, text), changes.outcome = changes.outcome, (True, "")
    container = st.container()
    if not worked:
        container.error(with_code(text))
    elif text:
        st.toast(plain(text))
