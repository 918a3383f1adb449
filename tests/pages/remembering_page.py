"""A page that remembers something for all visitors, and notes in a file when that is forgotten; run by Streamlit."""

import os
import weakref
from pathlib import Path

import streamlit as st

from pages.shared import guard


class Large:
    """Stands for a model."""


@st.cache_resource
def remembered() -> Large:
    """One for everybody."""
    large = Large()
    weakref.finalize(large, Path(os.environ["FORGOTTEN"]).touch)
    return large


if __name__ == "__main__":
    remembered()
    st.text("ready")
else:
    app = st.App(__file__, lifespan=guard.lifespan)
