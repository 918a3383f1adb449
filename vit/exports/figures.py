"""Figures for print: maps as PNG at 300 dpi, SVG or PDF, with a colour bar and a caption."""

import numpy as np

from vit.checkpoints.abstention import is_sure, qualified
from vit.checkpoints.checkpoint import Checkpoint
from vit.exports.map_pictures import colormap, draw_map, grid_maps
from vit.exports.paper import COLOURS, DPI, EDGE, INCH, LINE, Kind, open_sheet, outline_patch, show_picture
from vit.images.geometry import Box
from vit.view.captions import clear, outline, token_name
from vit.view.explanation import Explanation
from vit.view.map_view import MapView, shared_top
from vit.view.overlay import COLORMAPS, SIGNED_COLOURS, mosaic, scaled, window
from vit.view.prediction import answer
from vit.view.selection import Selection

WIDTHS = {"1 column": 85.0, "2 columns": 180.0}  # common column widths of journals [mm]

HIGHEST = 200.0  # maximum height of pictures and maps, so that a figure fits on a page [mm]

SHARED_SIDE = 1200  # longer side of a picture to share [px], about twice that on screen
_NARROWEST = 60.0  # width of a picture to share, so that its caption fits [mm]
_GAP = 3.0  # between the two pictures [mm]


