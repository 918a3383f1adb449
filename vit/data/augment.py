"""Augmentation of whole batches on the device that trains: no Python per picture.

Every random choice comes from `Chance`, which is seeded anew for each step, so a resumed run repeats the same choices.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F


class Chance:
    """Random numbers for one training step.

    Attributes:
        device: for tensors, drawn where the pictures are.
        host: for choices that decide the shape of the work, drawn without waiting for the device.
    """

    def __init__(self, device: torch.device):
        self.device = torch.Generator(device)
        self.host = random.Random()

    def seed(self, seed: int, step: int) -> None:
        """Start the sequence that belongs to this step of this run."""
        number = random.Random(f"{seed} {step}").getrandbits(63)
        self.device.manual_seed(number)
        self.host.seed(number)


@dataclass(frozen=True)
class Augmentation:
    """What is done to a batch of training pictures.

    Attributes:
        crop_padding: pictures are padded by so much on each side, then cut back at a random place [px].
        crop_scale: a random part of at least this share of the area is taken for the whole, its aspect changed by up
            to a third, as RandomResizedCrop does; 1 for off.
        size: (height, width) that such a part gets [px]; None for that of the pictures.
        flip: mirror half of the pictures.
        operations: random colour or geometry changes per picture, after RandAugment.
        magnitude: their strength, 0 to 1.
        erase: share of the pictures that lose a random square of a quarter to a half of their side.
        mixup, cutmix: parameters of the Beta distributions that decide how two pictures are mixed; 0 for off.
            With both on, each batch takes one of the two.

    Source: RandAugment arXiv 1909.13719, random erasing 1708.04896, mixup 1710.09412, CutMix 1905.04899.
    """

    crop_padding: int = 0
    crop_scale: float = 1.0
    size: tuple[int, int] | None = None
    flip: bool = False
    operations: int = 0
    magnitude: float = 0.3
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def __call__(self, images: Tensor, chance: Chance) -> Tensor:
        """Change pictures, uint8 (B, channels, height, width) to uint8 of the same shape, or of `size`."""
        generator = chance.device
        if self.crop_scale < 1:
            images = resized_crop(images, self.crop_scale, self.size or images.shape[2:], generator)
        if self.crop_padding or self.flip:
            images = crop_and_flip(images, self.crop_padding, self.flip, generator)
        if self.operations:
            images = randaugment(images, self.operations, self.magnitude, generator)
        if self.erase:
            images = erase(images, self.erase, generator)
        return images

    def mix(self, images: Tensor, targets: Tensor, chance: Chance) -> tuple[Tensor, Tensor]:
        """Mix pictures (B, channels, height, width) and class probabilities (B, C) in pairs by mixup or CutMix."""
        choose_cutmix = bool(self.cutmix) and (not self.mixup or chance.host.random() < 0.5)
        alpha = self.cutmix if choose_cutmix else self.mixup
        if not alpha:
            return images, targets
        share = chance.host.betavariate(alpha, alpha)
        others = images.roll(1, 0)
        if choose_cutmix:
            images, share = _paste(images, others, share, chance.host)
        else:
            images = share * images + (1 - share) * others
        return images, share * targets + (1 - share) * targets.roll(1, 0)


def crop_and_flip(images: Tensor, padding: int, flip: bool, generator: torch.Generator) -> Tensor:
    """Shift each picture by up to `padding` px, black coming in, and mirror half of them if `flip`.

    Args:
        images: (B, channels, height, width); the result has the same shape and type.
        padding: [px].
        generator: on the pictures' device.
    """
    batch, _, height, width = images.shape
    device = images.device
    shifts = torch.randint(0, 2 * padding + 1, (2, batch, 1), generator=generator, device=device)
    rows = torch.arange(height, device=device) + shifts[0]  # (B, height), into the padded picture
    cols = torch.arange(width, device=device).expand(batch, -1)
    if flip:
        mirrored = torch.rand(batch, 1, generator=generator, device=device) < 0.5
        cols = torch.where(mirrored, width - 1 - cols, cols)
    cols = cols + shifts[1]
    padded = F.pad(images, (padding,) * 4)
    chosen = padded[torch.arange(batch, device=device)[:, None, None], :, rows[:, :, None], cols[:, None, :]]
    return chosen.permute(0, 3, 1, 2).contiguous()


def resized_crop(images: Tensor, least: float, size: Sequence[int], generator: torch.Generator) -> Tensor:
    """Cut a random part out of each picture and bring it to one size.

    Args:
        images: uint8 (B, channels, height, width).
        least: smallest share of the area that the part has; the aspect varies from 3:4 to 4:3.
        size: (height, width) of the result [px], uint8 (B, channels, *size).
        generator: on the pictures' device.
    """
    area, aspect, across, down = torch.rand(4, len(images), generator=generator, device=images.device)
    area = least + (1 - least) * area
    aspect = (4 / 3) ** (aspect - 0.5)  # square root of the sides' ratio
    width, height = (area.sqrt() * aspect).clamp_max(1), (area.sqrt() / aspect).clamp_max(1)  # shares of the sides
    x, y = (1 - width) * (2 * across - 1), (1 - height) * (2 * down - 1)  # centre of the part, -1 to 1
    zero = torch.zeros_like(x)
    matrix = torch.stack([torch.stack([width, zero, x], 1), torch.stack([zero, height, y], 1)], 1)  # (B, 2, 3)
    grid = F.affine_grid(matrix, [*images.shape[:2], *size], align_corners=False)
    parts = F.grid_sample(images.float(), grid, mode="bilinear", padding_mode="border", align_corners=False)
    return parts.round().to(torch.uint8)


# One RandAugment step picks one of these per picture. Geometry first: shear x, shear y, shift x, shift y, rotate.
_GEOMETRY = 5
_COLOUR = 7  # brightness, contrast, saturation, solarise, posterise, autocontrast, nothing


def randaugment(images: Tensor, operations: int, magnitude: float, generator: torch.Generator) -> Tensor:
    """Apply `operations` random changes to each picture.

    Args:
        images: uint8 (B, channels, height, width); the result has the same shape and type.
        magnitude: strength of the changes, 0 to 1.
        generator: on the pictures' device.
    """
    x = images.float() / 255
    for _ in range(operations):
        choice = torch.randint(0, _GEOMETRY + _COLOUR, (len(x),), generator=generator, device=x.device)
        strength = torch.rand(len(x), generator=generator, device=x.device) * 2 - 1
        strength = strength * magnitude  # in [-magnitude, magnitude]
        x = _warp(x, choice, strength)
        x = _recolour(x, choice - _GEOMETRY, strength)
    return (x * 255).round().to(torch.uint8)


def _warp(x: Tensor, choice: Tensor, strength: Tensor) -> Tensor:
    """Shear by up to 0.6, shift by up to half the side, rotate by up to 60 degrees at strength 1."""

    def amount(operation: int, at_one: float) -> Tensor:
        return torch.where(choice == operation, strength * at_one, 0.0)

    angle = amount(4, math.pi / 3)
    cos, sin = angle.cos(), angle.sin()
    matrix = torch.stack(
        [
            torch.stack([cos, amount(0, 0.6) - sin, amount(2, 1.0)], 1),
            torch.stack([amount(1, 0.6) + sin, cos, amount(3, 1.0)], 1),
        ],
        1,
    )  # (B, 2, 3)
    grid = F.affine_grid(matrix, list(x.shape), align_corners=False)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


def _recolour(x: Tensor, choice: Tensor, strength: Tensor) -> Tensor:
    choice, strength = choice[:, None, None, None], strength[:, None, None, None]
    grey = x.mean(1, keepdim=True)
    middle = grey.mean((2, 3), keepdim=True)
    low, high = x.amin((2, 3), keepdim=True), x.amax((2, 3), keepdim=True)
    spread = torch.where(high > low, high - low, 1)  # an even channel stays as it is
    levels = (8 - 5 * strength.abs()).round().exp2() - 1  # 8 bits at strength 0, 3 at 1
    changed = (
        x * (1 + strength),
        (x - middle) * (1 + strength) + middle,
        (x - grey) * (1 + strength) + grey,
        torch.where(x > 1 - strength.abs(), 1 - x, x),
        (x * levels).round() / levels,
        torch.where(high > low, (x - low) / spread, x),
    )
    for operation, result in enumerate(changed):
        x = torch.where(choice == operation, result, x)
    return x.clamp(0, 1)


def erase(images: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Blacken a square of a quarter to a half of the side in a share of the pictures.

    Args:
        images: (B, channels, height, width); the result has the same shape and type.
        share: of the pictures, 0 to 1.
        generator: on the pictures' device.
    """
    batch, _, height, width = images.shape
    draws = torch.rand(4, batch, 1, 1, generator=generator, device=images.device)
    half = (0.25 + 0.25 * draws[0]) * min(height, width) / 2
    rows = torch.arange(height, device=images.device)[None, :, None]
    cols = torch.arange(width, device=images.device)[None, None, :]
    hit = ((rows - draws[1] * height).abs() < half) & ((cols - draws[2] * width).abs() < half) & (draws[3] < share)
    return images.masked_fill(hit[:, None], 0)


def _paste(images: Tensor, others: Tensor, share: float, host: random.Random) -> tuple[Tensor, float]:
    """Paste a box of `others` that covers 1 - share of the area; return the true share that stayed."""
    height, width = images.shape[2:]
    side = math.sqrt(1 - share)
    box_height, box_width = round(height * side), round(width * side)
    top = host.randint(0, height - box_height)
    left = host.randint(0, width - box_width)
    images = images.clone()
    area = (..., slice(top, top + box_height), slice(left, left + box_width))
    images[area] = others[area]
    return images, 1 - box_height * box_width / (height * width)
