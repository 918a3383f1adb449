"""Read and write the URL's query parameters as a `PageLink`."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar
from urllib.parse import urlencode

import streamlit as st

from pages.links import session
from pages.links.grammar import PageLink, Query
from pages.links.page_links import CheckpointsLink, CompareLink, ExploreLink, RunsLink

_KINDS = {kind.page: kind for kind in (ExploreLink, CompareLink, RunsLink, CheckpointsLink)}
_NAMES = frozenset[str]().union(*(kind.names() for kind in _KINDS.values()))
Link = TypeVar("Link", bound=PageLink)


def read(kind: type[Link]) -> Link:
    """Parse the URL."""
    return kind.from_query(current())


def change(kind: type[PageLink], **parts: Any) -> None:
    """Change attributes of the URL's link in one history entry; see `rewrite`.

    Args:
        parts: attributes of `kind`.
    """
    show(replace(read(kind), **parts))


def show(link: PageLink) -> None:
    """Replace all of the URL's query parameters."""
    _write(link.to_query())


def text(name: str) -> str:
    """Return the last value of a query parameter, "" if it is absent. Controls map it to their options.

    Raises:
        LookupError: the page's link has no such parameter, so a selection would be lost.
    """
    return (texts(name) or [""])[-1]


def texts(name: str) -> list[str]:
    """Return all values of a query parameter that can be repeated; see `text`."""
    if (kind := _KINDS.get(session.of(session.Visit).entered)) and name not in kind.names():
        raise LookupError(f"{kind.__name__} has no part {name!r}: a control needs one to keep what is chosen in it.")
    return list(understood().get(name, []))


def understood() -> Query:
    """Return the valid query parameters of the current page."""
    return _understood(current())


def url() -> str:
    """Return the whole URL of the current view, with which another browser opens it."""
    query = urlencode(understood(), doseq=True)
    return f"{(st.context.url or '').rstrip('/')}/{query and '?'}{query}"


def rewrite(parts: Mapping[str, str | Sequence[str] | None]) -> None:
    """Change query parameters in one history entry; an unchanged link adds none.

    Streamlit adds a history entry for every write, so write all changes of one user action together.

    Args:
        parts: new values by parameter name, a sequence for a repeated parameter, None to remove it.

    Raises:
        LookupError: no page has such a parameter. Parameters of other pages are ignored: a browser may still send
            selections from the page that it has just left.
    """
    unknown = {name for name, value in parts.items() if value} - _NAMES
    if unknown and session.of(session.Visit).entered in _KINDS:
        raise LookupError(f"No page's link has a part {min(unknown)!r}.")
    texts = {name: [value] if isinstance(value, str) else list(value or ()) for name, value in parts.items()}
    _write(_understood({name: values for name, values in (current() | texts).items() if values}))


def current() -> dict[str, list[str]]:
    """Return the raw query parameters, which are untrusted."""
    return {name: st.query_params.get_all(name) for name in st.query_params}


def _understood(query: Query) -> Query:
    """Return the valid parameters of a query; all of them on a page without a class in `page_links`."""
    kind = _KINDS.get(session.of(session.Visit).entered)
    return _parsed(kind, tuple((name, tuple(values)) for name, values in query.items())) if kind else query


@lru_cache(maxsize=256)  # called by every control in every rerun
def _parsed(kind: type[PageLink], query: tuple[tuple[str, tuple[str, ...]], ...]) -> Query:
    return kind.from_query(dict(query)).to_query()


def _write(query: Query) -> None:
    if query != current():
        st.query_params.from_dict(query)