def caption(explanation: Explanation, checkpoint: Checkpoint, sentence: str, picture: str = "") -> str:
    """Build the caption of a figure.

    Args:
        sentence: description of the map, see `MapView.sentence`; may be "".
        picture: name of the picture.
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
        sure = is_sure(explanation.logit, checkpoint.facts)
        said = f"predicted {qualified(label, sure)}, {probability:.1%}"
        parts.append("".join(answer(checkpoint, explanation)).removesuffix(".") if checkpoint.estimates else said)
    return ". ".join(part[:1].upper() + part[1:] for part in parts if part) + "."


def shared_picture(
    explanation: Explanation,
    selection: Selection,
    checkpoint: Checkpoint,
    map_view: MapView,
    credit: str = "",
    kind: Kind = "png",
) -> bytes:
    """Draw the map over the model's input, with the answer, the map's sentence and the model below.

    Args:
        credit: of the picture; for the others see `map_figure`.
    """
    record, (height, width) = explanation.record, explanation.preprocess.size
    picture, box = window(explanation.picture, explanation.geometry.box)
    picture, box = scaled(picture, box, SHARED_SIDE / max(box.right - box.left, box.bottom - box.top))
    left, top, right, bottom = map(round, box)
    drawn = draw_map(record, picture, box, selection, map_view).crop((left, top, right, bottom))
    facts = ", ".join(filter(None, (checkpoint.name, f"input {width} × {height} px", credit)))
    said = "".join(answer(checkpoint, explanation))
    headings = [(text, times) for text, times in ((said, 1.7), (map_view.sentence, 1.3)) if text]
    across, high = (side / DPI * INCH for side in drawn.size)
    with open_sheet(max(across, _NARROWEST) + 2 * EDGE, high, facts, kind, headings) as sheet:
        axes = sheet.axes(0, 0, across, high)
        show_picture(axes, drawn)
        if (query := map_view.facts.get("query")) is not None and query >= len(record.prefix):
            outline_patch(axes, query - len(record.prefix), record.grid, Box(0, 0, *drawn.size))
    return sheet.content


def map_figure(
    explanation: Explanation,
    selection: Selection,
    map_view: MapView,
    facts: str,
    width: float = WIDTHS["1 column"],
    kind: Kind = "png",
) -> bytes:
    """Draw a figure with the picture, the picture with the map, a colour bar and a caption.

    Args:
        selection: colours, opacity, cover, smoothness, outline.
        map_view: the map.
        facts: text printed below, see `caption`.
        width: of the figure [mm].
        kind: file format.

    Returns:
        contents of the file; deterministic.
    """
    record = explanation.record
    picture, box = window(explanation.picture, explanation.geometry.box)
    column = (width - 2 * EDGE - _GAP) / 2  # for one of the pictures [mm]
    side = min(column, HIGHEST * picture.width / picture.height)
    high = side * picture.height / picture.width
    # Resample to the print resolution, so that the edges of patches are sharp.
    picture, box = scaled(picture, box, side / INCH * DPI / picture.width)
    weight, patches = map_view.unit == "weight", record.heatmap(map_view.weights)
    if map_view.colours is None:
        facts = " ".join(filter(None, (facts, clear(selection.cover), outline(selection.contour, selection.mass))))
    else:
        shares = zip(("Red", "green", "blue"), map_view.facts["shares"], strict=True)
        facts += " " + ", ".join(f"{colour} {share:.0%}" for colour, share in shares) + " of how the patches differ."
    colours = 0.0 if map_view.colours is not None else (LINE if weight else 0) + COLOURS
    with open_sheet(width, high + colours, facts, kind) as sheet:
        for left, shown in (
            (0.0, picture),
            (column + _GAP, draw_map(record, picture, box, selection, map_view)),
        ):
            axes = sheet.axes(left, 0, side, high)
            show_picture(axes, shown)
            if (query := map_view.facts.get("query")) is not None and query >= len(record.prefix):
                outline_patch(axes, query - len(record.prefix), record.grid, box)
        if colours:
            sheet.colours(
                high + 1.2 + (LINE if weight else 0),
                SIGNED_COLOURS if map_view.signed else COLORMAPS[colormap(selection)],
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
    """Draw a figure with the selected token's attention in every head, axis labels, a colour bar and a caption.

    Args:
        selection: token, direction, colours and scale.
        facts: text printed below, see `caption`; begins with `grid_sentence`.
        width: of the figure [mm].
        kind: file format.

    Returns:
        contents of the file; deterministic.
    """
    record = explanation.record
    maps = grid_maps(record, selection)  # (L, H, rows, cols)
    blocks, heads, rows, cols = maps.shape
    left, above = 8.0, 2 * LINE  # for the labels [mm]
    across = min((width - 2 * EDGE - left) / heads, HIGHEST / blocks * cols / rows)  # one map and its gap [mm]
    cell = max(rows, cols) * max(1, round(across * DPI / INCH / max(rows, cols)))  # whole pixels per patch
    cell = min(cell, max(max(rows, cols), 9000 // max(blocks, heads)))
    shared = selection.scale == "shared"
    top = shared_top(explanation.payload, selection) if shared else 1.0
    drawn = mosaic(maps, colormap(selection), shared=shared, vmax=top if shared else None, cell=cell, labels=False)
    high = heads * across * drawn.height / drawn.width
    below = LINE + COLOURS if shared else LINE
    with open_sheet(width, above + high + below, facts, kind) as sheet:
        axes = sheet.axes(left, above, heads * across, high)
        show_picture(axes, drawn)
        axes.tick_params(bottom=False, left=False, top=False, labelbottom=False, labeltop=True, labelleft=True, pad=1)
        for axis, count, length in ((axes.xaxis, heads, drawn.width), (axes.yaxis, blocks, drawn.height)):
            places = (np.arange(count) + 0.5) * (length / count) - 0.5
            axis.set_ticks(places, [str(i + 1) for i in range(count)])
        axes.set_xlabel("Head", labelpad=2)
        axes.xaxis.set_label_position("top")
        axes.set_ylabel("Block", labelpad=2)
        if shared:
            ends = float(maps.min()), float(maps.max())
            sheet.colours(
                above + high + 1.2 + LINE, COLORMAPS[colormap(selection)], (0.0, top), ends, "weight", record.tokens
            )
        else:
            sheet.text(0, above + high + 1, "Each map from 0 to its own strongest patch; colours cannot be compared.")
    return sheet.content


def grid_sentence(explanation: Explanation, selection: Selection) -> str:
    """Describe a figure of all heads."""
    record = explanation.record
    name = token_name(selection.token, record.prefix, record.grid)
    question = f"attention from {name}" if selection.direction == "from" else f"attention to {name}"
    return f"Every head of every block: {question}."
