"""Reloads a page if Streamlit's frontend has stopped working, and shows a notice if the server does not respond."""

from pathlib import Path

import streamlit as st

_watchdog = st.components.v2.component(
    "vit_watchdog", js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8"), html="<i hidden></i>"
)


def mount() -> None:
    """Mount the watchdog. Call it first on a page, so that it runs even if the rest fails."""
    with st.container(key="watchdog", height=1, border=False):
        _watchdog(key="watchdog component", height=1)
