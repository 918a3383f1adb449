"""A generated dataset of four shapes, which needs no download."""

import torch
from torch import Tensor

from vit.data.pictures import InMemoryPictures

SHAPES = ("circle", "square", "triangle", "cross")


def shapes(count: int, size: int, seed: int) -> tuple[InMemoryPictures, Tensor]:
    """Draw one bright shape per picture on a dark, noisy background; also return its mask.

    Args:
        count: number of pictures; the classes in `SHAPES` alternate.
        size: side of a picture [px].
        seed: equal seeds give equal pictures.

    Returns:
        Pictures, and masks bool (count, size, size), True on the shape.
    """
    generator = torch.Generator().manual_seed(seed)

    def uniform(low: float, high: float, *shape: int) -> Tensor:
        return torch.rand(count, *shape, generator=generator) * (high - low) + low

    labels = torch.arange(count) % len(SHAPES)
    radius = uniform(0.25, 0.4)
    centre = torch.rand(count, 2, generator=generator) * (1 - 2 * radius[:, None]) + radius[:, None]
    angle = uniform(-0.3, 0.3)
    steps = (torch.arange(size) + 0.5) / size
    y, x = torch.meshgrid(steps, steps, indexing="ij")
    dy, dx = y - centre[:, 0, None, None], x - centre[:, 1, None, None]
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    u, v = (dx * cos + dy * sin) / radius[:, None, None], (dy * cos - dx * sin) / radius[:, None, None]
    inside = torch.stack(
        [
            u**2 + v**2 < 1,
            torch.maximum(u.abs(), v.abs()) < 0.85,
            (v < 0.75) & (v > 2 * u.abs() - 1),
            (torch.minimum(u.abs(), v.abs()) < 0.3) & (torch.maximum(u.abs(), v.abs()) < 1),
        ],
        dim=1,
    )  # (count, 4, size, size)
    masks = inside[torch.arange(count), labels]

    ground = uniform(0, 0.4, 3, 1, 1) + uniform(-0.15, 0.15, 3, 1, 1) * (x + y)
    paint = uniform(0.5, 1, 3, 1, 1)
    images = torch.where(masks[:, None], paint, ground) + uniform(-0.05, 0.05, 3, size, size)
    return InMemoryPictures((images.clamp(0, 1) * 255).to(torch.uint8), labels), masks
