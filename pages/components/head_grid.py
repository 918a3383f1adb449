"""Mounts the matrix of blocks and heads on a Streamlit page."""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Literal

import numpy as np
import streamlit as st
from numpy.typing import NDArray

from vit.view.overlay import COLORMAPS

_HERE = Path(__file__).parent
_matrix = st.components.v2.component(
    "vit_matrix",
    css=(_HERE / "head_grid.css").read_text(encoding="utf-8"),
    js=(_HERE / "head_grid.js").read_text(encoding="utf-8"),
)
Cell = tuple[int, int]  # (block, head), from 0
_STEPS = np.linspace(0, 1, 11)


def show(
    key: str,
    values: NDArray[np.floating],
    format_value: Callable[[float], str],
    *,
    label: str,
    scale: Literal["viridis", "signed"] = "viridis",
    marked: Collection[Cell] = (),
    on_choose: Callable[[Cell], None],
) -> None:
    """Draw one number per head as a heatmap; NaN is shown as "not known".

    Args:
        key: of this matrix.
        values: (L, H).
        format_value: formats a number for display.
        label: name of the numbers, for screen readers and above the scale.
        scale: "viridis" covers the range of the values; "signed" goes from blue over transparent to red, symmetric
            about 0.
        marked: outlined cells.
        on_choose: called with a cell before the rerun that a click causes.
    """
    known = bool(np.isfinite(values).any())
    low, top = _ends(values, scale)
    cells = [
        [
            {
                "color": _color((value - low) / (top - low), scale) if np.isfinite(value) else "",
                "text": f"Block {block + 1}, head {head + 1}: "
                + (format_value(float(value)) if np.isfinite(value) else "not known"),
                "marked": (block, head) in marked,
            }
            for head, value in enumerate(row)
        ]
        for block, row in enumerate(values)
    ]

    def clicked() -> None:
        chosen = (st.session_state.get(key) or {}).get("cell")
        if isinstance(chosen, list | tuple) and len(chosen) == 2:
            block, head = chosen
            if all(isinstance(i, int) for i in chosen) and 0 <= block < len(values) and 0 <= head < len(values[0]):
                on_choose((block, head))

    _matrix(
        key=key,
        data={
            "cells": cells,
            "label": label,
            "ends": [format_value(low), format_value(top)] if known else [],
            "ramp": [_color(float(step), scale) for step in _STEPS],
        },
        on_cell_change=clicked,
    )


def _ends(values: NDArray[np.floating], scale: str) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    if not finite.size:
        return 0.0, 1.0
    low, top = float(finite.min()), float(finite.max())
    if scale == "signed":
        most = max(abs(low), abs(top)) or 1.0
        return -most, most
    return (low, top) if top > low else (low, low + 1.0)


def _color(share: float, scale: str) -> str:
    """Return the CSS colour of a position on the scale, 0 to 1."""
    share = min(max(share, 0.0), 1.0)
    if scale == "signed":  # transparent in the middle, for the light and the dark theme
        red, strength = share > 0.5, abs(2 * share - 1)
        return f"rgb({'200 60 50' if red else '50 100 200'} / {strength:.3f})"
    red_, green, blue = COLORMAPS["viridis"][round(255 * share)]
    return f"rgb({red_} {green} {blue})"
