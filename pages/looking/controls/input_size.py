"""Control for the model's input size."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import streamlit as st

from pages.links import address, link_controls
from pages.server import public
from pages.server.result_cache import SHOW_DURATION_ABOVE_SECONDS
from pages.shared.escape import plain
from vit import view
from vit.explain import faithfulness
from vit.view.captions import format_duration

if TYPE_CHECKING:
    from vit.checkpoints.checkpoint import Checkpoint


def pick(checkpoint: Checkpoint, label: str, name: str, narrow: bool = False) -> tuple[int, int]:
    """Draw the control for the model's input size, with expected costs, and return (height, width).

    Args:
        name: query parameter and key of the control.
        narrow: hide the label and the number of tokens.
    """
    own, sizes = checkpoint.preprocess.size, view.sizes(checkpoint)
    if public.is_public():
        sizes = [size for size in sizes if size == own or view.cost(checkpoint, size).tokens <= public.TOKENS]

    @cache  # a control calls it several times per option
    def option_label(size: tuple[int, int]) -> str:
        expected = view.cost(checkpoint, size)
        takes = "" if narrow else f" · {expected.tokens:,} tokens"
        if size != own and (seconds := view.expected_seconds(checkpoint, size)) > SHOW_DURATION_ABOVE_SECONDS:
            needed = max(expected.memory, faithfulness.memory(checkpoint.config, size) if checkpoint.labels else 0)
            takes = f" · {format_duration(seconds)} · {needed / 1e9:.1f} GB"
        return f"{pixels(size)} px{takes}"

    size = link_controls.select(
        label,
        name,
        sizes,
        own,
        format_func=option_label,
        link=pixels,
        label_visibility="collapsed" if narrow else "visible",
        help="The model was trained at one size. At others its position embeddings are interpolated: larger ones give "
        "finer maps and less reliable predictions. Seconds and memory are estimates for this computer.",
    )
    wanted = address.text(name)
    if wanted and wanted not in map(pixels, sizes):
        offered = "" if narrow else f"; {', '.join(map(pixels, sizes))} are"
        st.caption(f"{plain(wanted)} px is not offered{offered}.")
    return size


def pixels(size: tuple[int, int]) -> str:
    """Format an input size: "SIDE" for a square, else "WIDTHxHEIGHT"."""
    height, width = size
    return str(width) if width == height else f"{width}x{height}"
