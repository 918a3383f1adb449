"""May this map be believed: measured on this picture, beside two controls."""

from collections.abc import Callable
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from pages.parts.reasons import Asked, Question, subject, weights
from vit.text import plain
from vit.tuning import Tuning
from vit.viewer.selection import Selection

SMALL = 1e9  # parameters times tokens
LIVE = 4.0  # [s]; what takes longer waits for a button
ACCENT, QUIET = "#3b929a", "#9aa5a8"


@st.cache_resource(show_spinner=False, max_entries=16)
def chance(key: str, target: int, _asked: Asked):
    """The controls of a picture and a class, once for all maps."""
    from vit.faithfulness import controls

    return controls(_asked.checkpoint.model, _asked.pixels, target, _asked.explanation.record.grid, seeds(_asked))


def seeds(asked: Asked) -> int:
    """How many random maps: more of them where the model is small."""
    from vit.faithfulness import SEEDS

    parameters = sum(p.numel() for p in asked.checkpoint.model.parameters())
    return 4 * SEEDS if parameters * asked.explanation.record.tokens < SMALL else SEEDS


@st.cache_resource(show_spinner=False, max_entries=256)
def measured(key: str, target: int, which: str, _asked: Asked, _heatmap: Callable[[], Any]) -> float:
    """SaCo of one map."""
    from vit.faithfulness import faithfulness

    return faithfulness(_asked.checkpoint.model, _asked.pixels, target, [_heatmap()])[0]


@st.cache_resource(show_spinner=False, max_entries=32)
def curves(key: str, target: int, which: str, _asked: Asked, _heatmap: Callable[[], Any]):
    """Deletion and insertion of one map, and of a blob in the middle."""
    from vit.faithfulness import centre, deletion, insertion

    model, pixels = _asked.checkpoint.model, _asked.pixels
    maps = {"this map": _heatmap(), "a blob in the middle": centre(_asked.explanation.record.grid)}
    return {
        title: {name: draw(model, pixels, target, one) for name, one in maps.items()}
        for title, draw in (("Deletion", deletion), ("Insertion", insertion))
    }


@st.cache_resource(show_spinner=False, max_entries=16)
def ranking(key: str, target: int, tuning: Tuning, _asked: Asked) -> dict[str, float]:
    """SaCo of every method on this picture, best first."""
    from vit.faithfulness import faithfulness
    from vit.methods import METHODS, heatmap

    asked = subject(key, target, _asked)
    maps = [heatmap(asked, name, tuning=tuning) for name in METHODS]
    found = faithfulness(asked.model, asked.pixels, target, maps)
    return dict(sorted(zip(METHODS, found, strict=True), key=lambda pair: -pair[1]))


def show(asked: Asked, question: Question, selection: Selection) -> None:
    """The verdict on the map that is shown."""
    from vit.explain import cost
    from vit.faithfulness import GROUPS, Faithfulness

    target, label = question.target, plain(asked.checkpoint.labels[question.target])
    which = " ".join(f"{name}={getattr(selection, name)}" for name in ("view", "block", "head", "direction"))
    which += f" {selection.token} {selection.pinned} {selection.settings()}"
    which += question.method if selection.view == "relevance" else ""

    def heatmap():
        return asked.explanation.record.heatmap(weights(asked, selection, question))

    seconds = cost(asked.checkpoint, asked.explanation.preprocess.size).seconds
    once = f"{asked.key} {target}"
    if seconds * GROUPS > LIVE and st.session_state.get("measure") != once:
        total = seconds * GROUPS * (2 + seeds(asked))
        st.caption("Is the map true? That is found out by taking away what it calls important.")
        if not st.button(f"Measure it (about {total:.0f} s)"):
            return
        st.session_state.measure = once
    with st.spinner("Taking parts of the picture away…"):
        score = measured(asked.key, target, which, asked, heatmap)
        random, blob = chance(asked.key, target, asked)
    verdict = Faithfulness(score, random, blob)
    left, right = st.columns([3, 2], gap="large", vertical_alignment="center")
    with left:
        st.plotly_chart(_gauge(verdict), config={"displayModeBar": False}, key="gauge", alt=_alt(verdict))
    with right:
        st.markdown(f"**{verdict.words}**")
        st.caption(
            f"For “{label}”, on this picture.",
            help="SaCo (Wu et al. 2024): the pixels are put into ten groups by what the map gives them. Each "
            "group is replaced by the mean colour; taking a group that the map calls more important should lower the "
            "class more. 1: always so, -1: always the other way round, near 0: random.",
        )
    with st.container(horizontal=True):
        both = st.toggle("Deletion and insertion", key="curves")
        compare = st.toggle("All methods on this picture", key="ranking")
    if both:
        _show_curves(curves(asked.key, target, which, asked, heatmap), label)
    if compare:
        _show_ranking(ranking(asked.key, target, Tuning(**selection.settings()), asked), verdict)


