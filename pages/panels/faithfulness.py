"""May this map be believed: measured on this picture, beside two controls."""

from collections.abc import Callable
from typing import NamedTuple

import plotly.graph_objects as go
import streamlit as st
from torch import Tensor

from pages.shared import bars, link_controls, session
from pages.shared.class_question import Example, Question, pass_of, subject, weights
from pages.shared.escape import for_plotly, plain
from pages.shared.result_cache import TELL_ABOVE
from vit import devices
from vit.explain.faithfulness import (
    RANDOM_MAPS,
    Controls,
    Curve,
    Faithfulness,
    Score,
    centre,
    controls,
    deletion,
    faithfulness,
    insertion,
    memory,
    scores,
    seconds,
)
from vit.explain.method_ranking import recorded
from vit.explain.methods import METHODS, heatmap_of, shares
from vit.explain.settings import Settings
from vit.view.captions import about
from vit.view.selection import Selection

SMALL_PASS = 1e9  # parameters times tokens
ASK_ABOVE = 8.0  # [s]; what takes longer waits for a button
MAPPED = 1.4  # maps, as which a method counts: those with a gradient take four passes besides
SAME = 0.01  # of a map's maximum; rounding to bfloat16 stays below


@st.cache_resource(show_spinner=False, max_entries=16)
def chance(key: str, target: int, _example: Example) -> Controls:
    """The controls of a picture and a class, once for all maps."""
    with pass_of(_example):
        return controls(
            _example.checkpoint.model, _example.pixels, target, _example.explanation.record.grid, seeds(_example)
        )


def seeds(example: Example) -> int:
    """How many random maps: more of them where the model is small."""
    parameters = sum(p.numel() for p in example.checkpoint.model.parameters())
    return 4 * RANDOM_MAPS if parameters * example.explanation.record.tokens < SMALL_PASS else RANDOM_MAPS


@st.cache_resource(show_spinner=False, max_entries=256)
def measured(
    key: str, target: int, which: str, _example: Example, _heatmap: Callable[[], Tensor]
) -> tuple[Score, bool]:
    """The score of one map, and whether it says anything: it may be zero everywhere."""
    heatmap = _heatmap()
    with pass_of(_example):
        return scores(_example.checkpoint.model, _example.pixels, target, [heatmap])[0], bool(heatmap.any())


@st.cache_resource(show_spinner=False, max_entries=32)
def curves(
    key: str, target: int, which: str, _example: Example, _heatmap: Callable[[], Tensor]
) -> dict[str, dict[str, Curve]]:
    """Deletion and insertion of one map, and of a blob in the middle."""
    model, pixels = _example.checkpoint.model, _example.pixels
    maps = {"this map": _heatmap(), "a blob in the middle": centre(_example.explanation.record.grid)}
    with pass_of(_example):
        return {
            title: {name: draw(model, pixels, target, one) for name, one in maps.items()}
            for title, draw in (("Deletion", deletion), ("Insertion", insertion))
        }


class Ranked(NamedTuple):
    """A method on this picture: SaCo and map (rows, cols)."""

    saco: float
    heatmap: Tensor


@st.cache_resource(show_spinner=False, max_entries=16)
def ranking(key: str, target: int, settings: Settings, _example: Example) -> dict[str, Ranked]:
    """Every method, best first."""
    of_class = subject(_example, target)
    with pass_of(_example):
        maps = [heatmap_of(of_class, name, **settings.settings(METHODS[name].settings)) for name in METHODS]
        ranked = map(Ranked, faithfulness(of_class.model, of_class.pixels, target, maps), maps)
    return dict(sorted(zip(METHODS, ranked, strict=True), key=lambda pair: -pair[1].saco))


