"""What the heads do: a number for each, over this picture or over the samples, and what the weights alone show."""

from typing import Any

import numpy as np
import plotly.graph_objects as go
import streamlit as st

from pages.parts import whatif
from pages.parts.reasons import Asked, Question, subject
from vit import samples
from vit.matrix import component as matrix
from vit.viewer.selection import Selection

SIGNED = ("object", "effect")
ACCENT, QUIET = "#3b929a", "#9aa5a8"
TITLES = {
    "distance": "Mean attention distance [px]",
    "entropy": "Entropy (1 is uniform)",
    "self": "On the patch itself",
    "neighbours": "On the eight patches around it",
    "cls": "On the class token",
    "dist": "On the distillation token",
    "registers": "On registers",
    "object": "Agreement with the class's relevance (rank correlation)",
    "effect": "What the class loses without it [logits]",
}


@st.cache_resource(show_spinner=False, max_entries=16)
def of_picture(key: str, _asked: Asked):
    """Statistics of this picture."""
    from vit.atlas import statistics

    return statistics(_asked.explanation.record, _asked.checkpoint.config.patch_size)


@st.cache_resource(show_spinner="Looking at the sample pictures…", max_entries=4)
def of_samples(weights: str, size: tuple, _asked: Asked):
    """The mean over the sample pictures, at the size that is chosen."""
    from vit.atlas import mean_statistics, statistics
    from vit.attention import record
    from vit.images import decode_image

    checkpoint, preprocess = _asked.checkpoint, _asked.explanation.preprocess
    pictures = (preprocess(decode_image(samples.read(name))) for name in samples.SAMPLES)
    return mean_statistics(
        statistics(record(checkpoint.model, pixels), checkpoint.config.patch_size) for pixels in pictures
    )


@st.cache_resource(show_spinner=False, max_entries=16)
def agreeing(key: str, target: int, _asked: Asked):
    """How far each head looks where the class's relevance is."""
    from vit.atlas import agreement

    kept = subject(key, target, _asked).kept
    return agreement(kept, kept.read, kept.heatmap(kept.relevance()))


def of_class(asked: Asked, question: Question | None) -> dict:
    """Statistics that ask about a class; what a head does for it where that was measured or is quick."""
    import torch

    from vit.atlas import Statistic

    if question is None:
        return {}
    found = {"object": agreeing(asked.key, question.target, asked)}
    if whatif.measured(asked, question):
        values = whatif.importances(asked.key, question.target, True, asked)
        found["effect"] = Statistic(torch.from_numpy(values), 0.0)
    return found


def show(asked: Asked, question: Question | None, selection: Selection, select: Any) -> None:
    """The atlas of heads.

    Args:
        select: called with (block, head) when one is clicked.
    """
    one, other = st.columns([3, 2], gap="large")
    with one, st.container(horizontal=True, vertical_alignment="bottom"):
        over = st.segmented_control(
            "Over", ["this picture", "the samples"], default="this picture", required=True, key="atlas over"
        )
        found = (
            of_picture(asked.key, asked) | of_class(asked, question)
            if over == "this picture"
            else of_samples(asked.checkpoint.hash, asked.explanation.preprocess.size, asked)
        )
        names = sorted(found, key=list(TITLES).index)
        name = st.selectbox("Statistic", names, format_func=TITLES.__getitem__, key="atlas statistic")
    statistic = found[name]
    values = statistic.values.numpy()
    words = _words(name)
    chosen = isinstance(selection.block, int) and isinstance(selection.head, int)
    with one:
        matrix.show(
            "atlas",
            values,
            words,
            label=TITLES[name] + ("" if name in SIGNED else f"; uniform attention: {words(statistic.uniform)}"),
            scale="signed" if name in SIGNED else "viridis",
            marked=[(selection.block, selection.head)] if chosen else [],
            on_choose=select,
        )
        _show_suggestions(found, select)
    with other:
        _show_depth(values, statistic.uniform, TITLES[name])


def _words(name: str) -> Any:
    if name in SIGNED:
        return "{:+.2f}".format
    return {"distance": "{:.1f} px", "entropy": "{:.2f}"}.get(name, "{:.1%}").format


def _show_suggestions(found: dict, select: Any) -> None:
    """Heads to look at first, each with the number that says why."""
    ideas = [("Local", "distance", False), ("Far", "distance", True), ("Itself", "self", True)]
    ideas += [("Sink", name, True) for name in ("cls", "registers") if name in found][:1]
    ideas += [(title, name, True) for title, name in (("Object", "object"), ("Needed", "effect")) if name in found]
    with st.container(horizontal=True):
        for title, name, largest in ideas:
            values = found[name].values
            place = int(values.argmax() if largest else values.argmin())
            block, head = divmod(place, values.shape[1])
            value = float(values[block, head])
            st.button(
                f"{title}: block {block + 1}, head {head + 1} ({_words(name)(value)})",
                key=f"suggest {title}",
                on_click=select,
                args=((block, head),),
                help=TITLES[name],
            )


def _show_depth(values: np.ndarray, uniform: float, title: str) -> None:
    """Every head over its block, as in the ViT paper."""
    blocks, heads = values.shape
    figure = go.Figure(
        go.Scatter(
            x=np.repeat(np.arange(1, blocks + 1), heads),
            y=values.ravel(),
            mode="markers",
            marker={"color": ACCENT, "size": 8, "opacity": 0.7},
            customdata=np.tile(np.arange(1, heads + 1), blocks),
            hovertemplate="block %{x}, head %{customdata}: %{y:.3g}<extra></extra>",
        )
    )
    figure.add_hline(y=uniform, line={"color": QUIET, "dash": "dash"}, annotation_text="uniform attention")
    figure.update_layout(height=320, margin={"l": 0, "r": 0, "t": 10, "b": 0})
    figure.update_xaxes(title="block", dtick=1 if blocks <= 16 else 4, fixedrange=True)
    figure.update_yaxes(title=title, rangemode="tozero", fixedrange=True)
    st.plotly_chart(figure, config={"displayModeBar": False}, key="depth", alt=f"{title} of every head by block")
