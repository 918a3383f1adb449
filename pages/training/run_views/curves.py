"""Curves of a run as ECharts options: smoothed, subsampled, and updated in place."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import streamlit as st

from pages.links import address, link_controls
from pages.links.page_links import RunsLink
from vit.confidence import decimals

POINTS = 1000  # maximum per trace
HEIGHT = 280  # height of a chart [px]

Points = Sequence[tuple[float, float]]


def smooth(points: Points, strength: float) -> list[tuple[float, float]]:
    """Compute an exponential moving average with bias correction.

    Args:
        points: (x, y) each.
        strength: 0 for no smoothing; near 1, each point averages about 1 / (1 - strength) points.

    >>> smooth([(0, 1.0), (1, 3.0)], 0.5)
    [(0, 1.0), (1, 2.3333333333333335)]
    """
    mean, weight, result = 0.0, 0.0, []
    for x, y in points:
        mean = strength * mean + (1 - strength) * y
        weight = strength * weight + (1 - strength)
        result.append((x, mean / weight))
    return result


def downsample(points: Points, most: int = POINTS) -> list[tuple[float, float]]:
    """Keep every n-th point and the last one, at most `most` points.

    >>> downsample([(i, i) for i in range(10)], 6)
    [(0, 0), (2, 2), (4, 4), (6, 6), (8, 8), (9, 9)]
    """
    stride = 1
    while len(points) / stride > most - 1:
        stride *= 2  # powers of two, so that mostly the same points are kept as the curve grows
    thinned = list(points[::stride])
    if points and thinned[-1] != points[-1]:
        thinned.append(points[-1])
    return thinned


class View(NamedTuple):
    """Display options of curves.

    Attributes:
        smoothing: 0 to below 1, see `smooth`.
        log: use a logarithmic axis for the loss.
        first, last: visible range of the horizontal axis; None follows its end.
    """

    smoothing: float = 0.6
    log: bool = False
    first: int = 0
    last: int | None = None

    def to_query(self, unit: str) -> dict[str, str]:
        """Format all options for a link; "" for defaults.

        >>> View(0.9, True, 3).to_query("epochs"), View(last=7).to_query("minutes")
        ({'smoothing': '0.9', 'log': '1', 'epochs': '3-'}, {'smoothing': '', 'log': '', 'minutes': '0-7'})
        """
        zoom = "" if (self.first, self.last) == (0, None) else f"{self.first}-{'' if self.last is None else self.last}"
        smoothing = "" if self.smoothing == View().smoothing else f"{self.smoothing:g}"
        return {"smoothing": smoothing, "log": "1" if self.log else "", unit: zoom}

    @classmethod
    def from_query(cls, query: Mapping[str, str], longest: int, unit: str) -> "View":
        """Parse an untrusted link; invalid values become defaults.

        >>> View.from_query({"smoothing": "2", "log": "<b>", "epochs": "3-50"}, 20, "epochs")
        View(smoothing=0.6, log=False, first=3, last=None)
        """
        smoothing = re.fullmatch(r"0(\.\d{1,2})?", query.get("smoothing", ""), re.ASCII)
        zoom = re.fullmatch(r"(\d{1,9})-(\d{0,9})", query.get(unit, ""), re.ASCII)
        first, last = (int(zoom[1]), min(int(zoom[2] or longest), longest)) if zoom else (0, longest)
        return cls(
            smoothing=float(smoothing[0]) if smoothing else cls().smoothing,
            log=query.get("log") == "1",
            first=first if first <= last else 0,
            last=last if first <= last < longest else None,
        )


def controls(longest: int, unit: str = "epochs") -> View:
    """Draw the controls for the display options, and return them.

    The zoom is stored on the server and in the URL, so that neither chart updates nor reloads reset it.

    Args:
        longest: end of the horizontal axis.
        unit: unit of the horizontal axis.
    """
    linked = View.from_query(address.read(RunsLink).curves, longest, unit)

    def write(view: View, name: str) -> None:
        address.rewrite({name: view.to_query(unit)[name] or None})

    def smoothe(strength: float) -> None:
        write(linked._replace(smoothing=strength), "smoothing")

    def zoom(ends: tuple[int, int]) -> None:
        first, last = ends
        write(linked._replace(first=first, last=None if last == longest else last), unit)

    with st.container(horizontal=True, vertical_alignment="bottom", gap="medium"):
        bound = link_controls.bound("smoothing", linked.smoothing, smoothe)
        st.slider("Smoothing", 0.0, 0.99, linked.smoothing, width=160, **bound)
        if longest > 1:
            ends = (linked.first, longest if linked.last is None else linked.last)
            # A new end of the axis needs a new slider, which starts from the URL.
            bound = link_controls.bound(f"zoom {unit} {longest}", ends, zoom)
            st.slider(f"Zoom [{unit}]", 0, longest, ends, width=220, **bound)
        link_controls.toggle("Logarithmic loss", "log")
    return linked


def line(
    name: str, points: Points, color: str, *, faint: bool = False, dots: bool = False, pictures: int | None = None
) -> dict[str, Any]:
    """Return the series of a trace; `faint` for unsmoothed data in the background, `pictures` of an accuracy [%]."""
    hover = {"valueFormatter": f"%.{decimals(pictures)}f%% of {pictures:,}"} if pictures else {}
    return {
        "name": name,
        "type": "line",
        "data": [[_rounded(x), _rounded(y)] for x, y in downsample(points) if math.isfinite(y)],
        "showSymbol": dots and len(points) <= 60,
        "symbolSize": 5,
        "silent": faint,
        "itemStyle": {"color": color},
        "lineStyle": {"color": color, "width": 1 if faint else 2, "opacity": 0.3 if faint else 1},
        "emphasis": {"disabled": True},
        "tooltip": {"show": not faint} | hover,
    }


def title(heading: str) -> dict[str, Any]:
    """Return the option of a chart's title, left-aligned above the chart."""
    return {"text": heading, "left": 0, "top": 4, "textStyle": {"fontSize": 14, "fontWeight": 500}}


