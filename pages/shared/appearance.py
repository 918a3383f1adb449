"""How Streamlit's own parts look, where its theme has no setting for it."""

from pathlib import Path

import streamlit as st

_STYLE = Path(__file__).with_suffix(".css")


def adjust() -> None:
    """Style what is drawn on every page."""
    st.html(_STYLE)
