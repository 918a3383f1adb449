"""Augmentation of whole batches on the training device, without Python code per picture.

Every random choice comes from `RandomGenerators`, which is seeded anew for each step, so a resumed run repeats the same
choices.
"""

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F


class RandomGenerators:
    """Random number generators for one training step.

    Attributes:
        device: generates tensors on the device of the pictures.
        host: for choices that determine shapes, drawn without synchronising with the device.
    """

    def __init__(self, device: torch.device):
        self.device = torch.Generator(device)
        self.host = random.Random()

    def seed(self, seed: int, step: int) -> None:
        """Seed both generators for this step of this run."""
        number = random.Random(f"{seed} {step}").getrandbits(63)
        self.device.manual_seed(number)
        self.host.seed(number)


@dataclass(frozen=True)
class Augmentation:
    """Settings for augmenting a batch of training pictures.

    Attributes:
        crop_padding: padding on each side before a random crop to the original size [px].
        crop_scale: minimum share of the area for a random crop that is resized, with an aspect ratio changed by up to a
            third, as in RandomResizedCrop; 1 for off.
        zoom_out: maximum factor by which the crop's area is enlarged, with the picture mirrored at its edges; 1 for
            off. Small photos, which are blurred at the input's size, are shown as sharp as large ones.
        size: (height, width) of the resized crop [px]; None for the size of the pictures.
        flip: mirror half of the pictures.
        operations: number of random colour or geometry changes per picture, after RandAugment.
        magnitude: their strength, 0 to 1.
        erase: share of the pictures in which a random square of a quarter to a half of the side is blackened.
        mixup, cutmix: parameters of the Beta distributions for mixing two pictures; 0 for off. If both are on, each
            batch uses one of the two.

    Source: RandAugment arXiv 1909.13719, random erasing 1708.04896, mixup 1710.09412, CutMix 1905.04899.
    """

    crop_padding: int = 0
    crop_scale: float = 1.0
    zoom_out: float = 1.0
    size: tuple[int, int] | None = None
    flip: bool = False
    operations: int = 0
    magnitude: float = 0.3
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def __call__(self, images: Tensor, generators: RandomGenerators) -> Tensor:
        """Augment pictures: uint8 (B, channels, height, width) to uint8 of the same shape, or of `size`."""
        return self.apply(images, self.draw(len(images), generators))

    def draw(self, batch: int, generators: RandomGenerators) -> "Draws":
        """Draw all random numbers for a batch."""
        generator, device = generators.device, generators.device.device

        def integers(high: int, *shape: int) -> Tensor:
            return torch.randint(0, high, shape, generator=generator, device=device)

        def uniform(*shape: int) -> Tensor:
            return torch.rand(shape, generator=generator, device=device)

        return Draws(
            crop=uniform(4, batch) if self.crop_scale < 1 or self.zoom_out > 1 else None,
            shifts=integers(2 * self.crop_padding + 1, 2, batch, 1) if self.crop_padding or self.flip else None,
            mirror=uniform(batch, 1) if self.flip else None,
            operations=[(integers(_GEOMETRY + _COLOUR, batch), uniform(batch) * 2 - 1) for _ in range(self.operations)],
            erase=uniform(4, batch, 1, 1) if self.erase else None,
            zoom=self.zoom_out ** uniform(batch) if self.zoom_out > 1 else None,
        )

    def apply(self, images: Tensor, draws: "Draws") -> Tensor:
        """Augment pictures with random numbers from `draw`."""
        if draws.crop is not None:
            images = resized_crop(images, self.crop_scale, self.size or images.shape[2:], draws.crop, draws.zoom)
        if draws.shifts is not None:
            images = crop_and_flip(images, self.crop_padding, draws.shifts, draws.mirror)
        if draws.operations:
            images = randaugment(images, draws.operations, self.magnitude)
        if draws.erase is not None:
            images = erase(images, self.erase, draws.erase)
        return images

    def compiled(self) -> "Augmentation":
        """Return a copy that runs under torch.compile.

        Random numbers are drawn outside of it, because torch.compile does not accept generators.
        """
        return _Compiled(**{field.name: getattr(self, field.name) for field in fields(self)})

    def mix(self, images: Tensor, targets: Tensor, generators: RandomGenerators) -> tuple[Tensor, Tensor]:
        """Mix pairs of pictures (B, channels, height, width) and class probabilities (B, C) by mixup or CutMix."""
        choose_cutmix = bool(self.cutmix) and (not self.mixup or generators.host.random() < 0.5)
        alpha = self.cutmix if choose_cutmix else self.mixup
        if not alpha:
            return images, targets
        share = generators.host.betavariate(alpha, alpha)
        others = images.roll(1, 0)
        if choose_cutmix:
            images, share = _paste(images, others, share, generators.host)
        else:
            images = share * images + (1 - share) * others
        return images, share * targets + (1 - share) * targets.roll(1, 0)


class _Compiled(Augmentation):
    """An augmentation whose `apply` is compiled, once per batch shape."""

    def apply(self, images: Tensor, draws: "Draws") -> Tensor:
        return _compiled_apply()(self, images, draws)


@cache
def _compiled_apply() -> Callable[[Augmentation, Tensor, "Draws"], Tensor]:
    return torch.compile(Augmentation.apply, dynamic=False)


