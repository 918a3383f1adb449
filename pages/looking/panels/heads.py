"""Panel Heads: a statistic of every head over this picture, the samples or many pictures."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import plotly.graph_objects as go
import streamlit as st
import torch

from pages.components import head_grid
from pages.links import link_controls
from pages.looking import mask_drops
from pages.looking.controls.method_choice import Example, MethodChoice, pass_of, recorded_pass
from pages.looking.panels import heads_over_pictures, what_if
from pages.shared import download_buttons
from vit.explain.head_census import Tally, artefacts_sentence, decode_files, tally
from vit.explain.head_statistics import Statistic, agreement, faithfulness, statistics, suggestions
from vit.explain.names import MEANINGS, SIGNED, STATISTICS, format_statistic
from vit.exports import tables
from vit.images import samples
from vit.view.captions import file_stem
from vit.view.chart_colours import QUIET, STRONG
from vit.view.selection import Selection

ONE, SAMPLES, MANY = "this picture", "the samples", "many pictures"
OVER = {ONE: "picture", SAMPLES: "samples", MANY: "many"}  # values in links
WIDE = 330  # width of the list of statistics, so that it wraps to the next row instead of being truncated [px]
SHARES = set(STATISTICS) - {"distance", "entropy", *SIGNED}
COLUMNS = 3  # columns of suggestions
WHY = {  # reasons why a head is suggested
    "local": "Looks {} far on average, less than all others.",
    "far": "Looks {} far on average, further than all others.",
    "itself": "Keeps {} of each patch's attention on the patch itself.",
    "sink": "{} of its attention goes to tokens that are not patches.",
    "object": "Its attention agrees with the relevance (rank correlation {}).",
    "faithful": "Its attention predicts the drop of the output when patches are masked (correlation {}).",
    "needed": "The output drops most without it ({}).",
}
SPREAD = 0.6  # horizontal spread of a block's heads as a share of the distance between blocks


@st.cache_resource(show_spinner=False, max_entries=16)
def picture_statistics(key: str, _example: Example) -> dict[str, Statistic]:
    """Compute statistics of this picture."""
    return statistics(_example.explanation.record, _example.checkpoint.config.patch_size)


@st.cache_resource(show_spinner="Looking at the sample pictures…", max_entries=4)
def sample_statistics(identity: str, size: tuple[int, int], _example: Example) -> Tally:
    """Compute statistics over the sample pictures, at the selected input size."""
    model, preprocess = _example.checkpoint.model, _example.explanation.preprocess
    files = ((name, samples.read(name)) for name in samples.SAMPLES)
    with pass_of(_example):
        return sum((tally(model, decode_files([file], preprocess).pixels) for file in files), Tally())


@st.cache_resource(show_spinner=False, max_entries=16)
def agreement_with_class(key: str, target: int, _example: Example) -> Statistic:
    """Compute the agreement of each head with the class's relevance."""
    record = recorded_pass(_example, target).record
    return agreement(record, record.read, record.heatmap(record.relevance()))


def class_statistics(example: Example, choice: MethodChoice | None) -> dict[str, Statistic]:
    """Compute class-specific statistics; those that need many passes only if they were measured or are quick."""
    if choice is None:
        return {}
    by_name = {"object": agreement_with_class(example.key, choice.target_index, example)}
    if measured := mask_drops.measured(example, choice.target_index):
        record = recorded_pass(example, choice.target_index).record
        by_name["faithfulness"] = faithfulness(record, record.read, measured.masks, measured.drops)
    if what_if.measured(example, choice):
        values = what_if.importances(example, choice.target_index, True)
        by_name["effect"] = Statistic(torch.from_numpy(values), 0.0)
    return by_name


