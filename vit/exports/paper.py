"""Layout of figures for print: coordinates in millimetres, wrapped text, colour bars, pictures with sharp patches.

Drawn with matplotlib, which writes the same sheet as PNG, SVG or PDF, with selectable text in the latter two. It is
used without pyplot and under a lock, because its settings are global to the process.
"""

import io
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Literal

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator
from numpy.typing import NDArray
from PIL import Image

from vit.images.geometry import Box

Kind = Literal["png", "svg", "pdf"]

DPI = 300  # resolution of PNG files, and of pictures in SVG and PDF files

INCH = 25.4  # [mm]
_POINT = INCH / 72  # [mm]
_SIZE = 7.0  # font size [pt]
LINE = 1.35 * _SIZE * _POINT  # line height [mm]
EDGE = 1.5  # margin of a figure [mm]
BAR = 2.5  # height of the colour bar [mm]
ASIDE = 5.0  # space left and right of the colour bar, for the tick labels at its ends [mm]
COLOURS = 1.2 + BAR + 2.4 * LINE  # height of the bar with its tick labels and unit [mm]
_FONTS = ("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Arial Unicode MS")  # matplotlib includes the first
_SETTINGS: dict[Any, Any] = {
    "font.size": _SIZE,
    "svg.fonttype": "none",  # text instead of outlines
    "svg.hashsalt": "vit",  # reproducible ids
    "pdf.fonttype": 42,  # TrueType, so that text stays editable
    "axes.linewidth": 0.5,
    "text.parse_math": False,  # "$" in names is not math
}
_ONE_AT_A_TIME = threading.Lock()


class Sheet:
    """A sheet with coordinates in millimetres from its upper left corner, inside of `EDGE`."""

    def __init__(self, width: float, height: float):
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width / INCH, height / INCH), dpi=DPI)
        self.canvas = FigureCanvasAgg(self.figure)
        self.content = b""

    def axes(self, left: float, above: float, width: float, height: float) -> Axes:
        """Add axes to a part of the sheet [mm]."""
        bottom = self.height - EDGE - above - height
        return self.figure.add_axes(
            ((left + EDGE) / self.width, bottom / self.height, width / self.width, height / self.height)
        )

    def text(self, left: float, above: float, text: str, size: float = _SIZE) -> None:
        """Add text with its upper left corner at this position [mm]."""
        self.figure.text(
            (left + EDGE) / self.width,
            1 - (above + EDGE) / self.height,
            text,
            va="top",
            linespacing=1.35 / 1.2,
            size=size,
        )

    def colours(
        self,
        above: float,
        colours: NDArray[np.uint8],
        scale: tuple[float, float],
        ends: tuple[float, float],
        unit: str,
        tokens: int,
    ) -> None:
        """Add a colour bar over the whole width.

        Args:
            above: distance from the top [mm].
            colours: RGB (256, 3).
            scale: values of the first and the last colour.
            ends: minimum and maximum of the data; an end of the bar that they exceed is an arrow.
            unit: see `vit.view.map_view.MapView`; weights get a second axis in multiples of uniform attention.
            tokens: N, for the second axis.
        """
        low, top = scale if scale[1] > scale[0] else (scale[0], scale[0] + 1)
        slack = 1e-6 * (top - low)
        extend = {
            (False, False): "neither",
            (False, True): "max",
            (True, False): "min",
            (True, True): "both",
        }[ends[0] < low - slack, ends[1] > top + slack]
        axes = self.axes(ASIDE, above, self.width - 2 * EDGE - 2 * ASIDE, BAR)
        mapped = ScalarMappable(Normalize(low, top), ListedColormap(colours / 255))
        bar = self.figure.colorbar(mapped, axes, orientation="horizontal", extend=extend, extendfrac=0.02)
        bar.outline.set_linewidth(0.5)
        assert bar.solids is not None  # always set for a bar without lines
        bar.solids.set_rasterized(True)  # as vectors, the 256 adjacent fields would show hairlines between them
        bar.locator = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10])
        axes.tick_params(length=2, width=0.5, pad=1.5)
        if unit == "cosine":
            bar.set_label("Cosine", labelpad=1)
            return
        bar.formatter = FuncFormatter(lambda value, _: f"{100 * value:.4g}%")
        bar.set_label("Attention weight; above, in multiples of uniform" if unit == "weight" else "Share", labelpad=1)
        if unit == "weight":
            times = axes.secondary_xaxis(
                "top", functions=(partial(np.multiply, tokens), partial(np.multiply, 1 / tokens))
            )
            times.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
            times.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}×"))
            times.tick_params(length=2, width=0.5, pad=1)


@contextmanager
def open_sheet(
    width: float, height: float, facts: str, kind: Kind, headings: Sequence[tuple[str, float]] = ()
) -> Iterator[Sheet]:
    """Open a figure of this width and content height [mm], with wrapped text below. It is rendered on exit.

    Args:
        facts: text below the content.
        kind: file format of `Sheet.content`.
        headings: larger paragraphs above the facts, and their font sizes in multiples of the usual one.
    """
    with _ONE_AT_A_TIME, rc_context(_SETTINGS | {"font.family": _available_fonts()}):
        paragraphs = [(wrap_text(text, (width - 2 * EDGE) / times), times) for text, times in (*headings, (facts, 1))]
        sheet = Sheet(width, height + 1 + sum(len(lines) * LINE * times for lines, times in paragraphs) + 2 * EDGE)
        yield sheet
        above = height + 1
        for lines, times in paragraphs:
            sheet.text(0, above, "\n".join(lines), _SIZE * times)
            above += len(lines) * LINE * times
        out = io.BytesIO()
        undated: Any = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
        sheet.figure.savefig(out, format=kind, dpi=DPI, metadata=undated)
        sheet.content = out.getvalue()


@cache
def _available_fonts() -> list[str]:
    """Return our fonts that are installed; later ones provide characters that the first lacks."""
    installed = {font.name for font in fontManager.ttflist}
    return [name for name in _FONTS if name in installed]


def wrap_text(text: str, width: float) -> list[str]:
    """Wrap text to this width [mm], between words if possible."""
    renderer, font = (
        FigureCanvasAgg(Figure(dpi=DPI)).get_renderer(),
        FontProperties(family=_available_fonts(), size=_SIZE),
    )

    def fits(line: str) -> bool:
        return renderer.get_text_width_height_descent(line, font, ismath=False)[0] / DPI * INCH <= width

    lines = [""]
    for word in text.split():
        word = "".join(letter if letter.isprintable() else "\ufffd" for letter in word)  # SVG allows no control codes
        if lines[-1] and fits(f"{lines[-1]} {word}"):
            lines[-1] += f" {word}"
            continue
        if lines[-1]:
            lines.append("")
        for letter in word:
            if fits(lines[-1] + letter):
                lines[-1] += letter
            else:
                lines.append(letter)
    return lines


def show_picture(axes: Axes, picture: Image.Image) -> None:
    """Fill axes with a picture, with sharp pixels."""
    axes.imshow(np.asarray(picture), aspect="auto", interpolation="none", resample=False)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def outline_patch(axes: Axes, patch: int, grid: tuple[int, int], box: Box) -> None:
    """Outline a patch with a white line on a wider black one."""
    row, col = divmod(patch, grid[1])
    left, top, right, bottom = box
    width, height = (right - left) / grid[1], (bottom - top) / grid[0]
    for color, line in (("black", 1.8), ("white", 0.8)):
        corner = (left + col * width - 0.5, top + row * height - 0.5)
        axes.add_patch(Rectangle(corner, width, height, fill=False, color=color, linewidth=line))
