"""Controls whose choice stands in the link; what a link says in vain is left aside."""

from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

MOST = 20_000  # words remembered of a control


def select(
    label: str,
    name: str,
    options: Sequence[Any],
    default: Any = None,
    words: Callable[[Any], Any] = str,
    kind: Callable[..., Any] = st.selectbox,
    link: Callable[[Any], str] = str,
    resets: Sequence[str] = (),
    **more: Any,
) -> Any:
    """Let the person choose one of several.

    Args:
        name: of the control's key and in links.
        default: that links leave out; the first option if it is None.
        words: an option as the page shows it.
        kind: `st.selectbox`, `st.select_slider` or `st.segmented_control`.
        link: an option as links hold it.
        resets: what a new choice takes out of the link.
    """
    default = options[0] if default is None else default

    known = st.session_state.setdefault("words", {}).setdefault(name, {})  # of every option, as ever shown
    if len(known) > MOST:
        known.clear()
    known |= {words(option): option for option in options}

    def remember() -> None:
        chosen = st.session_state[name]
        if chosen not in options:  # the browser sent words that have changed since
            chosen = known.get(chosen)
        if chosen not in options:
            return
        for part in (name, *resets):
            st.query_params.pop(part, None)
        if chosen != default:
            st.query_params[name] = link(chosen)

    asked = {link(option): option for option in options}.get(st.query_params.get(name, ""), default)
    _tell(name, asked, [words(option) for option in options])
    if kind is st.segmented_control:
        more["required"] = True
    return kind(label, options, format_func=words, key=name, on_change=remember, **more)


def toggle(label: str, name: str, link: str = "1", **more: Any) -> bool:
    """Let the person switch something on.

    Args:
        name: of the control's key and in links.
        link: what links hold while it is on; off, they leave it out.
    """

    def remember() -> None:
        st.query_params.pop(name, None)
        if st.session_state[name]:
            st.query_params[name] = link

    _tell(name, st.query_params.get(name) == link)
    return st.toggle(label, key=name, on_change=remember, **more)


def _tell(name: str, asked: Any, words: Sequence[Any] = ()) -> None:
    """Set a control to what the link asks for, where that is news.

    Streamlit keeps a control at its old words when its options or their words change, so it is told again then too.
    """
    now, told = (asked, list(words)), st.session_state.setdefault("choices", {})
    if name not in st.session_state or told.get(name) != now or st.session_state[name] != asked:
        st.session_state[name] = asked
    told[name] = now
