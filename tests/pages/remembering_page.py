"""A page that caches an object for all visitors, and creates a file when the object is garbage-collected."""

import os
import weakref
from pathlib import Path

import streamlit as st

from pages.server import guard


class Large:
    """Stands for a model."""


@st.cache_resource
def remembered() -> Large:
    """Return the object shared by all sessions."""
    large = Large()
    weakref.finalize(large, Path(os.environ["FORGOTTEN"]).touch)
    return large


@st.fragment
def show(_large: Large) -> None:
    """Keep a reference: Streamlit stores the arguments of a fragment."""
    st.text("ready")


if __name__ == "__main__":
    st.session_state.large = remembered()
    show(remembered())
    st.segmented_control("Kind", ["a", "b"], key="kind")
else:
    app = st.App(__file__, lifespan=guard.lifespan)
