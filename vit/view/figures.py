"""Maps as figures for print: PNG at 300 dpi, SVG and PDF, with colour bar and the facts below.

The drawing is matplotlib's: one description gives all three formats, and words stay words in SVG and PDF. It is used
without pyplot and under a lock, as its settings are the whole process's.
"""

import io
import threading
from collections.abc import Iterator
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
from PIL import Image

from vit.checkpoints.checkpoint import Checkpoint
from vit.images.geometry import Box
from vit.view.captions import clear, outline, token_name
from vit.view.explanation import Explanation
from vit.view.export import MapView, colormap, drawn, grid_maps, shared_top
from vit.view.overlay import COLORMAPS, mosaic, scaled, window
from vit.view.selection import Selection

Kind = Literal["png", "svg", "pdf"]
KINDS: dict[Kind, str] = {"png": "image/png", "svg": "image/svg+xml", "pdf": "application/pdf"}
WIDTHS = {"1 column": 85.0, "2 columns": 180.0}  # [mm], as most journals have them

DPI = 300  # of PNG files, and of pictures inside SVG and PDF
HIGHEST = 200.0  # pictures and maps [mm], so that a figure fits a page

_INCH = 25.4  # [mm]
_POINT = _INCH / 72  # [mm]
_SIZE = 7.0  # of text [pt]
_LINE = 1.35 * _SIZE * _POINT  # [mm]
_EDGE = 1.5  # around everything [mm]
_GAP = 3.0  # between the two pictures [mm]
_BAR = 2.5  # height of the colour bar [mm]
_ASIDE = 5.0  # left and right of it, for the numbers at its ends [mm]
_COLOURS = 1.2 + _BAR + 2.4 * _LINE  # height of the bar with its numbers and their unit [mm]
_FONTS = ("DejaVu Sans", "Noto Sans CJK SC", "Noto Sans CJK JP", "Arial Unicode MS")  # the first comes with matplotlib
_SETTINGS: dict[Any, Any] = {
    "font.size": _SIZE,
    "svg.fonttype": "none",
    "svg.hashsalt": "vit",
    "pdf.fonttype": 42,
    "axes.linewidth": 0.5,
    "text.parse_math": False,
}
_ONE_AT_A_TIME = threading.Lock()


def caption(explanation: Explanation, checkpoint: Checkpoint, sentence: str, picture: str = "") -> str:
    """The facts to print below a figure.

    Args:
        sentence: what the map is, `MapView.sentence`; may be "".
        picture: its name.
    """
    record = explanation.record
    height, width = explanation.preprocess.size
    rows, cols = record.grid
    parts = [
        sentence.removesuffix("."),
        f"checkpoint {checkpoint.name} (SHA-256 {checkpoint.hash}…, identity {checkpoint.identity})",
        f"input {width} × {height} px, {rows} × {cols} patches",
        f"picture {picture + ', ' if picture else ''}{explanation.picture.width} × {explanation.picture.height} px",
    ]
    if record.queries[0].dtype.itemsize < 4:
        parts.append(f"computed in {str(record.queries[0].dtype).removeprefix('torch.')}")
    if explanation.predictions:
        label, probability = explanation.predictions[0]
        parts.append(f"predicted {label}, {probability:.1%}")
    return ". ".join(part[:1].upper() + part[1:] for part in parts if part) + "."


