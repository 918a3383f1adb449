"""Curves of a run as ECharts options: smoothed, thinned out, drawn in place while they grow."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import streamlit as st

POINTS = 1000  # of one trace, at most
COLORS = ("#3b929a", "#c07f3c", "#7d72c4", "#b3597a", "#6f8f3a", "#5a7fb5", "#9a7a55", "#888f94")  # on light and dark
HEIGHT = 280  # of a chart [px]

Points = Sequence[tuple[float, float]]


def smooth(points: Points, strength: float) -> list[tuple[float, float]]:
    """Running mean with exponentially fading weights; the first values count fully.

    Args:
        points: (x, y) each.
        strength: 0 leaves them as they are; near 1, each point is the mean of 1 / (1 - strength).

    >>> smooth([(0, 1.0), (1, 3.0)], 0.5)
    [(0, 1.0), (1, 2.3333333333333335)]
    """
    mean, weight, result = 0.0, 0.0, []
    for x, y in points:
        mean = strength * mean + (1 - strength) * y
        weight = strength * weight + (1 - strength)
        result.append((x, mean / weight))
    return result


def thin(points: Points, most: int = POINTS) -> list[tuple[float, float]]:
    """Every so many of the points, and the last, so that there are no more than `most`.

    >>> thin([(i, i) for i in range(10)], 6)
    [(0, 0), (2, 2), (4, 4), (6, 6), (8, 8), (9, 9)]
    """
    stride = 1
    while len(points) / stride > most - 1:
        stride *= 2  # seldom, so that the points that are kept stay the same as the curve grows
    kept = list(points[::stride])
    if points and kept[-1] != points[-1]:
        kept.append(points[-1])
    return kept


class View(NamedTuple):
    """How a person wants to see curves.

    Attributes:
        smoothing: 0 to below 1, see `smooth`.
        log: a logarithmic axis for the loss.
        first, last: part of the horizontal axis that is shown; None for its end, wherever that is.
    """

    smoothing: float = 0.6
    log: bool = False
    first: float = 0.0
    last: float | None = None


def controls(longest: int, unit: str = "epochs") -> View:
    """Let the person choose; Python knows the zoom, so that no tick loses it.

    Args:
        longest: end of the horizontal axis.
        unit: what it counts.
    """
    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        smoothing = st.slider("Smoothing", 0.0, 0.99, 0.6, key="smoothing", width=160)
        first, last = 0, longest
        if longest > 1:
            key = f"zoom {unit} {longest}"
            first, last = st.slider(f"Zoom [{unit}]", 0, longest, (0, longest), key=key, width=220)
        log = st.toggle("Logarithmic loss", key="log")
    return View(smoothing, log, first, None if last == longest else last)


def line(
    name: str, points: Points, color: str, *, faint: bool = False, dots: bool = False, dashed: bool = False
) -> dict[str, Any]:
    """One trace; `faint` is the unsmoothed data behind one."""
    return {
        "name": name,
        "type": "line",
        "data": [[_rounded(x), _rounded(y)] for x, y in thin(points) if math.isfinite(y)],
        "showSymbol": dots and len(points) <= 60,
        "symbolSize": 5,
        "silent": faint,
        "itemStyle": {"color": color},
        "lineStyle": {"color": color, "width": 1 if faint else 2, "opacity": 0.3 if faint else 1}
        | ({"type": "dashed"} if dashed else {}),
        "emphasis": {"disabled": True},
        "tooltip": {"show": not faint},
    }


def title(heading: str) -> dict[str, Any]:
    """A chart's heading, above its left edge."""
    return {"text": heading, "left": 0, "top": 4, "textStyle": {"fontSize": 14, "fontWeight": 500}}


def chart(
    heading: str,
    lines: Sequence[dict[str, Any]],
    *,
    x: str = "epoch",
    view: View | None = None,
    percent: bool = False,
    low: bool = False,
) -> dict[str, Any]:
    """An option for `st.echarts_chart`, which draws it in place while it grows.

    Args:
        x: what the horizontal axis counts.
        view: what part of it to show; logarithmic only while all values are above 0.
        low: with few marks on the vertical axis.
    """
    names = list(dict.fromkeys(trace["name"] for trace in lines if not trace["silent"]))
    view = view or View()
    lines = [trace | {"data": _within(trace["data"], view)} for trace in lines]
    values = [y for trace in lines for _, y in trace["data"]]
    y_axis: dict[str, Any] = {"type": "log" if view.log and min(values, default=1) > 0 else "value", "scale": True}
    y_axis |= {"splitNumber": 2} if low else {}
    y_axis |= {"axisLabel": {"formatter": "{value} %"}} if percent else {}
    legend = {"data": names, "right": 0, "top": 1, "icon": "roundRect", "itemWidth": 14, "itemHeight": 3}
    legend |= {"textStyle": {"lineHeight": 20}}  # where the legend scrolls, it cuts what is higher
    return {
        "animation": False,
        "title": title(heading),
        "legend": legend | ({"type": "scroll", "left": 140} if len(names) > 1 else {"show": False}),
        "grid": {"left": 4, "right": 14, "top": 40, "bottom": 4 if low else 24, "containLabel": True},
        "tooltip": {"trigger": "axis", "confine": True, "valueFormatter": "%.1f %%" if percent else "%.4g"},
        "xAxis": {
            "type": "value",
            "name": "" if low else x,
            "nameLocation": "middle",
            "nameGap": 24,
            "min": view.first,
            "max": "dataMax" if view.last is None else view.last,
            "axisLabel": {"showMaxLabel": False},
            "splitLine": {"show": False},
        },
        "yAxis": y_axis,
        "series": lines,
    }


def _within(data: list[list[float]], view: View) -> list[list[float]]:
    return [point for point in data if view.first <= point[0] and (view.last is None or point[0] <= view.last)]


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
