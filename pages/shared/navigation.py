"""The pages of the app, and the way into it for a page that Streamlit runs by itself.

Until `app.py` has run once in a server, Streamlit takes every file in `pages/` for a page of its own and runs it
without `app.py`: narrow, and below another menu.
"""

import streamlit as st

from vit.paths import PROJECT

_PAGES = PROJECT / "pages"
_NAMES = ("explore", "compare", "checkpoints", "train", "runs")  # of their files
PATHS = ("", *_NAMES[1:])  # in addresses


def choose() -> st.Page:
    """The page that the visitor is on; the menu above it leads to the others."""
    st.session_state.in_app = True
    return st.navigation(
        [
            st.Page(_PAGES / f"{name}.py", title=name.title(), url_path=path, default=not path)
            for name, path in zip(_NAMES, PATHS, strict=True)
        ],
        position="top",
    )


def enter(page: str = "") -> None:
    """Run the page again below `app.py`, unless it is there already.

    Args:
        page: the name of one that looks as it was left when people come back to it.
    """
    state = st.session_state
    if not state.get("in_app"):
        choose()  # from here on, Streamlit runs app.py in this server
        st.rerun()
    left = state.get("links", {}).get(page)
    if left and state["entered"] != page and not st.query_params:
        st.query_params.from_dict(left)
    state.entered = page
    if page:
        keep(page)


def keep(page: str) -> None:
    """Remember how a page looks; for fragments, which change links without a run of the whole page."""
    link = {name: st.query_params.get_all(name) for name in st.query_params}  # some name several runs
    st.session_state.setdefault("links", {})[page] = link
