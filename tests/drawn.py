"""Generated pictures for tests."""

import numpy as np
from PIL import Image


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
