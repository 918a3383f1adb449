"""Download buttons that create their files on click."""

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
    """Draw a download button; a callable `make` creates the file on click."""
    st.download_button(
        label, make, name, mime, key=key or name, on_click="ignore", disabled=disabled, help=help or None
    )


def numbers(
    what: str, rows: Callable[[], Sequence[tables.Row]], about: Callable[[], Mapping[str, Any]], stem: str
) -> None:
    """Draw a download button for each table format.

    Args:
        what: content of the table, such as "Heads".
        rows, about: see `vit.view.tables.encode`; called on click.
        stem: file name without extension, see `vit.view.captions.file_stem`.
    """

    def make(kind: tables.Kind) -> bytes:
        return tables.encode(kind, rows(), about())

    for kind, mime in TABLES.items():
        file(f"{what} as {kind}", partial(make, kind), f"{stem}.{kind.lower()}", mime)


def films(what: str, draw: Callable[[], animation.Film], stem: str, help: str) -> None:
    """Draw a download button for each video format.

    Args:
        what: content of the video, such as "Blocks".
        draw: creates the `vit.view.animation.Film` on click.
        stem: file name without suffix.
    """

    def make(kind: animation.Kind) -> bytes:
        return animation.encode(draw(), kind)

    for kind, mime in FILMS.items():
        file(f"{what} as {kind}", partial(make, kind), f"{stem}.{kind.lower()}", mime, key=f"{what} {kind}", help=help)
