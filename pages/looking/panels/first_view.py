"""First view of page Explore before PyTorch is imported, drawn from results stored with the shipped checkpoint.

All elements have the same positions as on the complete page, so the viewer is not redrawn when the rest appears.
"""

import sys
from collections.abc import Callable
from pathlib import Path

import streamlit as st

from pages.links import address, session
from pages.links.page_links import ExploreLink
from pages.links.source import Source
from pages.looking import checkpoint_list, loading
from pages.looking.controls import input_size, method_choice
from vit.view import first_view
from vit.view.first_view import FirstView

WAITING = "Loading PyTorch (once)…"
PAUSE = 0.4  # time for the browser to draw before the import keeps the processor busy [s]


def stored(source: Source) -> FirstView | None:
    """Return the stored results if they match the link; None if they do not, or if PyTorch is already imported."""
    if "torch" in sys.modules and not loading.LOADING.is_set():
        return None
    folder = checkpoint_list.shipped_folder()
    view = _read(str(folder), loading.stamp(folder)) if folder else None
    if view is None or source != Source(f"{first_view.SAMPLE}.jpg", source.data, first_view.SAMPLE):
        return None
    link = address.read(ExploreLink)
    same = (
        link.checkpoint in ("", view.checkpoint.name)
        and link.size in ("", input_size.pixels(view.size))
        and link.target in ("", str(view.target))
        and method_choice.linked_method(view.checkpoint) == first_view.METHOD
    )
    # The browser computes all other views from the payload.
    others = link.heads, link.precision, link.upload, link.picture, link.frame, link.classes.source
    return view if same and not any(others) else None


@st.cache_resource(show_spinner=False, max_entries=2)
def _read(folder: str, stamp: int) -> FirstView | None:
    return first_view.read(Path(folder))


def show_waiting() -> None:
    """Show that PyTorch is being loaded."""
    st.caption(WAITING)


def load_rest(prepare: Callable[[], None]) -> None:
    """Import PyTorch after the browser has drawn the first view, then rerun the page.

    Args:
        prepare: fills the caches for the complete page, so that it appears at once.
    """
    state = session.of(session.Explore)
    state.torch_due = False

    @st.fragment(run_every=PAUSE)
    def load() -> None:
        if not state.torch_due:  # the browser reruns the fragment after it has drawn
            state.torch_due = True
            return
        loading.start_torch()
        prepare()
        st.rerun()

    load()
