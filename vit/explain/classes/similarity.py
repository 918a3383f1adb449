"""Similarity to another picture, or to one of its patches, as the only class of a model."""

from PIL import Image

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.custom_classes import CustomClasses
from vit.checkpoints.input_sizes import resized
from vit.errors import UserError
from vit.explain.features import patch_features, pooled_features
from vit.model.classification_heads import LikenessHead
from vit.model.cost import Size


def class_from_picture(
    checkpoint: Checkpoint,
    image: Image.Image,
    patch: tuple[int, int] | None = None,
    name: str = "",
    *,
    size: Size | None = None,
) -> CustomClasses:
    """Make similarity to a picture, or to one of its patches, the only class of a checkpoint; needs no labels.

    The logit is the cosine similarity, -1 to 1, of the head's input for the explained picture with that for `image`, or
    with that for its patch as the only token. Maps of this class show which parts make the explained picture similar.
    Gradients treat the norm of the explained picture's features as constant, because the gradient of a cosine vanishes
    for a picture and itself.

    Args:
        checkpoint: as loaded; with or without classes.
        image: RGB reference picture.
        patch: (row, col) from 0; None for the whole picture.
        name: class name; empty for a generated one.
        size: (height, width) of the model's input [px], in whole patches; None for the checkpoint's own.

    Raises:
        UserError: the patch does not exist.
    """
    preprocess = resized(checkpoint.preprocess, size or checkpoint.preprocess.size)
    pixels = preprocess(image)
    if patch is None:
        direction = pooled_features(checkpoint.model, pixels)[0]
    else:
        (row, col), (rows, cols) = patch, (side // checkpoint.config.patch_size for side in preprocess.size)
        if not (0 <= row < rows and 0 <= col < cols):
            raise UserError(f"A patch is ROW,COL, rows 0 to {rows - 1} and columns 0 to {cols - 1}, not {row},{col}.")
        direction = patch_features(checkpoint.model, pixels)[row * cols + col]
    name = name or "like " + ("the picture" if patch is None else f"patch {patch[0]},{patch[1]}")
    head = LikenessHead(direction.clone())
    facts = {"patch": patch, "name": name, "size": size}
    return CustomClasses((name,), head.eval(), f"similarity ({name})", "cosine", facts=facts)
