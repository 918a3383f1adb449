"""The page before PyTorch is there: what is stored with the shipped checkpoint is drawn, the rest follows.

Everything stands where the whole page has it, so the viewer stays as it is when the rest comes in.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import streamlit as st

from pages.links import address, session
from pages.links.page_links import ExploreLink
from pages.links.source import Source
from pages.looking import loading
from vit.view import first_view
from vit.view.first_view import FirstView

WAITING = "Loading PyTorch (once)…"
PAUSE = 0.4  # [s] for the browser to draw before the processor is busy


def stored(source: Source) -> FirstView | None:
    """What is stored of the very view that the link asks for; None where there is none, or PyTorch is there already."""
    if "torch" in sys.modules and not loading.LOADING.is_set():
        return None
    folder = loading.shipped_folder()
    view = _read(str(folder), loading.stamp(folder)) if folder else None
    if view is None or source != Source(f"{first_view.SAMPLE}.jpg", source.data, first_view.SAMPLE):
        return None
    link = address.read(ExploreLink)
    same = (
        link.checkpoint in ("", view.checkpoint.name)
        and link.size == loading.pixels(view.size)  # left out, it is the model's own
        and link.target in ("", str(view.target))
        and link.method in ("", first_view.METHOD)
    )
    # The browser draws by itself what else the viewer can show.
    others = link.heads, link.precision, link.upload, link.picture, link.frame, link.classes.source
    return view if same and not any(others) else None


@st.cache_resource(show_spinner=False, max_entries=2)
def _read(folder: str, stamp: int) -> FirstView | None:
    return first_view.read(Path(folder))


def wait() -> None:
    """Say what the rest waits for."""
    st.caption(WAITING)


def load_rest(prepare: Callable[[], None]) -> None:
    """Load PyTorch once the browser has drawn what is there, then let the page draw the rest.

    Args:
        prepare: computes what the whole page will ask for, so that it is drawn in one go.
    """
    state = session.of(session.Explore)
    state.torch_due = False

    @st.fragment(run_every=PAUSE)
    def load() -> None:
        if not state.torch_due:  # the browser asks again when it is done
            state.torch_due = True
            return
        loading.start_torch()
        prepare()
        st.rerun()

    load()
