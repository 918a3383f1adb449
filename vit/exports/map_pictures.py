"""Draw maps like the viewer does: over their picture, or of all heads side by side."""

from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vit.explain.maps import mass_threshold, otsu_threshold
from vit.explain.record import AttentionRecord
from vit.images.encode import encode_image
from vit.images.geometry import Box
from vit.view.explanation import Explanation
from vit.view.map_view import MapView, shared_top
from vit.view.overlay import COLORMAPS, Colormap, Heatmap, bordered, coloured, mosaic, overlay
from vit.view.selection import Selection


def draw_map(
    record: AttentionRecord, picture: Image.Image, box: Box, selection: Selection, map_view: MapView
) -> Image.Image:
    """Draw a map over a picture like the viewer does; see `paint_heatmap`."""
    if map_view.colours is None:
        heatmap = record.heatmap(map_view.weights).numpy()
        return paint_heatmap(picture, heatmap, box, selection, map_view.low, map_view.top, map_view.signed)
    colours, opacity = map_view.colours.numpy(), selection.opacity
    return coloured(picture.convert("RGB"), colours, box, opacity=opacity, smooth=selection.smooth)


def paint_heatmap(
    picture: Image.Image,
    heatmap: Heatmap,
    box: Box,
    selection: Selection,
    low: float,
    top: float,
    signed: bool = False,
) -> Image.Image:
    """Draw a heatmap over a picture, with the selection's colours, opacity, cover, smoothness and outline.

    Args:
        picture: RGB, of any size.
        heatmap: (rows, cols).
        box: the part of the picture that the model sees [px].
        low, top: values of the first and the last colour.
        signed: see `MapView.signed`.
    """
    covered = overlay(
        picture,
        heatmap if signed else heatmap - np.float32(low),
        box,
        opacity=selection.opacity,
        cover=selection.cover,
        colormap=colormap(selection),
        smooth=selection.smooth,
        vmax=top if signed else top - low,
        signed=signed,
    )
    numbers = torch.from_numpy(np.asarray(heatmap, np.float32))
    if selection.contour == "mass" and (numbers > 0).any():
        covered = bordered(covered, mass_threshold(numbers.clamp(min=0), selection.mass).numpy(), box)
    if selection.contour == "otsu":
        covered = bordered(covered, otsu_threshold(numbers).numpy(), box)
    return covered


def grid_png(explanation: Explanation, selection: Selection, cell: int = 96) -> bytes:
    """Draw the selected token's attention in every head, one row per block."""
    grid = mosaic(
        grid_maps(explanation.record, selection),
        colormap(selection),
        shared=selection.scale == "shared",
        vmax=shared_top(explanation.payload, selection) if selection.scale == "shared" else None,
        cell=cell,
    )
    return encode_image(grid, "PNG")


def grid_maps(record: AttentionRecord, selection: Selection) -> NDArray[np.float32]:
    """Compute the attention of the selected token in every head: (L, H, rows, cols)."""
    maps = [record.of_heads(selection.token, block, selection.direction) for block in range(record.blocks)]
    return record.heatmap(torch.stack(maps)).numpy()


def colormap(selection: Selection) -> Colormap:
    """Return the selected colour map, or the default."""
    return cast(Colormap, selection.colormap) if selection.colormap in COLORMAPS else "viridis"
