"""Download buttons that create their files on click."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import streamlit as st

from vit.exports import animation, tables

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


def numbers(what: str, rows: Callable[[], Sequence[tables.Row]], stem: str) -> None:
    """Draw a download button for a table.

    Args:
        what: content of the table, such as "Heads".
        rows: see `vit.exports.tables.encode`; called on click.
        stem: file name without extension, see `vit.view.captions.file_stem`.
    """
    file(f"{what} as CSV", lambda: tables.encode(rows()), f"{stem}.csv", "text/csv")


def films(what: str, draw: Callable[[], animation.Film], stem: str, help: str) -> None:
    """Draw a download button for each video format.

    Args:
        what: content of the video, such as "Blocks".
        draw: creates the `vit.exports.animation.Film` on click.
        stem: file name without suffix.
    """

    def make(kind: animation.Kind) -> bytes:
        return animation.encode(draw(), kind)

    for kind, mime in FILMS.items():
        file(f"{what} as {kind}", partial(make, kind), f"{stem}.{kind.lower()}", mime, key=f"{what} {kind}", help=help)
