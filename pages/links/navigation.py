"""Navigation between the app's pages, and a redirect for pages that Streamlit runs without `app.py`.

Until `app.py` has run once in a server, Streamlit treats every file in `pages/` as a page and runs it without `app.py`,
with a narrow layout and a different menu.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import streamlit as st

from pages.links import address, session
from pages.links.grammar import PageLink
from pages.links.page_links import ExploreLink
from pages.links.source import Source
from pages.server import public, uploaded_pictures
from pages.server.page_paths import NAMES, PATHS
from vit.paths import PROJECT

_PAGES = PROJECT / "pages"


def choose() -> st.Page:
    """Return the visitor's current page, and draw the menu."""
    session.of(session.Visit).in_app = True
    hidden = ("train", "runs") if public.is_public() else ()  # links to hidden pages still work
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
    """Draw a link to another page; the browser's Back returns to this page in its current state.

    Args:
        page: name of the other page.
        query: its query parameters.
        icon: begin with an arrow; False if space is short.
    """
    more |= {"icon": ":material/arrow_forward:"} if icon else {}
    st.page_link(_PAGES / f"{page}.py", label=label, width="content", query_params=query, **more)


def open_picture(name: str, content: bytes, link: ExploreLink) -> None:
    """Switch to page Explore with a picture that is not in the link yet.

    Args:
        name: file name.
        content: of the file.
    """
    explore = session.of(session.Explore)
    explore.upload, explore.source = Source(name, content), "upload"
    link = replace(link, upload=name, picture=uploaded_pictures.store(content))
    st.switch_page(_PAGES / "explore.py", query_params=link.to_query())


def start_page(page: str, *, remember: bool = True, at_first: Callable[[], PageLink] | None = None) -> None:
    """Set up a page: rerun it within `app.py` if necessary, and restore its link.

    Args:
        page: name of the page.
        remember: restore the page's last state when the visitor returns to it.
        at_first: returns the initial link if the page has none yet but page Explore has.
    """
    visit = session.of(session.Visit)
    if not visit.in_app:
        choose()  # from here on, Streamlit runs app.py in this server
        st.rerun()
    left, here, other = visit.links.get(page), address.current(), visit.links.get(visit.entered, {})
    # When the server switches pages, Streamlit writes the new page's query parameters into the history entry of the
    # old page, so Back arrives here with the other page's link.
    foreign = left and not here.keys() & left.keys() and here.keys() <= other.keys()
    if left and foreign and visit.entered != page:
        st.query_params.from_dict(left)
    elif at_first and not left and not here and "explore" in visit.links:
        address.show(at_first())
    visit.entered = page
    if remember:
        keep(page)


def keep(page: str) -> None:
    """Store a page's link in the session. Fragments call this, since they change links without a full rerun."""
    session.of(session.Visit).links[page] = address.current()
