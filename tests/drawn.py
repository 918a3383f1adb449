"""Generated pictures for tests, as files, and the errors of files that are refused."""

import numpy as np
import pytest
from PIL import Image

from vit.errors import InvalidImage
from vit.images.encode import encode_image
from vit.images.files.decode import decode_image


def refusal(data: bytes) -> str:
    """Return the message with which a picture is refused, one sentence or more in one line."""
    with pytest.raises(InvalidImage) as caught:
        decode_image(data)
    message = str(caught.value)
    assert message.endswith(".") and "\n" not in message
    return message


def animated(count: int = 1, **options: object) -> bytes:
    """Return an animated PNG of noise, 60 x 40, by default with a single frame."""
    noise = np.random.default_rng(0).integers(0, 256, (count, 40, 60, 3), dtype=np.uint8)
    frames = [Image.fromarray(pixels) for pixels in noise]
    return encode_image(frames[0], save_all=True, append_images=frames[1:], **options)


def gradient(width: int = 48, height: int = 32) -> Image.Image:
    """Return a smooth RGB picture: red grows to the right, green downwards."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    return Image.fromarray(np.stack([x, y, np.full_like(x, 64)], axis=-1).astype(np.uint8))


def noise(count: int, width: int, height: int) -> list[Image.Image]:
    """Return pictures of coarse colours, as maps have."""
    colours = np.random.default_rng(0).integers(0, 256, (count, 3, 4, 3), dtype=np.uint8)
    return [Image.fromarray(few).resize((width, height), Image.Resampling.NEAREST) for few in colours]


def difference(image: Image.Image, other: Image.Image) -> float:
    """Return the mean absolute difference, 0 to 255."""
    return float(np.abs(np.asarray(image, float) - np.asarray(other, float)).mean())
