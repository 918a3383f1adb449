"""What a button changes: whether the visitor may, and what came of it, said once when the page runs again."""

from collections.abc import Callable
from typing import Any

import streamlit as st

from pages.parts import access
from vit.errors import UserError
from vit.text import plain

_SAID = "said"


def attempt(what: str, done: str, action: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """Change something, from a button's callback; `tell` says what came of it.

    Args:
        what: is changed, for a visitor who may not.
        done: said when it worked; "" for nothing.

    Returns:
        What the action returns; None if it was not to be.
    """
    try:
        if not access.may_train():
            raise UserError(f"You may look at {what} here, but not change them.")
        result = action(*arguments, **named)
    except UserError as error:
        st.session_state[_SAID] = (False, str(error))
        return None
    say(done)
    return result


def say(text: str) -> None:
    """Say that something worked, when the page runs again."""
    st.session_state[_SAID] = (True, text)


def tell() -> None:
    """Say what came of the last change, once; its place stays, so that what is below keeps its own."""
    worked, text = st.session_state.pop(_SAID, (True, ""))
    place = st.container()
    if not worked:
        place.error(plain(text))
    elif text:
        st.toast(plain(text))
