"""A place on a page to which the browser scrolls."""

from pathlib import Path

import streamlit as st

_scroll = st.components.v2.component("vit_scroll", js=Path(__file__).with_suffix(".js").read_text(encoding="utf-8"))


def here(reason: str) -> None:
    """Scroll to this place when the reason changes; "" for none."""
    _scroll(key="scroll", data=reason, height=1)
