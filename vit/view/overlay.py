"""Draw heatmaps: colour them, overlay them on the original picture, arrange many of them in a grid.

Colours represent value / vmax, clipped to 0..1, or to -1..1 for signed maps. By default, maps that are shown together
share one vmax.
"""

from pathlib import Path
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from vit.explain.names import display_name
from vit.images.geometry import Box
from vit.view.selection import Cover

Heatmap = NDArray[np.floating]  # (rows, cols)
Colormap = Literal["viridis", "cividis", "inferno", "magma", "gray"]

# Ends of the "RdBu" colour map, distinguishable for colour-blind people. Source: Brewer, colorbrewer2.org.
RED, BLUE = (178, 24, 43), (33, 102, 172)
_PALE = (247, 247, 247)  # its middle

OUTSIDE_BRIGHTNESS = 0.6  # brightness of the part that the model does not see
PIXELATED_SIDE = 128  # pictures up to this side are enlarged pixel by pixel, as in the viewer [px]
PANORAMA_SIDES = 2.5  # maximum side of a picture, relative to the other side of the part that the model sees
_STRIP_ROWS = 256  # rows per strip, so that a 50-megapixel picture needs only one copy in memory [px]

# matplotlib's colour maps, (256, 3) each, by Smith, van der Walt & Firing (cividis: Nunez, Anderton & Renslow 2018;
# CC0). Stored in a file, because importing matplotlib takes longer than loading a page; a test compares them with it.
_TABLES = np.load(Path(__file__).with_name("colormaps.npy"))
COLORMAPS: dict[str, NDArray[np.uint8]] = dict(zip(get_args(Colormap), _TABLES, strict=True))

# Colours of signed maps (256, 3): blue for -vmax, pale for 0, red for vmax; `colours.js` has the same.
SIGNED_COLOURS = np.rint(
    [np.interp(np.arange(256), [0, 127.5, 255], ends) for ends in zip(BLUE, _PALE, RED, strict=True)]
).T.astype(np.uint8)


def colorize(heatmap: Heatmap, colormap: Colormap = "viridis", vmax: float | None = None) -> NDArray[np.uint8]:
    """Map values to colours.

    Args:
        heatmap: (...), finite; negative values count as 0.
        colormap: a name in `COLORMAPS`.
        vmax: value of the last colour; None for the maximum.

    Returns:
        (..., 3), RGB.

    >>> colorize(np.array([0.0, 0.5, 1.0]), "gray").tolist()
    [[0, 0, 0], [128, 128, 128], [255, 255, 255]]
    """
    return COLORMAPS[colormap][_colour_levels(heatmap, vmax)]


