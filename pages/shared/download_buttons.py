"""Buttons for files that are made when they are clicked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import streamlit as st

from vit.view import animation, tables

TABLES: dict[tables.Kind, str] = {"CSV": "text/csv", "JSON": "application/json"}
FILMS: dict[animation.Kind, str] = {"GIF": "image/gif", "MP4": "video/mp4"}


def file(
    label: str,
    make: Callable[[], bytes] | bytes,
    name: str,
    mime: str,
    *,
    key: str = "",
    disabled: bool = False,
    help: str = "",
) -> None:
    """A button for a file, which is made when it is clicked unless it is there already."""
    st.download_button(
        label, make, name, mime, key=key or name, on_click="ignore", disabled=disabled, help=help or None
    )


def numbers(what: str, rows: Callable[[], Sequence[tables.Row]], about: Callable[[], Mapping[str, Any]]) -> None:
    """A button for each kind of table.

    Args:
        what: is in it, "Heads", which also names the file.
        rows, about: see `vit.view.tables.encode`; made when a button is clicked.
    """

    def make(kind: tables.Kind) -> bytes:
        return tables.encode(kind, rows(), about())

    for kind, mime in TABLES.items():
        file(f"{what} as {kind}", partial(make, kind), f"{what.lower()}.{kind.lower()}", mime)


def pdf(what: str, draw: Callable[[], bytes]) -> None:
    """A button for what is shown, to print; drawn when it is clicked.

    Args:
        what: is in it, as of `numbers`.
    """
    file(f"{what} as PDF", draw, f"{what.lower()}.pdf", "application/pdf")


def films(what: str, draw: Callable[[], animation.Film], stem: str, help: str) -> None:
    """A button for each kind of file.

    Args:
        what: is shown one after the other, "Blocks".
        draw: gives the `vit.view.animation.Film`, when a button is clicked.
        stem: of the file's name.
    """

    def make(kind: animation.Kind) -> bytes:
        return animation.encode(draw(), kind)

    for kind, mime in FILMS.items():
        file(f"{what} as {kind}", partial(make, kind), f"{stem}.{kind.lower()}", mime, key=f"{what} {kind}", help=help)
