"""Input sizes in whole patches, close to the common sizes of published models."""

from dataclasses import replace

from vit.checkpoints.checkpoint import Checkpoint
from vit.images.preprocess import Preprocess
from vit.model.cost import Size

SIDES = (384, 518, 768, 1024)  # common input sizes of published models [px]
FACTORS = (1, 2, 4, 8)  # multiples of the checkpoint's size, offered for models of small pictures
SMALL_SIDE = 128  # maximum input side of a model of small pictures [px]


def size_near(checkpoint: Checkpoint, side: int) -> Size:
    """Return the size whose shorter side is closest to `side` [px], in whole patches and the checkpoint's aspect ratio.

    With patches of 14 px, 384 px becomes 378 px, and 1,024 px becomes 1,022 px.
    """
    patch, own = checkpoint.config.patch_size, checkpoint.preprocess.size
    height, width = (max(1, round(side * length / min(own) / patch)) * patch for length in own)
    return height, width


def enlarged_size(checkpoint: Checkpoint, factor: int) -> Size:
    """Return the checkpoint's input size multiplied by `factor`."""
    height, width = checkpoint.preprocess.size
    return height * factor, width * factor


def resized(preprocess: Preprocess, size: Size) -> Preprocess:
    """Return preprocessing with the same crop for another input size."""
    assert preprocess.resize_to is not None  # Preprocess sets it
    scale = max(new / own for new, own in zip(size, preprocess.size, strict=True))
    least = max(size) if preprocess.resize == "shortest" else min(size)
    return replace(preprocess, size=size, resize_to=max(least, round(preprocess.resize_to * scale)), rectangle=None)
