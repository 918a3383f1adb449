"""The address that the browser shows: read as what a page's link says, and written to it."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, TypeVar

import streamlit as st

from pages.links import session
from pages.links.grammar import PageLink, Query
from pages.links.page_links import CheckpointsLink, CompareLink, ExploreLink, RunsLink

_KINDS = {kind.page: kind for kind in (ExploreLink, CompareLink, RunsLink, CheckpointsLink)}
_NAMES = frozenset[str]().union(*(kind.names() for kind in _KINDS.values()))
Link = TypeVar("Link", bound=PageLink)


def read(kind: type[Link]) -> Link:
    """What the address says."""
    return kind.from_query(current())


def change(kind: type[PageLink], **parts: Any) -> None:
    """Change parts of what the address says, as one step of the browser's Back; see `rewrite`.

    Args:
        parts: attributes of the kind.
    """
    show(replace(read(kind), **parts))


def show(link: PageLink) -> None:
    """Let the address say this, and nothing else."""
    _write(link.to_query())


def text(name: str) -> str:
    """What the link says of a part, by its name there; "" for nothing. For controls, whose options others know.

    Raises:
        LookupError: the page's link has no part of that name, so that no choice would stay.
    """
    return (texts(name) or [""])[-1]


def texts(name: str) -> list[str]:
    """The same of a part that several things may be said of."""
    if (kind := _KINDS.get(session.of(session.Visit).entered)) and name not in kind.names():
        raise LookupError(f"{kind.__name__} has no part {name!r}: a control needs one to keep what is chosen in it.")
    return list(understood().get(name, []))


def understood() -> Query:
    """What the page understands of the link: values by their names there."""
    return _understood(current())


def rewrite(parts: Mapping[str, str | Sequence[str] | None]) -> None:
    """Change parts of the page's link, as one step of the browser's Back; none where it says that already.

    Streamlit makes a step of every change, so that what somebody does in one go is to be written in one go.

    Args:
        parts: by their names there what the link is to say, several times where it is several; None for nothing.

    Raises:
        LookupError: no page's link has such a part. What another page's has is left out, as a browser may still send
            what was chosen on the page that it left.
    """
    unknown = {name for name, value in parts.items() if value} - _NAMES
    if unknown and session.of(session.Visit).entered in _KINDS:
        raise LookupError(f"No page's link has a part {min(unknown)!r}.")
    texts = {name: [value] if isinstance(value, str) else list(value or ()) for name, value in parts.items()}
    _write(_understood({name: values for name, values in (current() | texts).items() if values}))


def current() -> dict[str, list[str]]:
    """The link as it is, which anybody may have written."""
    return {name: st.query_params.get_all(name) for name in st.query_params}


def _understood(query: Query) -> Query:
    """What the page understands of a link; all of it on a page whose link is not in `page_links`."""
    kind = _KINDS.get(session.of(session.Visit).entered)
    return _parsed(kind, tuple((name, tuple(values)) for name, values in query.items())) if kind else query


@lru_cache(maxsize=256)  # every control asks
def _parsed(kind: type[PageLink], query: tuple[tuple[str, tuple[str, ...]], ...]) -> Query:
    return kind.from_query(dict(query)).to_query()


def _write(query: Query) -> None:
    if query != current():
        st.query_params.from_dict(query)