def map_figure(
    explanation: Explanation,
    selection: Selection,
    map_view: MapView,
    facts: str,
    width: float = WIDTHS["1 column"],
    kind: Kind = "png",
) -> bytes:
    """The picture, the picture under the map, colours and facts.

    Args:
        selection: colours, opacity, cover, smoothness, outline.
        map_view: the map.
        facts: printed below, see `caption`.
        width: of the figure [mm].

    Returns:
        a file of this kind; the same input gives the same bytes.
    """
    record = explanation.record
    picture, box = window(explanation.picture, explanation.geometry.box)
    column = (width - 2 * _EDGE - _GAP) / 2  # for one of the pictures [mm]
    side = min(column, HIGHEST * picture.width / picture.height)
    high = side * picture.height / picture.width
    # As many pixels as are printed, so that the edges of patches are sharp.
    picture, box = scaled(picture, box, side / _INCH * DPI / picture.width)
    weight, patches = map_view.unit == "weight", record.heatmap(map_view.weights)
    if map_view.colours is None:
        facts = " ".join(filter(None, (facts, clear(selection.cover), outline(selection.contour, selection.mass))))
    else:
        shares = zip(("Red", "green", "blue"), map_view.facts["shares"], strict=True)
        facts += " " + ", ".join(f"{colour} {share:.0%}" for colour, share in shares) + " of how the patches differ."
    colours = 0.0 if map_view.colours is not None else (_LINE if weight else 0) + _COLOURS
    with _open_sheet(width, high + colours, facts, kind) as sheet:
        for left, shown in (
            (0.0, picture),
            (column + _GAP, drawn(record, picture, box, selection, map_view)),
        ):
            axes = sheet.axes(left, 0, side, high)
            _show_picture(axes, shown)
            if (query := map_view.facts.get("query")) is not None and query >= len(record.prefix):
                _outline_patch(axes, query - len(record.prefix), record.grid, box)
        if colours:
            sheet.colours(
                high + 1.2 + (_LINE if weight else 0),
                colormap(selection),
                (map_view.low, map_view.top),
                (float(patches.min()), float(patches.max())),
                map_view.unit,
                record.tokens,
            )
    return sheet.content


def grid_figure(
    explanation: Explanation,
    selection: Selection,
    facts: str,
    width: float = WIDTHS["2 columns"],
    kind: Kind = "png",
) -> bytes:
    """The maps of every head of every block for the selected token, with their numbers, colours and facts.

    Args:
        selection: token, direction, colours and scale.
        facts: printed below, see `caption`; `grid_sentence` is its first one.
        width: of the figure [mm].

    Returns:
        a file of this kind; the same input gives the same bytes.
    """
    record = explanation.record
    maps = grid_maps(record, selection)  # (L, H, rows, cols)
    blocks, heads, rows, cols = maps.shape
    left, above = 8.0, 2 * _LINE  # for the labels [mm]
    across = min((width - 2 * _EDGE - left) / heads, HIGHEST / blocks * cols / rows)  # one map and its gap [mm]
    cell = max(rows, cols) * max(1, round(across * DPI / _INCH / max(rows, cols)))  # whole pixels per patch
    cell = min(cell, max(max(rows, cols), 9000 // max(blocks, heads)))
    shared = selection.scale == "shared"
    top = shared_top(explanation.payload, selection) if shared else 1.0
    drawn = mosaic(maps, colormap(selection), shared=shared, vmax=top if shared else None, cell=cell, labels=False)
    high = heads * across * drawn.height / drawn.width
    below = _LINE + _COLOURS if shared else _LINE
    with _open_sheet(width, above + high + below, facts, kind) as sheet:
        axes = sheet.axes(left, above, heads * across, high)
        _show_picture(axes, drawn)
        axes.tick_params(bottom=False, left=False, top=False, labelbottom=False, labeltop=True, labelleft=True, pad=1)
        for axis, count, length in ((axes.xaxis, heads, drawn.width), (axes.yaxis, blocks, drawn.height)):
            places = (np.arange(count) + 0.5) * (length / count) - 0.5
            axis.set_ticks(places, [str(i + 1) for i in range(count)])
        axes.set_xlabel("Head", labelpad=2)
        axes.xaxis.set_label_position("top")
        axes.set_ylabel("Block", labelpad=2)
        if shared:
            ends = float(maps.min()), float(maps.max())
            sheet.colours(above + high + 1.2 + _LINE, colormap(selection), (0.0, top), ends, "weight", record.tokens)
        else:
            sheet.text(0, above + high + 1, "Each map from 0 to its own strongest patch; colours cannot be compared.")
    return sheet.content


def grid_sentence(explanation: Explanation, selection: Selection) -> str:
    """What a figure of all heads shows."""
    record = explanation.record
    name = token_name(selection.token, record.prefix, record.grid)
    question = f"where {name} looks" if selection.direction == "from" else f"who looks at {name}"
    return f"Every head of every block: {question}."


class _Sheet:
    """A page that is measured in millimetres from its upper left corner, inside its edge."""

    def __init__(self, width: float, height: float):
        self.width, self.height = width, height
        self.figure = Figure(figsize=(width / _INCH, height / _INCH), dpi=DPI)
        self.canvas = FigureCanvasAgg(self.figure)
        self.content = b""

    def axes(self, left: float, above: float, width: float, height: float) -> Axes:
        """A part of the page [mm]."""
        bottom = self.height - _EDGE - above - height
        return self.figure.add_axes(
            ((left + _EDGE) / self.width, bottom / self.height, width / self.width, height / self.height)
        )

    def text(self, left: float, above: float, text: str) -> None:
        """Words whose upper left corner is there [mm]."""
        self.figure.text(
            (left + _EDGE) / self.width, 1 - (above + _EDGE) / self.height, text, va="top", linespacing=1.35 / 1.2
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
        """A colour bar over the whole width, with an arrow at an end that values pass; of weights in two units."""
        low, top = scale if scale[1] > scale[0] else (scale[0], scale[0] + 1)
        slack = 1e-6 * (top - low)
        extend = {
            (False, False): "neither",
            (False, True): "max",
            (True, False): "min",
            (True, True): "both",
        }[ends[0] < low - slack, ends[1] > top + slack]
        axes = self.axes(_ASIDE, above, self.width - 2 * _EDGE - 2 * _ASIDE, _BAR)
        colours = ScalarMappable(Normalize(low, top), ListedColormap(COLORMAPS[name] / 255))
        bar = self.figure.colorbar(colours, axes, orientation="horizontal", extend=extend, extendfrac=0.02)
        bar.outline.set_linewidth(0.5)
        assert bar.solids is not None  # a bar without lines has them
        bar.solids.set_rasterized(True)  # 256 fields side by side show hairlines
        bar.locator = MaxNLocator(6, steps=[1, 2, 2.5, 5, 10])
        axes.tick_params(length=2, width=0.5, pad=1.5)
        if unit == "cosine":
            bar.set_label("Cosine", labelpad=1)
            return
        bar.formatter = FuncFormatter(lambda value, _: f"{100 * value:.4g} %")
        bar.set_label("Attention weight; above, in multiples of uniform" if unit == "weight" else "Share", labelpad=1)
        if unit == "weight":
            times = axes.secondary_xaxis(
                "top", functions=(partial(np.multiply, tokens), partial(np.multiply, 1 / tokens))
            )
            times.xaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 2.5, 5, 10]))
            times.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}×"))
            times.tick_params(length=2, width=0.5, pad=1)