def _alt(verdict) -> str:
    return (
        f"SaCo of this map {verdict.saco:.2f}, of random maps {min(verdict.random):.2f} to {max(verdict.random):.2f}, "
        f"of a blob in the middle {verdict.blob:.2f}"
    )


def _gauge(verdict) -> go.Figure:
    """One line from -1 to 1 with the map, the blob and the random maps on it."""
    figure = go.Figure()
    marks = (
        ("random maps", list(verdict.random), QUIET, "circle-open", 9, "bottom center"),
        ("blob in the middle", [verdict.blob], QUIET, "diamond", 12, "bottom center"),
        ("this map", [verdict.saco], ACCENT, "circle", 16, "top center"),
    )
    for name, values, color, symbol, size, where in marks:
        figure.add_scatter(
            x=values,
            y=[0] * len(values),
            mode="markers+text",
            marker={"color": color, "symbol": symbol, "size": size, "line": {"width": 2, "color": color}},
            text=[f"{values[0]:.2f}"] if name == "this map" else [""] * len(values),
            textposition=where,
            name=name,
            hovertemplate=f"{name}: %{{x:.2f}}<extra></extra>",
        )
    figure.update_layout(
        height=170,
        margin={"l": 0, "r": 0, "t": 30, "b": 60},
        legend={"orientation": "h", "y": -0.45, "x": 0},
        title={"text": "Faithfulness (SaCo)", "font": {"size": 14}},
    )
    figure.update_xaxes(range=[-1.08, 1.08], tickvals=[-1, -0.5, 0, 0.5, 1], zeroline=True, fixedrange=True)
    figure.update_yaxes(visible=False, range=[-1, 1.6], fixedrange=True)
    return figure


def _show_curves(every, label: str) -> None:
    for column, (title, lines) in zip(st.columns(2, gap="large"), every.items(), strict=True):
        figure = go.Figure()
        for (name, curve), color in zip(lines.items(), (ACCENT, QUIET), strict=True):
            figure.add_scatter(
                x=curve.shares,
                y=curve.probabilities,
                name=f"{name}: area {curve.area:.2f}",
                line={"color": color, "width": 3 if color == ACCENT else 2},
            )
        how = "gone, the most important first" if title == "Deletion" else "sharp, the most important first"
        figure.update_layout(
            height=260,
            margin={"l": 0, "r": 0, "t": 30, "b": 0},
            title={"text": f"{title}: “{label}”", "font": {"size": 14}},
            legend={"orientation": "h", "y": -0.35},
        )
        figure.update_xaxes(title=f"pixels {how}", tickformat=".0%", range=[0, 1], fixedrange=True)
        figure.update_yaxes(tickformat=".0%", range=[0, 1], fixedrange=True)
        better = "lower" if title == "Deletion" else "higher"
        column.plotly_chart(figure, config={"displayModeBar": False}, key=f"curve {title}", alt=f"{title} curve")
        column.caption(f"The {better} the area, the better the map.")


def _show_ranking(found: dict[str, float], verdict) -> None:
    from vit.methods import METHODS

    names = list(found)[::-1]
    figure = go.Figure(
        go.Bar(
            x=[found[name] for name in names],
            y=[METHODS[name].title for name in names],
            orientation="h",
            marker_color=ACCENT,
            text=[f"{found[name]:.2f}" for name in names],
            hoverinfo="skip",
        )
    )
    figure.add_vrect(x0=min(verdict.random), x1=max(verdict.random), fillcolor=QUIET, opacity=0.25, line_width=0)
    figure.add_vline(x=verdict.blob, line={"color": QUIET, "dash": "dot", "width": 2})
    figure.update_layout(height=34 * len(names) + 60, margin={"l": 0, "r": 0, "t": 0, "b": 0})
    figure.update_xaxes(range=[-1, 1], title="SaCo", fixedrange=True)
    figure.update_yaxes(fixedrange=True)
    st.plotly_chart(figure, config={"displayModeBar": False}, key="ranked", alt="SaCo of every method on this picture")
    st.caption(
        "Each method's map for the class as a whole. Grey: what random maps reach; dotted: a blob in the middle. One "
        "picture says little about a method: `python -m vit faithfulness` ranks them on a dataset."
    )
