"""Input sizes in whole patches, near to those that published models are used at."""

from dataclasses import replace

from vit.checkpoints.checkpoint import Checkpoint
from vit.explain.cost import Size
from vit.images.preprocess import Preprocess

SIDES = (384, 518, 768, 1024)  # input sizes that published models are used at [px]
FACTORS = (1, 2, 4, 8)  # of the own size, for models of small pictures
SMALL_SIDE = 128  # of the input of a model of small pictures, at most [px]


def size_near(checkpoint: Checkpoint, side: int) -> Size:
    """The size in whole patches whose shorter side is nearest to `side` [px], in the checkpoint's own proportions.

    With patches of 14 px, 384 and 1,024 px become 378 and 1,022.
    """
    patch, own = checkpoint.config.patch_size, checkpoint.preprocess.size
    height, width = (max(1, round(side * length / min(own) / patch)) * patch for length in own)
    return height, width


def enlarged_size(checkpoint: Checkpoint, factor: int) -> Size:
    """`factor` times the checkpoint's own size."""
    height, width = checkpoint.preprocess.size
    return height * factor, width * factor


def resized(preprocess: Preprocess, size: Size) -> Preprocess:
    """The same cut of a picture, for another input size."""
    assert preprocess.resize_to is not None  # Preprocess sets it
    scale = max(new / own for new, own in zip(size, preprocess.size, strict=True))
    least = max(size) if preprocess.resize == "shortest" else min(size)
    return replace(preprocess, size=size, resize_to=max(least, round(preprocess.resize_to * scale)))