@contextmanager
def _open_sheet(width: float, height: float, facts: str, kind: Kind) -> Iterator[_Sheet]:
    """A page of this width, as high as what is drawn on it [mm] and the facts below; saved when it is done."""
    with _ONE_AT_A_TIME, rc_context(_SETTINGS | {"font.family": _available_fonts()}):
        lines = _wrap_text(facts, width - 2 * _EDGE)
        sheet = _Sheet(width, height + 1 + len(lines) * _LINE + 2 * _EDGE)
        yield sheet
        sheet.text(0, height + 1, "\n".join(lines))
        out = io.BytesIO()
        undated: Any = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
        sheet.figure.savefig(out, format=kind, dpi=DPI, metadata=undated)
        sheet.content = out.getvalue()


@cache
def _available_fonts() -> list[str]:
    """Those of our fonts that are here; the later ones have letters that the first lacks."""
    installed = {font.name for font in fontManager.ttflist}
    return [name for name in _FONTS if name in installed]


def _wrap_text(text: str, width: float) -> list[str]:
    """Break text into lines of at most this width [mm], between words where it can."""
    renderer, font = (
        FigureCanvasAgg(Figure(dpi=DPI)).get_renderer(),
        FontProperties(family=_available_fonts(), size=_SIZE),
    )

    def fits(line: str) -> bool:
        return renderer.get_text_width_height_descent(line, font, ismath=False)[0] / DPI * _INCH <= width

    lines = [""]
    for word in text.split():
        word = "".join(letter if letter.isprintable() else "\ufffd" for letter in word)  # XML has no others
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


def _show_picture(axes: Axes, picture: Image.Image) -> None:
    axes.imshow(np.asarray(picture), aspect="auto", interpolation="none", resample=False)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)


def _outline_patch(axes: Axes, patch: int, grid: tuple[int, int], box: Box) -> None:
    """A white line around a patch, with a black one around it."""
    row, col = divmod(patch, grid[1])
    left, top, right, bottom = box
    width, height = (right - left) / grid[1], (bottom - top) / grid[0]
    for color, line in (("black", 1.8), ("white", 0.8)):
        corner = (left + col * width - 0.5, top + row * height - 0.5)
        axes.add_patch(Rectangle(corner, width, height, fill=False, color=color, linewidth=line))
