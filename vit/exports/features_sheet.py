"""Principal components of features as a sheet of pictures, as numbers and as an animation."""

import io
import json
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.input_sizes import resized
from vit.explain.components import Components, components, patch_features
from vit.explain.names import display_name
from vit.exports.animation import BLOCK, Film

TILE = 192  # longer side of a picture on the sheet [px]
GAP = 8  # between pictures [px]


class Picture(NamedTuple):
    """A picture whose features are compared.

    Attributes:
        name: display name.
        seen: the model's input.
        features: (rows, cols, D), after one block.
    """

    name: str
    seen: Image.Image
    features: Tensor


def read(checkpoint: Checkpoint, name: str, image: Image.Image, size: tuple[int, int], block: int) -> Picture:
    """Compute a picture's features after a block, at an input size (height, width) [px]."""
    preprocess = resized(checkpoint.preprocess, size)
    features = patch_features(checkpoint.model, preprocess(image), block)
    return Picture(name, preprocess.input_image(image), features)


def tile(colours: Tensor, size: tuple[int, int]) -> Image.Image:
    """Draw component colours (rows, cols, 3), 0 to 1, as a picture (width, height) [px] with sharp patches."""
    pixels = (colours * 255).round().byte().numpy()
    return Image.fromarray(pixels).resize(size, Image.Resampling.NEAREST)


def resize_to_tile(picture: Image.Image, side: int = TILE) -> Image.Image:
    """Resize a picture to a longer side of `side` [px]."""
    share = side / max(picture.size)
    size = (max(1, round(picture.width * share)), max(1, round(picture.height * share)))
    return picture.convert("RGB").resize(size, Image.Resampling.BICUBIC)


def sheet(pictures: Sequence[Picture], of: Components) -> Image.Image:
    """Draw all pictures in a row, the model's input above the colours of its patches."""
    above = [resize_to_tile(picture.seen) for picture in pictures]
    width = sum(seen.width + GAP for seen in above) - GAP
    height = max(seen.height for seen in above)
    result = Image.new("RGB", (width, 2 * height + GAP), "white")
    left = 0
    for seen, colours in zip(above, of.colours, strict=True):
        result.paste(seen, (left, height - seen.height))
        result.paste(tile(colours, seen.size), (left, height + GAP))
        left += seen.width + GAP
    return result


def npz(pictures: Sequence[Picture], of: Components, checkpoint: Checkpoint, block: int, foreground: bool) -> bytes:
    """Write the numbers as NPZ: `shares` (3,); per picture i `values_i`, `colours_i` (rows, cols, 3), `used_i`.

    `used_i` is (rows, cols). `meta` is JSON: the checkpoint, the block from 0, the names of the pictures, and whether
    only the foreground was used.
    """
    arrays = {"shares": of.shares.numpy()}
    for i, (values, colours, used) in enumerate(zip(of.values, of.colours, of.used, strict=True)):
        arrays |= {f"values_{i}": values.numpy(), f"colours_{i}": colours.numpy(), f"used_{i}": used.numpy()}
    meta = {
        "checkpoint": {"name": checkpoint.name, "sha256": checkpoint.hash, "identity": checkpoint.identity},
        "block": block,
        "foreground": foreground,
        "pictures": [one.name for one in pictures],
    }
    out = io.BytesIO()
    np.savez_compressed(out, meta=np.array(json.dumps(meta)), **arrays)  # type: ignore[arg-type]
    return out.getvalue()


def over_blocks(by_block: Iterable[Sequence[Picture]], foreground: bool) -> Film:
    """Animate the first picture over all blocks; each block has its own basis, fitted to all pictures.

    Args:
        by_block: for each block, the same pictures in the same order.
    """
    frames = []
    for block, pictures in enumerate(by_block):
        of = components([one.features for one in pictures], foreground=foreground)
        seen = resize_to_tile(pictures[0].seen, 2 * TILE)
        frame = Image.new("RGB", (2 * seen.width + GAP, seen.height + 24), "white")
        frame.paste(seen, (0, 0))
        frame.paste(tile(of.colours[0], seen.size), (seen.width + GAP, 0))
        font = ImageFont.load_default(16)
        ImageDraw.Draw(frame).text((0, seen.height + 4), display_name("Block", block), "black", font)
        frames.append(frame.crop((0, 0, frame.width // 2 * 2, frame.height // 2 * 2)))  # H.264 needs even sides
    return Film(tuple(frames), (BLOCK,) * len(frames))