def overlay(
    picture: Image.Image,
    heatmap: Heatmap,
    box: Box | None = None,
    *,
    opacity: float = 0.6,
    cover: Cover = "weight",
    colormap: Colormap = "viridis",
    smooth: bool = False,
    vmax: float | None = None,
    signed: bool = False,
) -> Image.Image:
    """Overlay a heatmap on the original picture. The part that the model does not see is dimmed.

    Args:
        picture: RGB, at its original size.
        heatmap: (rows, cols), finite; negative values count as 0 unless `signed`.
        box: the part of the picture that the heatmap covers [px], `Geometry.box`; None for the whole picture.
        opacity: 0 shows only the picture; higher values cover more of it.
        cover: "weight" leaves values below the mean uncovered, and covers higher values more; "film" covers the whole
            picture, completely at opacity 1.
        colormap: a name in `COLORMAPS`.
        smooth: interpolate between patch centres, instead of one flat colour per patch.
        vmax: value of the last colour; None for the maximum.
        signed: colour from -vmax to vmax by `SIGNED_COLOURS`, whatever `colormap`, over the picture in grey; coverage
            depends on absolute values.

    Returns:
        RGB, of the picture's size.
    """
    heatmap = np.asarray(heatmap, np.float32)
    sizes = np.abs(heatmap) if signed else heatmap
    vmax = _scale_maximum(sizes, vmax)
    mean = _colour_levels(sizes, vmax).mean()
    colours = COLORMAPS[colormap]
    if signed:
        picture = picture.convert("L")
        heatmap = (heatmap + np.float32(vmax)) / 2  # the middle of the colours is 0
        ends = [0] * 128 + [255] * 128  # with cover "weight", opacity alone tells red from pale
        colours = SIGNED_COLOURS if cover == "film" else SIGNED_COLOURS[ends]
    left, top, right, bottom = box or Box(0, 0, *picture.size)
    x, y = _pixels_inside(left, right, picture.width), _pixels_inside(top, bottom, picture.height)
    across = _patch_weights(x, left, right, heatmap.shape[1], smooth)  # (width seen, cols)
    shades = across @ heatmap.T  # (width seen, rows)
    veil = _coverage(opacity, mean if cover == "weight" else None, signed)
    picture = picture if picture.mode == "RGB" else picture.convert("RGB")  # `convert` would copy an RGB picture
    covered = len(x) == picture.width and len(y) == picture.height
    result = picture.copy() if covered else picture.point(lambda value: round(value * OUTSIDE_BRIGHTNESS))
    if not len(x):
        return result
    if not covered:
        area = (int(x[0]), int(y[0]), int(x[-1]) + 1, int(y[-1]) + 1)
        result.paste(picture.crop(area), area)
    for start in range(0, len(y), _STRIP_ROWS):
        part = y[start : start + _STRIP_ROWS]
        levels = _colour_levels(
            _patch_weights(part, top, bottom, heatmap.shape[0], smooth) @ shades.T, vmax
        )  # (strip, width seen)
        colors = Image.fromarray(colours[levels])
        result.paste(colors, (int(x[0]), int(part[0])), Image.fromarray(veil[levels]))
    return result


def coloured(
    picture: Image.Image, colours: NDArray[np.floating], box: Box, *, opacity: float, smooth: bool
) -> Image.Image:
    """Overlay coloured patches on the picture. The part that the model does not see is dimmed.

    Args:
        picture: RGB.
        colours: (rows, cols, 3), 0 to 1.
        box: the part of the picture that the patches cover [px].
        opacity: 0 shows only the picture, 1 only the colours.
        smooth: interpolate between patch centres.
    """
    left, top, right, bottom = box
    x, y = _pixels_inside(left, right, picture.width), _pixels_inside(top, bottom, picture.height)
    result = picture.point(lambda value: round(value * OUTSIDE_BRIGHTNESS))
    if not len(x) or not len(y):
        return result
    across = _patch_weights(x, left, right, colours.shape[1], smooth)  # (width seen, cols)
    down = _patch_weights(y, top, bottom, colours.shape[0], smooth)  # (height seen, rows)
    pixels = np.einsum("yr,rcd,xc->yxd", down, np.asarray(colours, np.float32), across, optimize=True)
    area = (int(x[0]), int(y[0]), int(x[-1]) + 1, int(y[-1]) + 1)
    drawn = Image.fromarray(np.rint(255 * pixels).astype(np.uint8))
    result.paste(Image.blend(picture.crop(area), drawn, opacity**0.5), area)
    return result


def bordered(picture: Image.Image, marked: NDArray[np.bool_], box: Box | None = None) -> Image.Image:
    """Outline marked patches with a white line on a wider black one.

    Args:
        picture: RGB.
        marked: (rows, cols).
        box: the part of the picture that the patches cover [px]; None for the whole picture.

    Returns:
        RGB, of the picture's size.
    """
    left, top, right, bottom = box or Box(0, 0, *picture.size)
    (rows, cols), edges = marked.shape, np.pad(marked, 1).astype(int)
    x, y = np.linspace(left, right, cols + 1) - 0.5, np.linspace(top, bottom, rows + 1) - 0.5
    lines = [((x[c], y[r]), (x[c + 1], y[r])) for r, c in np.argwhere(np.diff(edges, axis=0)[:, 1:-1])]
    lines += [((x[c], y[r]), (x[c], y[r + 1])) for r, c in np.argwhere(np.diff(edges, axis=1)[1:-1])]
    result, thin = picture.copy(), max(1, round(max(picture.size) / 400))
    draw = ImageDraw.Draw(result)
    for color, width in (("black", 3 * thin), ("white", thin)):
        for line in lines:
            draw.line(line, color, width)
    return result


