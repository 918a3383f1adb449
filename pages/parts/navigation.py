"""The pages of the app, and the way into it for a page that Streamlit runs by itself.

Until `app.py` has run once in a server, Streamlit takes every file in `pages/` for a page of its own and runs it
without `app.py`: narrow, and below another menu.
"""

from pathlib import Path

import streamlit as st

_PAGES = Path(__file__).parents[1]


def choose() -> st.Page:
    """The page that the visitor is on; the menu above it leads to the others."""
    st.session_state.in_app = True
    return st.navigation(
        [
            st.Page(_PAGES / "explore.py", title="Explore", default=True),
            st.Page(_PAGES / "compare.py", title="Compare", url_path="compare"),
            st.Page(_PAGES / "checkpoints.py", title="Checkpoints", url_path="checkpoints"),
            st.Page(_PAGES / "train.py", title="Train", url_path="train"),
            st.Page(_PAGES / "runs.py", title="Runs", url_path="runs"),
        ],
        position="top",
    )


def enter() -> None:
    """Run the page again below `app.py`, unless it is there already."""
    if not st.session_state.get("in_app"):
        choose()  # from here on, Streamlit runs app.py in this server
        st.rerun()
