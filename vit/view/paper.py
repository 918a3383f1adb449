"""Page layout for print: coordinates in millimetres, wrapped text, colour bars, pictures with sharp patches.

Drawn with matplotlib, which writes the same page as PNG, SVG or PDF, with selectable text in the latter two. It is used
without pyplot and under a lock, because its settings are global to the process.
"""

import io
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_pdf import PdfPages
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties, fontManager
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator
from PIL import Image

from vit.images.geometry import Box
from vit.view.overlay import COLORMAPS

Kind = Literal["png", "svg", "pdf"]

DPI = 300  # resolution of PNG files, and of pictures in SVG and PDF files

INCH = 25.4  # [mm]
_POINT = INCH / 72  # [mm]
_SIZE = 7.0  # font size [pt]
LINE = 1.35 * _SIZE * _POINT  # line height [mm]
EDGE = 1.5  # margin of a figure [mm]
A4 = (210.0, 297.0)  # [mm]
_MARGIN = 15.0  # page margin [mm]
_GAP = 3.0  # space between pictures side by side [mm]
_HIGHEST = 150.0  # maximum height of a picture in a document, so that it fits on a page with its text [mm]
_LABELS = 10.0  # space for the labels left of a plot and below it [mm]
CONTENT_WIDTH = A4[0] - 2 * _MARGIN - 2 * EDGE  # [mm]
CONTENT_HEIGHT = A4[1] - 2 * _MARGIN - 2 * EDGE  # [mm]
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
    """A page with coordinates in millimetres from its upper left corner, inside of `EDGE`."""

    def __init__(self, width: float, height: float):
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width / INCH, height / INCH), dpi=DPI)
        self.canvas = FigureCanvasAgg(self.figure)
        self.content = b""

    def axes(self, left: float, above: float, width: float, height: float) -> Axes:
        """Add axes to a part of the page [mm]."""
        bottom = self.height - EDGE - above - height
        return self.figure.add_axes(
            ((left + EDGE) / self.width, bottom / self.height, width / self.width, height / self.height)
        )

    def text(self, left: float, above: float, text: str, size: float = _SIZE, bold: bool = False) -> None:
        """Add text with its upper left corner at this position [mm]."""
        self.figure.text(
            (left + EDGE) / self.width,
            1 - (above + EDGE) / self.height,
            text,
            va="top",
            linespacing=1.35 / 1.2,
            size=size,
            weight="bold" if bold else "normal",
        )

    def colours(
        self,
        above: float,
        name: str,
        scale: tuple[float, float],
        ends: tuple[float, float],
        unit: str,
        tokens: int,
    ) -> None:
        """Add a colour bar over the whole width.

        Args:
            above: distance from the top [mm].
            name: of the colour map.
            scale: values of the first and the last colour.
            ends: minimum and maximum of the data; an end of the bar that they exceed is an arrow.
            unit: see `vit.view.export.MapView`; weights get a second axis in multiples of uniform attention.
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
        colours = ScalarMappable(Normalize(low, top), ListedColormap(COLORMAPS[name] / 255))
        bar = self.figure.colorbar(colours, axes, orientation="horizontal", extend=extend, extendfrac=0.02)
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
    with _drawing():
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


class Row(NamedTuple):
    """A part of a document over its whole width.

    Attributes:
        height: [mm].
        draw: called with the page and the distance from the page's upper edge [mm].
    """

    height: float
    draw: Callable[[Sheet, float], None]


def document(rows: Sequence[Row]) -> bytes:
    """Lay out rows on A4 pages and return a PDF file. Deterministic."""
    pages: list[list[Row]] = [[]]
    for row in rows:
        if pages[-1] and sum(one.height for one in pages[-1]) + row.height > CONTENT_HEIGHT:
            pages.append([])
        pages[-1].append(row)
    out = io.BytesIO()
    with _drawing(), PdfPages(out, metadata={"CreationDate": None}) as pdf:
        for number, page in enumerate(pages, 1):
            sheet, above = Sheet(*A4), _MARGIN
            for row in page:
                row.draw(sheet, above)
                above += row.height
            if len(pages) > 1:
                sheet.text(_MARGIN, A4[1] - 10, f"{number} / {len(pages)}")
            pdf.savefig(sheet.figure, dpi=DPI)
    return out.getvalue()


def text_rows(text: str, size: float = _SIZE, bold: bool = False) -> list[Row]:
    """Lay out a paragraph as one row per line."""

    def line_row(line: str) -> Row:
        def draw(sheet: Sheet, above: float) -> None:
            sheet.text(_MARGIN, above, line, size, bold)

        return Row(LINE * size / _SIZE, draw)

    with _drawing():
        return [line_row(line) for line in wrap_text(text, CONTENT_WIDTH * _SIZE / size * (0.9 if bold else 1.0))]


def picture_rows(tiles: Sequence[tuple[Image.Image, str]], columns: int) -> list[Row]:
    """Lay out pictures side by side, each with text below. Line breaks are kept, and long lines are wrapped."""
    across = CONTENT_WIDTH / columns
    side = across - _GAP
    rows = []
    for first in range(0, len(tiles), columns):
        some = tiles[first : first + columns]
        with _drawing():
            words = [[part for line in text.split("\n") for part in wrap_text(line, side)] for _, text in some]
        heights = [min(side * picture.height / picture.width, _HIGHEST) for picture, _ in some]

        def draw(
            sheet: Sheet, above: float, some: Any = some, words: Any = words, heights: list[float] = heights
        ) -> None:
            for column, ((picture, _), lines, high) in enumerate(zip(some, words, heights, strict=True)):
                left = _MARGIN + column * across
                show_picture(sheet.axes(left, above, high * picture.width / picture.height, high), picture)
                sheet.text(left, above + high + 0.7, "\n".join(lines))

        rows.append(Row(max(heights) + max(map(len, words)) * LINE + 3, draw))
    return rows


def plot_row(height: float, plots: Sequence[Callable[[Axes], None]]) -> Row:
    """Lay out plots side by side.

    Args:
        height: of the row, labels included [mm].
        plots: functions that draw one plot each.
    """
    across = CONTENT_WIDTH / len(plots)

    def draw(sheet: Sheet, above: float) -> None:
        for column, plot in enumerate(plots):
            left = _MARGIN + column * across + _LABELS
            plot(sheet.axes(left, above + 5, across - _LABELS - _GAP, height - 5 - _LABELS))

    return Row(height, draw)


@contextmanager
def _drawing() -> Iterator[None]:
    """Apply our matplotlib settings, in one thread at a time."""
    with _ONE_AT_A_TIME, rc_context(_SETTINGS | {"font.family": _available_fonts()}):
        yield


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