def window(picture: Image.Image, box: Box) -> tuple[Image.Image, Box]:
    """Crop a panorama to the surroundings of the box; return the picture and the box in it [px]."""
    left, top, right, bottom = box
    first, last = _extent(left, right, picture.width, PANORAMA_SIDES * (bottom - top))
    upper, lower = _extent(top, bottom, picture.height, PANORAMA_SIDES * (right - left))
    if (first, upper, last, lower) == (0, 0, *picture.size):
        return picture, box
    part = picture.crop((first, upper, last, lower))
    return part, Box(left - first, top - upper, right - first, bottom - upper)


def scaled(picture: Image.Image, box: Box, factor: float) -> tuple[Image.Image, Box]:
    """Resize a picture and its box [px]. Small pictures are enlarged by an integer factor, pixel by pixel."""
    small = max(picture.size) <= PIXELATED_SIDE
    if small:
        factor = max(1, round(factor))
    width, height = max(1, round(picture.width * factor)), max(1, round(picture.height * factor))
    x, y = width / picture.width, height / picture.height
    left, top, right, bottom = box
    filter = Image.Resampling.NEAREST if small else Image.Resampling.LANCZOS
    return picture.resize((width, height), filter), Box(left * x, top * y, right * x, bottom * y)


def _extent(start: float, stop: float, length: int, longest: float) -> tuple[int, int]:
    """Return the visible range along one side; the viewer's `extent` does the same."""
    if length <= longest:
        return 0, length
    margin = max(0.0, longest - (stop - start)) / 2
    return max(0, round(start - margin)), min(length, round(stop + margin))