def show(example: Example, question: Question, selection: Selection) -> None:
    """The verdict on the map that is shown."""
    target, name = question.about, example.checkpoint.labels[question.about]
    label = plain(name)
    which = " ".join(f"{name}={getattr(selection, name)}" for name in ("view", "block", "head", "direction"))
    which += f" {selection.token} {selection.pinned} {selection.settings()}"
    which += question.method if selection.view == "relevance" else ""

    def heatmap() -> Tensor:
        return example.explanation.record.heatmap(weights(example, selection, question))

    if problem := _problem(example):
        st.caption(problem)
        return
    model, size, request = example.checkpoint.model, example.explanation.preprocess.size, f"{example.key} {target}"
    expected = seconds(model, size, 2 + seeds(example))  # this map, the random ones and the blob
    if expected > ASK_ABOVE and session.of(session.Explore).verdict != request:
        placeholder = st.empty()
        with placeholder.container():
            st.caption("Is the map true? That is found out by taking away what it calls important.")
            if not st.button(f"Measure it ({about(expected)})"):
                return
        placeholder.empty()
    session.of(session.Explore).verdict = request  # nobody is asked again where the machine has become busy
    with st.spinner("Taking parts of the picture away…"):
        score, speaks = measured(example.key, target, which, example, heatmap)
        verdict = Faithfulness(score, chance(example.key, target, example))
    sentence = verdict.sentence if speaks else f"The map is zero everywhere: nothing in it speaks for “{label}”."
    if verdict.decidable and speaks:
        left, right = st.columns([3, 2], gap="large", vertical_alignment="center")
        with left:
            _show_gauge(verdict)
        why = (
            f"1 is always right. Chance reaches {bars.number(verdict.chance.highest)}: two standard deviations above "
            "the mean of the random maps."
        )
    else:
        right = st.container()
        why = f"Whichever tenth is gone, its probability stays within {verdict.difference:.2%} of the highest."
    if not speaks:
        why = "A map without values puts the patches in no order, so there is nothing to be right or wrong."
    with right:
        st.markdown(f"**{sentence}**")
        st.caption(
            f"For “{label}”, on this picture. {why}{_on_many(example, question, selection)}",
            help="SaCo (Wu et al. 2024): the pixels are put into ten groups by what the map gives them. Each "
            "group is replaced by the mean colour; taking a group that the map calls more important should lower the "
            "class more. 1: always so, −1: always the other way round, near 0: random. Chance reaches two standard "
            "deviations above the mean of the random maps. Where the probability stays within 1% whichever group is "
            "gone, the order of the groups says nothing, and there is no verdict.",
        )
    with st.container(horizontal=True):
        both = link_controls.toggle("Deletion and insertion", "curves")
        every = seconds(model, size, MAPPED * len(METHODS))
        takes = f" ({about(every)})" if every > TELL_ABOVE else ""
        compare = link_controls.toggle(f"All methods on this picture{takes}", "ranking")
    if both:
        _show_curves(curves(example.key, target, which, example, heatmap), name)
    if compare:
        ranked = ranking(example.key, target, Settings(**selection.settings()), example)
        _show_ranking(ranked, verdict, _method_of_map(ranked, selection, question, heatmap()))


def _on_many(example: Example, question: Question, selection: Selection) -> str:
    """What the method that is shown reached on a dataset, where that was measured for this checkpoint."""
    last, record = METHODS["attention"].settings, example.explanation.record
    layers = selection.block, selection.head
    if selection.view == "attention" and layers != (last["block"] % record.blocks, last["head"]):
        return ""
    name = {"relevance": question.method, "rollout": "rollout", "attention": "attention"}.get(selection.view, "")
    pictures, intervals = recorded(example.checkpoint.facts)
    if name not in intervals:
        return ""
    one = intervals[name]
    return (
        f" On {pictures:,} test pictures {METHODS[name].title} reached {bars.number(one.mean)} "
        f"({bars.number(one.low)} to {bars.number(one.high)})."
    )


def _problem(example: Example) -> str:
    """Why no map can be judged here, "" if one can."""
    needed, (_, free) = memory(example.checkpoint.config, example.explanation.preprocess.size), devices.memory()
    if not 0 < free < needed:
        return ""
    return (
        f"Whether the map is true would take {needed / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free. "
        "Choose a smaller input."
    )


def _method_of_map(ranked: dict[str, Ranked], selection: Selection, question: Question, heatmap: Tensor) -> str | None:
    """The method whose map for the class as a whole is the one that is shown, to rounding."""
    name = {"relevance": question.method, "rollout": "rollout", "attention": "attention"}.get(selection.view)
    if name is None:
        return None
    other = ranked[name].heatmap
    one, other = shares(heatmap), shares(other)
    return name if bool((one - other).abs().max() <= SAME * other.max()) else None


def _alt(verdict: Faithfulness) -> str:
    return (
        f"SaCo of this map {verdict.saco:.2f}, of a blob in the middle {verdict.controls.blob:.2f}; chance reaches "
        f"from {verdict.chance.lowest:.2f} to {verdict.chance.highest:.2f}"
    )