def show(
    example: Example, choice: MethodChoice | None, selection: Selection, select: Callable[[tuple[int, int]], None]
) -> None:
    """Draw a statistic for every head, its distribution over blocks, and suggested heads.

    Args:
        select: called with (block, head) when a head is clicked.
    """
    controls = st.container(horizontal=True, vertical_alignment="top")
    one, other = st.columns([3, 2], gap="large")
    with controls:
        over = link_controls.select("Measured on", "over", list(OVER), kind=st.segmented_control, link=OVER.__getitem__)
    with one:
        many: Tally | None = None
        if over == SAMPLES:
            many = sample_statistics(example.checkpoint.identity, example.explanation.preprocess.size, example)
        elif over == MANY:
            many = heads_over_pictures.show(example)
    if over == ONE:
        by_name = picture_statistics(example.key, example) | class_statistics(example, choice)
    else:
        by_name = many.statistics() if many else {}
    if not by_name:
        return
    with controls:
        order = sorted(by_name, key=list(STATISTICS).index)
        name = link_controls.select(
            "Statistic",
            "statistic",
            order,
            format_func=STATISTICS.__getitem__,
            width=WIDE,
            help="  \n".join(f"**{STATISTICS[one]}**: {MEANINGS[one]}" for one in order)
            + "  \n**Uniform attention**: the value if every token attended to all tokens equally.",
        )
    statistic = by_name[name]
    format_value, title = partial(format_statistic, name), STATISTICS[name]
    block, head = selection.block, selection.head
    with one:
        head_grid.show(
            "heads grid",
            statistic.values.numpy(),
            format_value,
            label=title + ("" if name in SIGNED else f"; uniform attention: {format_value(statistic.uniform)}"),
            scale="signed" if name in SIGNED else "viridis",
            marked=[(block, head)] if isinstance(block, int) and isinstance(head, int) else [],
            on_choose=select,
        )
    with other:
        _show_depth(statistic, title, ".1%" if name in SHARES else ".3g")
    if many:
        st.caption(artefacts_sentence(many.artefacts))
    _show_suggestions(by_name, select)
    stem = file_stem(example.checkpoint.name, example.explanation.preprocess.size, "heads")
    download_buttons.numbers("Heads", lambda: tables.heads_table(by_name), stem)


def _show_suggestions(by_name: dict[str, Statistic], select: Callable[[tuple[int, int]], None]) -> None:
    """Draw buttons for suggested heads, each with the reason."""
    chosen = suggestions(by_name)
    if not chosen:
        st.caption("All heads attend almost uniformly, so none is recommended.")
        return
    st.markdown("**Recommended heads**")
    for start in range(0, len(chosen), COLUMNS):  # row by row, to keep the order in a narrow window
        for column, one in zip(st.columns(COLUMNS), chosen[start : start + COLUMNS], strict=False):
            column.button(
                f"{one.kind.title()}: block {one.block + 1}, head {one.head + 1}",
                key=f"suggest {one.kind}",
                on_click=select,
                args=((one.block, one.head),),
                width="stretch",
            )
            column.caption(WHY[one.kind].format(format_statistic(one.statistic, one.value)))


def _show_depth(statistic: Statistic, title: str, digits: str) -> None:
    """Plot every head by block, as in the ViT paper, with standard deviations for several pictures.

    Args:
        digits: d3 number format.
    """
    values, pictures = statistic.values.numpy(), statistic.pictures
    blocks, heads = values.shape
    offsets = (np.arange(heads) - (heads - 1) / 2) * (SPREAD / heads)  # keep error bars from overlapping
    bars = {} if statistic.deviation is None else {"error_y": _bars(statistic.deviation.numpy().ravel())}
    figure = go.Figure(
        go.Scatter(
            x=(np.arange(1, blocks + 1)[:, None] + (offsets if bars else 0 * offsets)).ravel(),
            y=values.ravel(),
            mode="markers",
            name="a head",
            showlegend=True,
            marker={"color": STRONG, "size": 8, "opacity": 0.7},
            customdata=np.stack(
                [np.repeat(np.arange(1, blocks + 1), heads), np.tile(np.arange(1, heads + 1), blocks)], 1
            ),
            hovertemplate=f"block %{{customdata[0]}}, head %{{customdata[1]}}: %{{y:{digits}}}"
            + (f" ± %{{error_y.array:{digits}}}" if bars else "")
            + "<extra></extra>",
            **bars,
        )
    )
    figure.add_hline(
        y=statistic.uniform, line={"color": QUIET, "dash": "dash"}, name="uniform attention", showlegend=True
    )
    source = f"Mean over {pictures:,} pictures" if pictures > 1 else "One picture"
    small = "<br><sup>bars: standard deviation</sup>" if bars else ""
    figure.update_layout(
        height=360,
        margin={"l": 0, "r": 0, "t": 56, "b": 0},
        title={"text": source + small, "font": {"size": 14}},
        legend={"orientation": "h", "y": -0.2},
    )
    figure.update_xaxes(title="block", dtick=1 if blocks <= 16 else 4, fixedrange=True)
    ticks = ".0%" if digits.endswith("%") else None
    figure.update_yaxes(title=title, tickformat=ticks, rangemode="tozero", fixedrange=True)
    alt = f"{title} of every head by block. {source}."
    st.plotly_chart(figure, config={"displayModeBar": False}, key="depth", alt=alt)


def _bars(deviations: np.ndarray) -> dict[str, Any]:
    return {"array": deviations, "color": STRONG, "thickness": 1, "width": 2}