def signed_overlay(
    picture: Image.Image, difference: Heatmap, box: Box | None = None, *, side: int = 480
) -> Image.Image:
    """Overlay a signed map on the picture in pale grey: red for positive values, blue for negative ones.

    Args:
        picture: RGB.
        difference: (rows, cols), finite.
        box: the part of the picture that the map covers [px]; None for the whole picture. The rest is cropped.
        side: longer side of the result [px].

    Returns:
        RGB.
    """
    left, top, right, bottom = (round(edge) for edge in box or Box(0, 0, *picture.size))
    scale = side / max(right - left, bottom - top)
    size = max(1, round((right - left) * scale)), max(1, round((bottom - top) * scale))
    grey = picture.crop((left, top, right, bottom)).convert("L").resize(size, Image.Resampling.BICUBIC)
    pale = np.asarray(grey.point(lambda value: 112 + value // 2), np.float32)[..., None]
    shares = np.clip(np.asarray(difference, np.float32) / _scale_maximum(np.abs(difference), None), -1, 1)
    enlarged = np.asarray(Image.fromarray(shares).resize(size, Image.Resampling.NEAREST))[
        ..., None
    ]  # (height, width, 1)
    cover = 0.9 * np.abs(enlarged)
    return Image.fromarray(np.rint(pale * (1 - cover) + np.where(enlarged > 0, RED, BLUE) * cover).astype(np.uint8))


def _coverage(opacity: float, mean: float | None, signed: bool) -> NDArray[np.uint8]:
    """Compute the alpha value (256,) of each colour, 0 to 255; the viewer does the same.

    Args:
        mean: mean level of all patches, 0 to 255; levels below it are transparent. None for a film.
        signed: levels grow from the middle of the colours to both ends.
    """
    levels = np.abs(2 * np.arange(256) - 255) if signed else np.arange(256)
    if mean is None:
        covered = np.linspace(opacity**2, opacity**0.5, 256)[levels]
    else:
        clear = np.floor(mean + 0.5)
        covered = np.sqrt(opacity * np.clip((levels - clear) / max(255 - clear, 1), 0, 1))
    return np.rint(255 * covered).astype(np.uint8)


def mosaic(
    heatmaps: NDArray[np.floating],
    colormap: Colormap = "viridis",
    *,
    shared: bool = True,
    vmax: float | None = None,
    cell: int = 64,
    labels: bool = True,
) -> Image.Image:
    """Draw the heatmaps of all heads in a grid: one row per block, one column per head.

    Args:
        heatmaps: (L, H, rows, cols), finite; negative values count as 0.
        colormap: a name in `COLORMAPS`.
        shared: whether all maps share one scale.
        vmax: value of the last colour of the shared scale; None for the maximum.
        cell: longer side of one map [px].
        labels: label blocks and heads at the edges.

    Returns:
        RGB.
    """
    heatmaps = np.asarray(heatmaps, np.float32)
    blocks, heads, rows, cols = heatmaps.shape
    vmax = _scale_maximum(heatmaps, vmax) if shared else None
    width, height = (max(1, round(cell * side / max(rows, cols))) for side in (cols, rows))
    font = ImageFont.load_default(max(9, cell // 5))
    margin, line = (
        (round(font.getlength(display_name("Block", blocks - 1))) + 8, 2 * cell // 5 + 2) if labels else (0, 0)
    )
    gap = max(1, cell // 32)
    result = Image.new("RGB", (margin + heads * (width + gap) - gap, line + blocks * (height + gap) - gap), "white")
    draw = ImageDraw.Draw(result)
    for block in range(blocks):
        y = line + block * (height + gap)
        if labels:
            draw.text((margin - 4, y + height // 2), display_name("Block", block), "black", font, anchor="rm")
        for head in range(heads):
            x = margin + head * (width + gap)
            tile = Image.fromarray(colorize(heatmaps[block, head], colormap, vmax))
            result.paste(tile.resize((width, height), Image.Resampling.NEAREST), (x, y))
    if labels:
        for head in range(heads):
            x = margin + head * (width + gap) + width // 2
            draw.text((x, line // 2), _short_label(display_name("Head", head), font, width), "black", font, anchor="mm")
    return result


def _short_label(label: str, font: ImageFont.FreeTypeFont | ImageFont.ImageFont, width: int) -> str:
    """Shorten a label to its number if it is wider than its column [px]."""
    return label if font.getlength(label) <= width else label.split()[-1]


def _scale_maximum(heatmap: Heatmap, vmax: float | None) -> float:
    """Return vmax, or the maximum if it is None; 1 for a map without positive values, which then stays all zero."""
    if not np.isfinite(heatmap).all():
        raise ValueError("A heatmap holds NaN or infinite values.")
    vmax = float(heatmap.max()) if vmax is None else vmax
    return vmax if vmax > 0 else 1.0


def _colour_levels(heatmap: Heatmap, vmax: float | None) -> NDArray[np.uint8]:
    """Return each value's index into a colour map, 0 to 255."""
    scaled = np.asarray(heatmap, np.float32) * np.float32(255 / _scale_maximum(heatmap, vmax))
    return np.clip(scaled + np.float32(0.5), 0, 255).astype(np.uint8)


def _pixels_inside(start: float, stop: float, size: int) -> NDArray[np.int64]:
    """Return the pixels of a side of `size` pixels whose centres lie between start and stop [px]."""
    return np.arange(max(0, int(np.ceil(start - 0.5))), min(size, int(np.ceil(stop - 0.5))))


def _patch_weights(
    pixels: NDArray[np.int64], start: float, stop: float, patches: int, smooth: bool
) -> NDArray[np.float32]:
    """Return interpolation weights (pixels, patches); rows sum to 1.

    Patches divide the range from start to stop [px] equally. `smooth` interpolates linearly between patch centres and
    is constant beyond the outer ones.
    """
    at = (pixels + 0.5 - start) * patches / (stop - start) - 0.5  # in patches; patch i has its centre at i
    if smooth:
        distance = np.abs(np.clip(at, 0, patches - 1)[:, None] - np.arange(patches))
        return np.clip(1 - distance, 0, 1).astype(np.float32)
    nearest = np.clip(np.floor(at + 0.5).astype(int), 0, patches - 1)
    return np.eye(patches, dtype=np.float32)[nearest]
