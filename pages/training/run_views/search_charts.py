"""Charts of a search: validation accuracy of trials by epoch, and against every setting."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import plotly.graph_objects as go
import streamlit as st

from pages.training import run_records, setting_names
from pages.training.run_views import curves
from vit.training.loop.metrics import best_epoch, evaluations
from vit.training.runs.registry import Run
from vit.training.search.control import Search
from vit.training.search.space import Choices, Range, format_settings
from vit.view.chart_colours import BLUE, GREY, ORANGE, PINK, STRONG

_KINDS = {  # kinds of trials, foreground first: colour, line width, opacity
    "best": (STRONG, 3, 1.0),
    "trained to the end": (BLUE, 1.5, 0.9),
    "under way": (ORANGE, 1.5, 0.9),
    "ended early": (GREY, 1.2, 0.65),
    "failed or stopped": (PINK, 1.2, 0.65),
}
_POINTS = 60  # maximum per line
_ACROSS = 3  # charts in a row
_MANY = 40  # draw dots up to this number of trials


class Trial(NamedTuple):
    """A trial of a search, as drawn in the charts.

    Attributes:
        number: from 1.
        accuracy: best validation accuracy so far, 0 to 1; None before the first epoch.
        epochs: last validated epoch.
        kind: a key of `_KINDS`.
    """

    number: int
    run: Run
    accuracy: float | None
    epochs: int
    kind: str


def trials(search: Search) -> list[Trial]:
    """Return the trials of a search, best first."""
    result = []
    for number, run in search.trials(run_records.every_run()).items():
        records = run_records.figures(run).records
        best, epochs = best_epoch(records), evaluations(records)
        kind = "under way" if run.alive else _ENDS.get(run.status, "failed or stopped")
        accuracy = best["accuracy"] if best else None
        result.append(Trial(number + 1, run, accuracy, epochs[-1]["epoch"] if epochs else 0, kind))
    result.sort(key=lambda trial: (-1 if trial.accuracy is None else trial.accuracy, -trial.number), reverse=True)
    if len(result) > 1 and result[1].accuracy is not None:  # a single result is not marked as the best
        result[0] = result[0]._replace(kind="best")
    return result


_ENDS = {"finished": "trained to the end", "pruned": "ended early"}


def draw(search: Search, every: Sequence[Trial]) -> None:
    """Draw accuracy by epoch for all trials, then their best accuracy against every setting."""
    st.echarts_chart(
        _over_epochs(search, every), key="search curves", height=320, alt="Validation accuracy of every trial by epoch"
    )
    dimensions = search.plan.dimensions
    measured = [trial for trial in every if trial.accuracy is not None]
    if not measured:
        return
    accuracies = [100 * trial.accuracy for trial in measured if trial.accuracy is not None]
    ends = max(math.floor(min(accuracies)) - 1, 0), min(math.ceil(max(accuracies)) + 1, 100)
    if len(dimensions) == 2 and all(isinstance(dimension, Choices) for dimension in dimensions.values()):
        _draw_heat_map(dimensions, measured)
        return
    names = list(dimensions)
    for first in range(0, len(names), _ACROSS):
        for column, name in zip(st.columns(_ACROSS), names[first : first + _ACROSS], strict=False):
            title = setting_names.title(name)
            column.echarts_chart(
                _against(name, dimensions[name], measured, ends),
                key=f"search {name}",
                height=210,
                alt=f"Validation accuracy against {title}",
            )


def _over_epochs(search: Search, every: Sequence[Trial]) -> dict[str, Any]:
    """Return a chart with a line per trial up to its last epoch, with the best one in the foreground."""
    series: list[dict[str, Any]] = []
    dots = len(every) <= _MANY
    for trial in reversed(every):
        color, width, opacity = _KINDS[trial.kind]
        figures = run_records.figures(trial.run)
        reached = [
            (record["step"] / figures.steps_per_epoch, 100 * record["accuracy"])
            for record in evaluations(figures.records)
        ]
        points = curves.downsample(reached, _POINTS)
        data = [
            {
                "value": [round(x, 3), round(y, 2)],
                "name": f"Trial {trial.number}, epoch {x:g}: {y:.1f}%",
                "symbol": "circle" if dots or (x, y) == points[-1] else "none",
                "symbolSize": 8 if (x, y) == points[-1] and trial.kind == "ended early" else 5,
            }
            for x, y in points
        ]
        series.append(
            {
                "name": trial.kind,
                "type": "line",
                "data": data,
                "z": 4 if trial.kind == "best" else 2,
                "itemStyle": {"color": color, "opacity": opacity},
                "lineStyle": {"color": color, "width": width, "opacity": opacity},
                "emphasis": {"focus": "series"},
            }
        )
    if series:
        rungs = [{"xAxis": epoch} for epoch in search.plan.rungs()]
        line = {"color": GREY, "type": "dashed", "opacity": 0.5}
        series[0]["markLine"] = {"silent": True, "symbol": "none", "label": {"show": False}, "data": rungs}
        series[0]["markLine"] |= {"lineStyle": line, "animation": False}
    return {
        "animation": False,
        "title": curves.title("Validation accuracy"),
        "legend": {"data": _kinds_of(every), "right": 0, "top": 1, "icon": "roundRect"}
        | {"itemWidth": 14, "itemHeight": 3, "type": "scroll", "left": 150, "textStyle": {"lineHeight": 20}},
        "grid": {"left": 4, "right": 14, "top": 40, "bottom": 24, "containLabel": True},
        "tooltip": {"trigger": "item", "formatter": "{b}", "confine": True},
        "xAxis": {"type": "value", "name": "epoch", "nameLocation": "middle", "nameGap": 24}
        | {"min": 0, "max": search.plan.epochs, "minInterval": 1, "splitLine": {"show": False}},
        "yAxis": {"type": "value", "scale": True, "axisLabel": {"formatter": "{value}%"}},
        "series": series,
    }


def _against(name: str, dimension: Range | Choices, measured: Sequence[Trial], ends: tuple[int, int]) -> dict[str, Any]:
    """Return a chart of the trials' best accuracy against a setting, with the scale that it was sampled on."""
    title = setting_names.title(name)
    if isinstance(dimension, Choices):
        axis: dict[str, Any] = {"type": "category", "data": [str(value) for value in dimension.values]}
    else:
        axis = {"type": "log" if dimension.log else "value", "min": dimension.low, "max": dimension.high}
        axis |= {"splitLine": {"show": False}, "axisLabel": {"hideOverlap": True}}
    series: list[dict[str, Any]] = []
    for kind in reversed(_kinds_of(measured)):
        color, _, opacity = _KINDS[kind]
        data = []
        for trial in measured:
            value = trial.run.config.get(name)
            if trial.kind != kind or trial.accuracy is None:
                continue
            if isinstance(dimension, Choices):  # the category's number: 1 and 1.0 are one value with two texts
                x = dimension.values.index(value) if value in dimension.values else None
            else:
                x = value
            if x is None:
                continue
            text = f"Trial {trial.number}, {format_settings({name: value})}: {100 * trial.accuracy:.1f}%"
            data.append({"value": [x, round(100 * trial.accuracy, 2)], "name": text})
        style = {"color": color, "opacity": opacity}
        series.append({"name": kind, "type": "scatter", "data": data, "itemStyle": style})
        series[-1]["symbolSize"] = 13 if kind == "best" else 8
    return {
        "animation": False,
        "grid": {"left": 4, "right": 18, "top": 12, "bottom": 24, "containLabel": True},
        "tooltip": {"trigger": "item", "formatter": "{b}", "confine": True},
        "xAxis": axis | {"name": title, "nameLocation": "middle", "nameGap": 24},
        "yAxis": {"type": "value", "min": ends[0], "max": ends[1], "splitNumber": 3}
        | {"axisLabel": {"formatter": "{value}%", "showMinLabel": False, "showMaxLabel": False}},
        "series": series,
    }


