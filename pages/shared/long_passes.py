"""The button that starts a long computation over many pictures."""

from collections.abc import Hashable

import streamlit as st

from pages.links import session
from pages.server.result_cache import BUTTON_ABOVE_SECONDS
from vit.view.captions import format_duration


def is_wanted(key: Hashable, count: int, expected: float) -> bool:
    """Whether to compute now; draw a button first if this takes long and was not requested yet.

    Args:
        key: identifies the computation; the session stores it once the computation is requested.
        count: number of pictures.
        expected: duration [s].
    """
    requested = session.of(session.Visit).requested
    placeholder = st.empty()  # created in every run, so that later elements keep their positions
    if expected > BUTTON_ABOVE_SECONDS and key not in requested:
        if not placeholder.button(f"Look at {count:,} pictures ({format_duration(expected)})", type="primary"):
            return False
        placeholder.empty()
    # Add it even if no button was needed, so that none appears if the estimate grows on a busy machine.
    requested.add(key)
    return True