def _show_gauge(verdict: Faithfulness) -> None:
    """A line from -1 to 1 for the map, one for the blob, one for the random maps, and what chance reaches behind."""
    rows = [
        bars.Marks("this map", [verdict.saco], "disc"),
        bars.Marks("blob in the middle", [verdict.controls.blob], "diamond"),
        bars.Marks("random maps", verdict.controls.random, "ring"),
    ]
    bars.show_line("Faithfulness (SaCo)", rows, verdict.chance, "chance", _alt(verdict))


def _show_chance(figure: go.Figure, verdict: Faithfulness) -> None:
    """Shade what random maps reach, with a word above."""
    figure.add_vrect(
        *verdict.chance,
        fillcolor=bars.QUIET,
        opacity=0.25,
        line_width=0,
        layer="below",
    )
    figure.add_annotation(
        text="chance", x=sum(verdict.chance) / 2, y=1, yref="paper", yanchor="bottom", showarrow=False
    )


def _show_curves(every: dict[str, dict[str, Curve]], label: str) -> None:
    for column, (title, lines) in zip(st.columns(2, gap="large"), every.items(), strict=True):
        figure = go.Figure()
        for (name, curve), color in zip(lines.items(), (bars.STRONG, bars.QUIET), strict=True):
            figure.add_scatter(
                x=curve.shares,
                y=curve.probabilities,
                name=f"{name}: area {curve.area:.2f}",
                line={"color": color, "width": 3 if color == bars.STRONG else 2},
            )
        how = "gone, the most important first" if title == "Deletion" else "sharp, the most important first"
        figure.update_layout(
            height=260,
            margin={"l": 0, "r": 0, "t": 30, "b": 0},
            title={"text": f"{title}: “{for_plotly(label)}”", "font": {"size": 14}},
            legend={"orientation": "h", "y": -0.35},
        )
        figure.update_xaxes(title=f"pixels {how}", tickformat=".0%", range=[0, 1], fixedrange=True)
        figure.update_yaxes(tickformat=".0%", range=[0, 1], fixedrange=True)
        column.plotly_chart(figure, config={"displayModeBar": False}, key=f"curve {title}", alt=f"{title} curve")
        column.caption(_about(title, lines["this map"], plain(label)))


def _about(title: str, curve: Curve, label: str) -> str:
    """How to read a curve; and where it can say little, why."""
    if title == "Deletion":
        left, better = f"With all pixels gone it is still “{label}” to {curve.probabilities[-1]:.0%}", "lower"
        why = f"{left}: there is little to lose"
    else:
        left, better = f"Blurred, the picture is “{label}” to {curve.probabilities[0]:.0%} already", "higher"
        why = f"{left}: sharp pixels have little to add"
    sentence = f"The {better} the area, the better the map."
    return sentence if curve.leads_somewhere else f"{sentence} {why}, so here the area alone says little."


def _show_ranking(ranked: dict[str, Ranked], verdict: Faithfulness, marked_method: str | None) -> None:
    names = list(ranked)[::-1]
    figure = go.Figure(
        go.Bar(
            x=[ranked[name].saco for name in names],
            y=[f"<b>▸ {METHODS[name].title}</b>" if name == marked_method else METHODS[name].title for name in names],
            orientation="h",
            marker={"color": bars.STRONG, "opacity": [1.0 if name == marked_method else 0.55 for name in names]},
            text=[bars.number(ranked[name].saco) for name in names],
            hoverinfo="skip",
        )
    )
    _show_chance(figure, verdict)
    figure.add_vline(x=verdict.controls.blob, line={"color": bars.QUIET, "dash": "dot", "width": 2})
    figure.update_layout(height=34 * len(names) + 80, margin={"l": 0, "r": 0, "t": 20, "b": 0})
    figure.update_xaxes(range=[-1, 1], title="SaCo", fixedrange=True)
    figure.update_yaxes(fixedrange=True)
    marked = f", {METHODS[marked_method].title} is the one shown" if marked_method else ""
    alt = f"SaCo of every method on this picture{marked}"
    st.plotly_chart(figure, config={"displayModeBar": False}, key="ranked", alt=alt)
    which = "▸ is shown above" if marked_method else "the one above is none of them"
    st.caption(
        f"Each method's map for the class as a whole; {which}. "
        "Grey: what chance reaches; dotted: a blob in the middle. One picture says little about a method: "
        "`python -m vit faithfulness` ranks them on a dataset."
    )
