"""Long work that is done once for everybody, with a bar meanwhile."""

from collections.abc import Callable, Hashable
from typing import Any

import streamlit as st


@st.cache_resource(show_spinner=False, max_entries=64)
def _place(key: Hashable) -> list:
    """Where a result lies; a cached function may not draw a bar itself."""
    return []


def once(key: Hashable, words: str, work: Callable[[Callable[[float], None]], Any]) -> Any:
    """What some work gives, computed the first time.

    Args:
        key: tells it from all other work.
        words: what the bar says.
        work: is given what to call with the share that is done.
    """
    place = _place(key)
    if not place:
        bar = st.progress(0.0, words)
        place.append(work(lambda share: bar.progress(min(share, 1.0), words)))
        bar.empty()
    return place[0]
