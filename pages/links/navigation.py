"""The pages of the app, and the way into it for a page that Streamlit runs by itself.

Until `app.py` has run once in a server, Streamlit takes every file in `pages/` for a page of its own and runs it
without `app.py`: narrow, and below another menu.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import streamlit as st

from pages.links import address, session
from pages.links.grammar import PageLink
from pages.server import public
from pages.server.page_paths import NAMES, PATHS
from vit.paths import PROJECT

_PAGES = PROJECT / "pages"


def choose() -> st.Page:
    """The page that the visitor is on; the menu above it leads to the others."""
    session.of(session.Visit).in_app = True
    hidden = ("train", "runs") if public.is_public() else ()  # links to them work
    return st.navigation(
        [
            st.Page(
                _PAGES / f"{name}.py",
                title=name.title(),
                url_path=path,
                default=not path,
                visibility="hidden" if name in hidden else "visible",
            )
            for name, path in zip(NAMES, PATHS, strict=True)
        ],
        position="top",
    )


def link(label: str, page: str, query: Mapping[str, str | Sequence[str]], *, icon: bool = True, **more: Any) -> None:
    """A way to another page that shows something there; the browser's Back leads to this one as it is now.

    Args:
        page: its name.
        query: its link.
        icon: begin with an arrow, where there is room for it.
    """
    more |= {"icon": ":material/arrow_forward:"} if icon else {}
    st.page_link(_PAGES / f"{page}.py", label=label, width="content", query_params=query, **more)


def start_page(page: str, *, remember: bool = True, at_first: Callable[[], PageLink] | None = None) -> None:
    """Run the page again below `app.py`, unless it is there already.

    Args:
        page: its name.
        remember: it looks as it was left when people come back to it.
        at_first: gives what it shows where nothing was chosen on it, but something on page Explore.
    """
    visit = session.of(session.Visit)
    if not visit.in_app:
        choose()  # from here on, Streamlit runs app.py in this server
        st.rerun()
    left, here, other = visit.links.get(page), address.current(), visit.links.get(visit.entered, {})
    # Where the server led to another page, Streamlit wrote that one's link into the address of this one, for Back.
    foreign = left and not here.keys() & left.keys() and here.keys() <= other.keys()
    if left and foreign and visit.entered != page:
        st.query_params.from_dict(left)
    elif at_first and not left and not here and "explore" in visit.links:
        address.show(at_first())
    visit.entered = page
    if remember:
        keep(page)


def keep(page: str) -> None:
    """Remember how a page looks; for fragments, which change links without a run of the whole page."""
    session.of(session.Visit).links[page] = address.current()
