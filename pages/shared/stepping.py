"""Previous and next, over several pictures of which one is shown."""

from collections.abc import Callable

import streamlit as st


def buttons(key: str, count: int, here: int | None, on_step: Callable[[int], None]) -> None:
    """Draw both, and which of how many is shown.

    Args:
        key: where their keys begin.
        here: the number of the picture that is shown, from 0; None where it is none of them.
        on_step: called with the number of another one before the rerun that a click causes.
    """
    with st.container(horizontal=True, vertical_alignment="center"):
        for label, icon, there in (
            ("Previous", ":material/chevron_left:", count - 1 if here is None else here - 1),
            ("Next", ":material/chevron_right:", 0 if here is None else here + 1),
        ):
            outside = there not in range(count)
            st.button(label, f"{key} {label.lower()}", icon=icon, disabled=outside, on_click=on_step, args=(there,))
        st.caption(f"{count} pictures" if here is None else f"{here + 1} of {count}")
