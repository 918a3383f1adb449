"""Convert the picture types that Python code uses to RGB pictures of Pillow."""

from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vit.errors import InvalidImage
from vit.images.files.decode import decode_image


def picture_of(picture: Any) -> Image.Image:
    """Convert a picture of any supported type to an RGB picture.

    Args:
        picture: of Pillow; the path or the bytes of a file, see `decode_image`; an array (height, width), (height,
            width, 1 or 3), or a tensor (1 or 3, height, width), also as a batch of one: integers from 0 to 255, or
            floats from 0 to 1.

    Raises:
        InvalidImage: it is not a picture, in one sentence.
    """
    if isinstance(picture, Image.Image):
        return picture if picture.mode == "RGB" else picture.convert("RGB")
    if isinstance(picture, bytes):
        return decode_image(picture)
    if isinstance(picture, str | Path):
        try:
            content = Path(picture).read_bytes()
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or "the name cannot be"
            raise InvalidImage(f"{picture} cannot be read: {reason}.") from error
        try:
            return decode_image(content)
        except InvalidImage as error:
            raise InvalidImage(f"{picture}: {error}") from error
    if hasattr(picture, "detach"):  # a torch tensor; torch may not be installed
        return _of_array(np.moveaxis(_one(picture.detach().cpu().numpy()), 0, -1))
    if isinstance(picture, np.ndarray):
        return _of_array(picture if picture.ndim == 2 else _one(picture))
    raise InvalidImage(f"A {type(picture).__name__} is not a picture: pass a Pillow image, a path, bytes or an array.")


def _one(numbers: np.ndarray) -> np.ndarray:
    """Return an array with three dimensions, also from a batch of one."""
    if numbers.ndim == 4 and len(numbers) == 1:
        numbers = numbers[0]
    if numbers.ndim == 2:
        numbers = numbers[None]
    if numbers.ndim != 3:
        raise InvalidImage(f"An array of the shape {numbers.shape} is not one picture.")
    return numbers


def _of_array(numbers: np.ndarray) -> Image.Image:
    """Convert an array (height, width) or (height, width, channels)."""
    if numbers.ndim == 3 and numbers.shape[-1] == 1:
        numbers = numbers[..., 0]
    if 0 in numbers.shape or (numbers.ndim == 3 and numbers.shape[-1] != 3):
        raise InvalidImage(
            f"A picture must have 1 or 3 channels; this array of shape {numbers.shape} has {numbers.shape[-1]}."
        )
    if numbers.dtype == np.bool_ or not np.issubdtype(numbers.dtype, np.number):
        raise InvalidImage(f"A picture must be an array of numbers, not of {numbers.dtype}.")
    whole = np.issubdtype(numbers.dtype, np.integer)
    low, high, top = float(numbers.min()), float(numbers.max()), 255 if whole else 1
    if not (low >= 0 and high <= top):  # false for NaN
        raise InvalidImage(
            f"{'Integer' if whole else 'Floating-point'} pixels must be 0 to {top}; these are {low:g} to {high:g}. "
            "Pass the picture before it is normalised."
        )
    levels = numbers if whole else np.rint(numbers.astype(np.float64) * 255)
    return Image.fromarray(levels.astype(np.uint8)).convert("RGB")
