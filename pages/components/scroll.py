"""An element that the browser scrolls into view."""

from pathlib import Path

import streamlit as st

_scroll = st.components.v2.component("vit_scroll", js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8"))


def here(reason: str) -> None:
    """Draw the element, and scroll it into view when the reason changes; "" for not scrolling."""
    _scroll(key="scroll", data=reason, height=1)