class Draws(NamedTuple):
    """Random numbers for augmenting one batch, on the device of the pictures; None for augmentations that are off.

    Attributes:
        crop: (4, B), 0 to 1: area, aspect, and position across and down.
        shifts: (2, B, 1), 0 to twice the padding [px]: down and across.
        mirror: (B, 1), 0 to 1: mirrored below 0.5.
        operations: for each of RandAugment's operations, its index (B,) and its strength (B,), -1 to 1.
        erase: (4, B, 1, 1), 0 to 1: side, position down and across, and whether to erase.
        zoom: (B,), at least 1: factor of the crop's area.
    """

    crop: Tensor | None
    shifts: Tensor | None
    mirror: Tensor | None
    operations: list[tuple[Tensor, Tensor]]
    erase: Tensor | None
    zoom: Tensor | None


def crop_and_flip(images: Tensor, padding: int, shifts: Tensor, mirror: Tensor | None) -> Tensor:
    """Shift each picture by up to `padding` px, padded with black, and mirror some of them.

    Args:
        images: (B, channels, height, width); the result has the same shape and type.
        padding: [px].
        shifts, mirror: see `Draws`.
    """
    batch, _, height, width = images.shape
    device = images.device
    rows = torch.arange(height, device=device) + shifts[0]  # (B, height), indices into the padded picture
    cols = torch.arange(width, device=device).expand(batch, -1)
    if mirror is not None:
        cols = torch.where(mirror < 0.5, width - 1 - cols, cols)
    cols = cols + shifts[1]
    padded = F.pad(images, (padding,) * 4)
    chosen = padded[torch.arange(batch, device=device)[:, None, None], :, rows[:, :, None], cols[:, None, :]]
    return chosen.permute(0, 3, 1, 2).contiguous()


def resized_crop(
    images: Tensor, least: float, size: Sequence[int], draws: Tensor, zoom: Tensor | None = None
) -> Tensor:
    """Crop a random part of each picture and resize it.

    Args:
        images: uint8 (B, channels, height, width).
        least: minimum share of the area; the aspect ratio varies from 3:4 to 4:3.
        size: (height, width) of the result [px], uint8 (B, channels, *size).
        draws, zoom: see `crop` and `zoom` of `Draws`. A crop that is larger than its picture mirrors it.
    """
    area, aspect, across, down = draws
    area = least + (1 - least) * area
    aspect = (4 / 3) ** (aspect - 0.5)  # square root of the aspect ratio
    width, height = (area.sqrt() * aspect).clamp_max(1), (area.sqrt() / aspect).clamp_max(1)  # shares of the sides
    if zoom is not None:
        width, height = width * zoom.sqrt(), height * zoom.sqrt()
    x, y = (1 - width) * (2 * across - 1), (1 - height) * (2 * down - 1)  # centre of the crop, -1 to 1
    zero = torch.zeros_like(x)
    matrix = torch.stack([torch.stack([width, zero, x], 1), torch.stack([zero, height, y], 1)], 1)  # (B, 2, 3)
    grid = F.affine_grid(matrix, [*images.shape[:2], *size], align_corners=False)
    outside = "border" if zoom is None else "reflection"
    parts = F.grid_sample(images.float(), grid, mode="bilinear", padding_mode=outside, align_corners=False)
    return parts.round().to(torch.uint8)


# One RandAugment step picks one of these per picture. Geometry first: shear x, shear y, shift x, shift y, rotate.
_GEOMETRY = 5
_COLOUR = 7  # brightness, contrast, saturation, solarise, posterise, autocontrast, nothing


def randaugment(images: Tensor, operations: Sequence[tuple[Tensor, Tensor]], magnitude: float) -> Tensor:
    """Apply random changes to each picture, one after the other.

    Args:
        images: uint8 (B, channels, height, width); the result has the same shape and type.
        operations: see `Draws`.
        magnitude: strength of the changes, 0 to 1.
    """
    x = images.float() / 255
    for choice, strength in operations:
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
    spread = torch.where(high > low, high - low, 1)  # a constant channel is left unchanged
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


def erase(images: Tensor, share: float, draws: Tensor) -> Tensor:
    """Blacken a square of a quarter to a half of the side in a share of the pictures.

    Args:
        images: (B, channels, height, width); the result has the same shape and type.
        share: of the pictures, 0 to 1.
        draws: see `Draws`.
    """
    height, width = images.shape[2:]
    half = (0.25 + 0.25 * draws[0]) * min(height, width) / 2
    rows = torch.arange(height, device=images.device)[None, :, None]
    cols = torch.arange(width, device=images.device)[None, None, :]
    hit = ((rows - draws[1] * height).abs() < half) & ((cols - draws[2] * width).abs() < half) & (draws[3] < share)
    return images.masked_fill(hit[:, None], 0)


def _paste(images: Tensor, others: Tensor, share: float, host: random.Random) -> tuple[Tensor, float]:
    """Paste a box of `others` that covers 1 - share of the area; return the actual share left."""
    height, width = images.shape[2:]
    side = math.sqrt(1 - share)
    box_height, box_width = round(height * side), round(width * side)
    top = host.randint(0, height - box_height)
    left = host.randint(0, width - box_width)
    images = images.clone()
    area = (..., slice(top, top + box_height), slice(left, left + box_width))
    images[area] = others[area]
    return images, 1 - box_height * box_width / (height * width)