def _draw_heat_map(dimensions: Mapping[str, Range | Choices], measured: Sequence[Trial]) -> None:
    """Draw the trials' best accuracy against both settings, each with a list of values."""
    across, down = (one.values for one in dimensions.values() if isinstance(one, Choices))
    x_title, y_title = map(setting_names.title, dimensions)
    cells: list[list[float | None]] = [[None] * len(across) for _ in down]
    for trial in measured:
        x, y = (trial.run.config.get(name) for name in dimensions)
        if x in across and y in down and trial.accuracy is not None:
            cells[down.index(y)][across.index(x)] = 100 * trial.accuracy
    figure = go.Figure(
        go.Heatmap(
            x=list(map(str, across)),
            y=list(map(str, down)),
            z=cells,
            colorscale="Viridis",
            texttemplate="%{z:.1f}%",
            hovertemplate=f"{x_title} %{{x}}, {y_title} %{{y}}: %{{z:.2f}}%<extra></extra>",
            colorbar={"ticksuffix": "%", "thickness": 12},
        )
    )
    figure.update_layout(height=max(240, 80 + 48 * len(down)), margin={"l": 0, "r": 0, "t": 8, "b": 0})
    figure.update_xaxes(title=x_title, type="category")
    figure.update_yaxes(title=y_title, type="category")
    heading = f"Validation accuracy against {x_title} and {y_title}"
    st.plotly_chart(figure, config={"displayModeBar": False}, key="search heat map", alt=heading)


def _kinds_of(every: Sequence[Trial]) -> list[str]:
    present = {trial.kind for trial in every}
    return [kind for kind in _KINDS if kind in present]
