"""Controls whose choice stands in the link; what a link says in vain is left aside."""

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st


def select(
    label: str,
    name: str,
    options: Sequence[Any],
    default: Any = None,
    words: Callable[[Any], Any] = str,
    kind: Callable[..., Any] = st.selectbox,
    **more: Any,
) -> Any:
    """Let the person choose one of several.

    Args:
        name: of the control's key and in links.
        default: that links leave out; the first option if it is None.
        words: an option as the page shows it; links hold its `str`.
        kind: `st.selectbox`, `st.select_slider` or `st.segmented_control`.
    """
    default = options[0] if default is None else default

    def remember() -> None:
        st.query_params.pop(name, None)
        if st.session_state[name] != default:
            st.query_params[name] = str(st.session_state[name])

    asked = {str(option): option for option in options}.get(st.query_params.get(name, ""), default)
    first = {
        st.selectbox: {"index": list(options).index(asked)},
        st.select_slider: {"value": asked},
        st.segmented_control: {"default": asked, "required": True},
    }[kind]
    return kind(label, options, **first, format_func=words, key=name, on_change=remember, **more)
