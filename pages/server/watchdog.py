"""Reloads a page that Streamlit's browser half has given up, and says when the server does not answer."""

from pathlib import Path

import streamlit as st

_watchdog = st.components.v2.component(
    "vit_watchdog", js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8"), html="<i hidden></i>"
)


def mount() -> None:
    """Watch over this tab; before all else of a page, so that it is there whatever happens below."""
    with st.container(key="watchdog", height=1, border=False):
        _watchdog(key="watchdog component", height=1)