def chart(
    heading: str,
    lines: Sequence[dict[str, Any]],
    *,
    x: str = "epoch",
    view: View | None = None,
    percent: bool = False,
    low: bool = False,
    whole: bool = False,
) -> dict[str, Any]:
    """Return the option for `st.echarts_chart`, which updates the chart in place; of a single point, its number.

    Args:
        x: title of the horizontal axis.
        view: visible range and scale; the scale is logarithmic only if all values are positive.
        low: for a low chart: few ticks on the vertical axis.
        whole: the horizontal axis has only whole numbers.
    """
    names = list(dict.fromkeys(trace["name"] for trace in lines if not trace["silent"]))
    view = view or View()
    lines = [trace | {"data": _within(trace["data"], view)} for trace in lines]
    values = [y for trace in lines for _, y in trace["data"]]
    number = "%.1f%%" if percent else "%.4g"
    if values and len(names) < 3 and all(len(trace["data"]) < 2 for trace in lines):  # many points are worth an axis
        points = [
            (trace["name"], trace["tooltip"].get("valueFormatter", number), trace["data"][0][1])
            for trace in lines
            if trace["data"] and not trace["silent"]
        ]
        numbers = "\n".join(f"{name}: {text % y}" for name, text, y in points)
        return {"title": title(heading) | {"subtext": numbers, "subtextStyle": {"fontSize": 14, "lineHeight": 20}}}
    y_axis: dict[str, Any] = {"type": "value", "scale": True}
    y_axis |= {"splitNumber": 2} if low else {}
    y_axis |= {"axisLabel": {"formatter": "{value}%"}} if percent else {}
    if view.log and min(values, default=0) > 0:
        y_axis = _log_axis(min(values), max(values))
    legend = {"data": names, "right": 0, "top": 1, "icon": "roundRect", "itemWidth": 14, "itemHeight": 3}
    legend |= {"textStyle": {"lineHeight": 20}}  # a scrolling legend clips larger line heights
    return {
        "animation": False,
        "title": title(heading),
        "legend": legend | ({"type": "scroll", "left": 140} if len(names) > 1 else {"show": False}),
        "grid": {"left": 4, "right": 14, "top": 40, "bottom": 4 if low else 24, "containLabel": True},
        "tooltip": {"trigger": "axis", "confine": True, "valueFormatter": number},
        "xAxis": {
            "type": "value",
            "name": "" if low else x,
            "nameLocation": "middle",
            "nameGap": 24,
            "min": view.first,
            "max": "dataMax" if view.last is None else view.last,
            "minInterval": 1 if whole else 0,
            "axisLabel": {"showMaxLabel": whole},
            "splitLine": {"show": False},
        },
        "yAxis": y_axis,
        "series": lines,
    }


def _log_axis(low: float, high: float) -> dict[str, Any]:
    """Return a logarithmic axis that fits the data; by default, ECharts extends it to whole powers of ten."""
    margin = max(high / low, 1.1) ** 0.05
    low, high = _rounded(low / margin), _rounded(high * margin)
    at = {"customValues": marks(low, high)}
    return {"type": "log", "min": low, "max": high, "axisTick": at, "axisLabel": at}


def marks(low: float, high: float) -> list[float]:
    """Return ticks for a logarithmic axis: powers of ten, or round numbers in between if those are too few.

    >>> marks(0.001, 2), marks(0.05, 2.3), marks(0.6, 2.3), marks(1.1, 1.5)
    ([0.001, 0.01, 0.1, 1.0], [0.05, 0.1, 0.2, 0.5, 1.0, 2.0], [0.7, 1.0, 1.5, 2.0], [1.1, 1.2, 1.3, 1.4, 1.5])
    """
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    step = 10.0 ** math.floor(math.log10(high - low))

    def digits(*some: float) -> list[float]:
        return [digit * 10.0**exponent for exponent in exponents for digit in some]

    def every(step: float) -> list[float]:
        return [i * step for i in range(int(low / step), int(high / step) + 2)]

    ticks: list[float] = []
    for candidates in (
        digits(1),
        digits(1, 2, 5),
        digits(1, 1.5, 2, 3, 5, 7),
        every(step),
        every(step / 2),
        every(step / 5),
    ):
        ticks = [value for value in map(_rounded, candidates) if low <= value <= high]
        if len(ticks) >= 4:
            break
    return ticks[:: math.ceil(len(ticks) / 7)]


def _within(data: list[list[float]], view: View) -> list[list[float]]:
    return [point for point in data if view.first <= point[0] and (view.last is None or point[0] <= view.last)]


def _rounded(value: float) -> float:
    return float(f"{value:.5g}")
