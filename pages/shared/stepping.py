"""Previous and Next buttons for several pictures."""

from collections.abc import Callable

import streamlit as st


def buttons(key: str, count: int, here: int | None, on_step: Callable[[int], None]) -> None:
    """Draw both buttons and the position.

    Args:
        key: prefix of the buttons' keys.
        count: number of pictures.
        here: index of the current picture, from 0; None if it is none of them.
        on_step: called with the new index before the rerun that a click causes.
    """
    with st.container(horizontal=True, vertical_alignment="center", width="content"):
        for label, icon, index in (
            ("Previous", ":material/chevron_left:", count - 1 if here is None else here - 1),
            ("Next", ":material/chevron_right:", 0 if here is None else here + 1),
        ):
            outside = index not in range(count)
            st.button(label, f"{key} {label.lower()}", icon=icon, disabled=outside, on_click=on_step, args=(index,))
        st.caption(f"{count} pictures" if here is None else f"{here + 1} of {count}")
