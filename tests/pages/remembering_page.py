"""A page that remembers something for all visitors, and notes in a file when nothing knows of it any more."""

import os
import weakref
from pathlib import Path

import streamlit as st

from pages.server import guard


class Large:
    """Stands for a model."""


@st.cache_resource
def remembered() -> Large:
    """One for everybody."""
    large = Large()
    weakref.finalize(large, Path(os.environ["FORGOTTEN"]).touch)
    return large


@st.fragment
def show(_large: Large) -> None:
    """Streamlit keeps what a fragment was called with."""
    st.text("ready")


if __name__ == "__main__":
    st.session_state.large = remembered()
    show(remembered())
    st.segmented_control("Kind", ["a", "b"], key="kind")
else:
    app = st.App(__file__, lifespan=guard.lifespan)
