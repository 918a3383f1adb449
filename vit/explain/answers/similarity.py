"""Likeness to another picture, or to a patch of one, as the class that a model is asked about."""

from PIL import Image

from vit.checkpoints.answers import Answers
from vit.checkpoints.checkpoint import Checkpoint
from vit.errors import UserError
from vit.explain.cost import Size
from vit.explain.features import of_patches, pooled
from vit.explain.input_sizes import resized
from vit.model.heads import LikenessHead


def answers_from_picture(
    checkpoint: Checkpoint,
    image: Image.Image,
    patch: tuple[int, int] | None = None,
    name: str = "",
    *,
    size: Size | None = None,
) -> Answers:
    """Make likeness to a picture, or to one of its patches, the one class of a checkpoint; no labels are needed.

    The logit is the cosine of two vectors, -1 to 1: of what the head would read of the picture in question, and of what
    it would read of `image`, or of its patch if there was nothing else. The gradient is of the first alone, whose
    length is taken for given, so a map of this class says which parts of the picture in question make it alike; also of
    a picture and itself, where a cosine has no gradient.

    Args:
        checkpoint: as its files have it; with or without classes.
        image: RGB.
        patch: row and column, from 0; None for the picture as a whole.
        name: of the class; empty for a description.
        size: (height, width) of the model's input [px], in whole patches; None for the checkpoint's own.

    Raises:
        UserError: the picture has no such patch.
    """
    preprocess = resized(checkpoint.preprocess, size or checkpoint.preprocess.size)
    pixels = preprocess(image)
    if patch is None:
        direction = pooled(checkpoint.model, pixels)[0]
    else:
        (row, col), (rows, cols) = patch, (side // checkpoint.config.patch_size for side in preprocess.size)
        if not (0 <= row < rows and 0 <= col < cols):
            raise UserError(f"A patch is ROW,COL, rows 0 to {rows - 1} and columns 0 to {cols - 1}, not {row},{col}.")
        direction = of_patches(checkpoint.model, pixels)[row * cols + col]
    name = name or "like " + ("the picture" if patch is None else f"patch {patch[0]},{patch[1]}")
    head = LikenessHead(direction.clone())
    facts = {"patch": patch, "name": name, "size": size}
    return Answers((name,), head.eval(), f"likeness ({name})", "none", facts=facts)
