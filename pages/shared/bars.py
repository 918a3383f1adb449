"""Bar charts, dot plots and lists of facts in plain HTML, which is cheap to redraw."""

import html
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import streamlit as st

from vit.view.chart_colours import GREY, QUIET, STRONG


class Bar(NamedTuple):
    """A row of a bar chart.

    Attributes:
        label: untrusted text.
        share: length of the bar, 0 to 1.
        strong: whether the bar is highlighted.
    """

    label: str
    share: float
    strong: bool = False


def show(bars: Iterable[Bar], alt: str) -> None:
    """Draw a bar chart.

    Args:
        alt: description for screen readers.
    """
    rows = "".join(
        f'<div class="bar{" strong" * bar.strong}"><span>{html.escape(bar.label)}</span>'
        f'<i><b style="width:{100 * bar.share:.1f}%"></b></i><em>{bar.share:.1%}</em></div>'
        for bar in bars
    )
    st.html(f'{_BARS}<div role="img" aria-label="{html.escape(alt)}">{rows}</div>')


_BARS = f"""<style>
.bar {{ display: grid; grid-template-columns: 7.5rem 1fr 3.5rem; gap: 0.6rem; align-items: center; line-height: 1.75;
  font-size: 0.875rem; }}
.bar span {{ overflow-wrap: anywhere; line-height: 1.25; padding: 0.2rem 0; }}
.bar i {{ height: 0.75rem; }}
.bar b {{ display: block; height: 100%; background: {GREY}; opacity: 0.6; border-radius: 2px; min-width: 1px; }}
.bar.strong b {{ background: {STRONG}; opacity: 1; }}
.bar.strong span {{ font-weight: 600; }}
.bar em {{ font-style: normal; text-align: right; font-variant-numeric: tabular-nums; opacity: 0.8; }}
</style>"""


def facts(rows: Mapping[str, str]) -> str:
    """Return the HTML of a list of facts, one row each: name on the left, untrusted value on the right."""
    return _FACTS + "".join(f"<div class=fact><span>{k}</span><b>{html.escape(v)}</b></div>" for k, v in rows.items())


_FACTS = """<style>
.fact { display: flex; justify-content: space-between; font-size: 0.875rem; line-height: 1.6; }
.fact span { opacity: 0.7; }
.fact b { font-weight: 500; font-variant-numeric: tabular-nums; }
</style>"""


class Marks(NamedTuple):
    """A row of a dot plot from -1 to 1.

    Attributes:
        label: name of the row.
        value: -1 to 1, printed beside its mark.
        shape: "disc", "diamond" or "ring".
        error: half width of the error bar.
    """

    label: str
    value: float
    shape: str
    error: float = 0.0


def show_faithfulness(rows: Sequence[Marks], chance: float, alt: str) -> None:
    """Draw a dot plot of faithfulness from -1 to 1 with a shaded band across all rows.

    Args:
        chance: upper end of the band, whose lower end is -1.
        alt: description for screen readers.
    """
    low, high = _place(-1), _place(chance)
    lines = []
    for row in rows:
        place, side = f"left:{_place(row.value):.2f}%", "left" if row.value > 0 else "right"
        marks = f'<b class="{row.shape}" style="{place}"></b>'
        if row.error:
            ends = [_place(row.value + sign * row.error) for sign in (-1, 1)]
            marks += f'<q style="left:{ends[0]:.2f}%;width:{ends[1] - ends[0]:.2f}%"></q>'
        marks += f'<em class="{side}" style="{place}">{number(row.value)}</em>'
        lines.append(f"<span>{html.escape(row.label)}</span><div class=row>{marks}</div>")
    ticks = "".join(
        f'<u style="left:{_place(tick):.2f}%"></u><small style="left:{_place(tick):.2f}%">{tick:g}</small>'.replace(
            ">-", ">−"
        )
        for tick in (-1, -0.5, 0, 0.5, 1)
    )
    st.html(
        f'{_LINE}<div class="line" role="img" aria-label="{html.escape(alt)}"><p>Faithfulness</p>'
        f'<div class="rows">{"".join(lines)}'
        f'<div class="plane"><strong style="left:{(low + high) / 2:.2f}%">chance</strong>'
        f'<s style="left:{low:.2f}%;width:{high - low:.2f}%"></s>{ticks}</div></div></div>'
    )


def number(value: float) -> str:
    """Format a number with two decimals and a typographic minus.

    >>> number(-0.5)
    '−0.50'
    """
    return f"{value:.2f}".replace("-", "−")


def _place(value: float) -> float:
    """Return the position of a number on the axis [%], with a margin for marks at both ends."""
    return 50 + 46 * min(max(value, -1.0), 1.0)


_LINE = f"""<style>
.line {{ font-size: 0.8rem; padding-bottom: 1.4rem; }}
.line p {{ margin: 0 0 1.6rem; font-size: 0.875rem; font-weight: 600; }}
.line .rows {{ position: relative; display: grid; grid-template-columns: 8rem 1fr;
  grid-auto-rows: 2.2rem; align-items: center; }}
.line .row {{ position: relative; height: 100%; z-index: 1; }}
.line .row > *, .line .plane > * {{ position: absolute; }}
.line .plane {{ position: absolute; inset: 0 0 0 8rem; }}
.line b {{ top: 50%; width: 12px; height: 12px; margin: -6px; box-sizing: border-box; }}
.line .disc {{ width: 16px; height: 16px; margin: -8px; border-radius: 50%; background: {STRONG}; }}
.line .diamond {{ background: {QUIET}; transform: rotate(45deg); }}
.line .ring {{ border: 2px solid {QUIET}; border-radius: 50%; width: 10px; height: 10px; margin: -5px; }}
.line q {{ top: 50%; height: 2px; margin-top: -1px; background: {STRONG}; quotes: none; }}
.line em {{ top: 50%; font-style: normal; font-variant-numeric: tabular-nums; }}
.line em.left {{ transform: translate(calc(-100% - 0.9rem), -50%); }}
.line em.right {{ transform: translate(0.9rem, -50%); }}
.line s {{ top: 0; bottom: 0; background: {QUIET}; opacity: 0.25; }}
.line strong {{ bottom: 100%; transform: translateX(-50%); font-weight: 400; padding-bottom: 0.2rem; }}
.line u {{ top: 0; bottom: 0; border-left: 1px solid {GREY}40; }}
.line small {{ top: 100%; transform: translateX(-50%); padding-top: 0.2rem; opacity: 0.8; }}
</style>"""
