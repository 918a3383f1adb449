"""Difference of two maps: over the picture, in numbers, and as files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import streamlit as st

from pages.looking import token_features
from pages.looking.comparison.side import Side
from pages.looking.controls import method_choice
from pages.shared import download_buttons
from vit.explain import map_comparison
from vit.explain.methods import METHODS
from vit.exports import tables
from vit.view.captions import file_stem
from vit.view.overlay import signed_overlay
from vit.view.payload import read_header
from vit.view.stored_record import picture_of

if TYPE_CHECKING:
    from vit.view.selection import Selection

NAMES = {
    "rollout": "rollout",
    "similar": "nearest patches",
    "components": "nearest patches",  # the view's numbers are similarities, too
    "pool": "pooling query",
}
WIDTH = 240  # width of the difference map [px]


def show(sides: Sequence[tuple[Side, Selection]]) -> None:
    """Show the difference map and the rank correlation.

    Args:
        sides: the left and the right side with their selections.
    """
    left, right = (side for side, _ in sides)
    if left.record.grid != right.record.grid:
        grids = ["{} × {}".format(*side.record.grid) for side in (left, right)]
        st.info(
            f"There is no difference map: the left picture has {grids[0]} patches and the right one {grids[1]}, so "
            "they cannot be subtracted. Choose checkpoints or sizes with equal grids."
        )
        return
    maps, names = [], []
    for side, selected in sides:
        example = token_features.with_features(side.example, selected)
        maps.append(side.record.heatmap(method_choice.weights(example, selected, side.choice)))
        names.append(describe(selected, side.choice))
    one, other = maps
    both, correlation = map_comparison.difference(one, other), map_comparison.rank_correlation(one, other)
    picture, box = picture_of(left.example.explanation.payload)
    strongest = float(both.abs().max())
    drawn, text = st.columns([1, 3], gap="medium", vertical_alignment="center")
    with drawn:
        st.image(signed_overlay(picture, both.numpy(), box), width=WIDTH, alt="Left map minus right map")
    with text:
        st.metric(
            "Rank correlation",
            "–" if correlation is None else f"{correlation:.2f}".replace("-", "−"),
            help="Spearman: 1 if both maps rank the patches in the same order, 0 if the orders are unrelated, −1 if "
            "one is the reverse of the other. The strength of the maps does not matter.",
        )
        st.markdown(map_comparison.agreement(correlation))
        if strongest < 1e-6:
            st.markdown("Both maps are the same.")
        else:
            st.markdown(
                f"**Red** patches get more from the left map ({names[0]}), **blue** ones from the right map "
                f"({names[1]}). Each map is normalised to a sum of 1 over all patches; the strongest colour is a "
                f"difference of {strongest:.1%}."
            )
        if one_picture(left) != one_picture(right):
            st.caption("The pictures differ; the left one is shown below the colours.")
        st.caption("The difference follows what is clicked and pinned above, not the pointer.")
        # An epoch of a run has no checkpoint.
        known = [side.example for side in (left, right) if side.example.checkpoint]
        stem = "-".join(
            [*(file_stem(one.checkpoint.name, one.explanation.preprocess.size, "") for one in known), "difference"]
        )
        download_buttons.numbers("Difference", lambda: tables.maps_table(one, other, both), stem)


def one_picture(side: Side) -> bytes:
    """Return the bytes of the picture below the map, to compare two sides."""
    payload = side.example.explanation.payload
    offset, length = read_header(payload)["sections"]["picture"]
    return payload[offset : offset + length]


def describe(selected: Selection, choice: method_choice.MethodChoice | None) -> str:
    """Return a short description of a map."""
    if selected.view == "relevance" and choice:
        return METHODS[choice.method].title
    if selected.view in NAMES:
        return NAMES[selected.view]
    block = f"block {selected.block + 1}" if isinstance(selected.block, int) else f"{selected.block} of blocks"
    head = f"head {selected.head + 1}" if isinstance(selected.head, int) else f"{selected.head} of heads"
    return f"attention, {block}, {head}"
