"""Labelled pictures for a model: all in memory, or decoded as they are asked for."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol, Self

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader
from torch.utils.data import Dataset as TorchDataset

from vit.errors import InvalidImage
from vit.images.preprocess import Preprocess

log = logging.getLogger(__name__)


class Pictures(Protocol):
    """One split: uint8 pictures with labels, delivered in any order, batch by batch."""

    @property
    def labels(self) -> Tensor:
        """The class of each picture, (n,) int64."""

    def relabelled(self, to_label: Tensor) -> "Pictures":
        """The same pictures with label i replaced by `to_label[i]`."""

    def batches(self, order: Tensor, batch_size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (uint8 (B, channels, height, width), labels (B,) int64) on `device`, following `order` (m,)."""


@dataclass(frozen=True)
class Resident:
    """Pictures held as one tensor.

    Attributes:
        images: uint8 (n, channels, height, width).
        labels: (n,) int64.
    """

    images: Tensor
    labels: Tensor

    def to(self, device: torch.device) -> "Resident":
        """The same pictures on another device."""
        return Resident(self.images.to(device), self.labels.to(device))

    def relabelled(self, to_label: Tensor) -> Self:
        """The same pictures with label i replaced by `to_label[i]`."""
        return replace(self, labels=to_label[self.labels])

    def batches(self, order: Tensor, batch_size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (uint8 (B, channels, height, width), labels (B,) int64) on `device`, following `order` (m,)."""
        for part in order.to(self.images.device).split(batch_size):
            yield self.images[part].to(device), self.labels[part].to(device)


@dataclass(frozen=True)
class Streamed:
    """Pictures decoded as they are needed.

    Attributes:
        open: gives picture i; raises InvalidImage or OSError where it cannot be read.
        labels: (n,) int64.
        preprocess: says how a picture is cut to the input size.
        workers: processes that decode.
    """

    open: Callable[[int], Image.Image]
    labels: Tensor
    preprocess: Preprocess
    workers: int

    def relabelled(self, to_label: Tensor) -> Self:
        """The same pictures with label i replaced by `to_label[i]`."""
        return replace(self, labels=to_label[self.labels])

    def batches(self, order: Tensor, batch_size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (uint8 (B, channels, height, width), labels (B,) int64) on `device`, following `order` (m,)."""
        loader = DataLoader(
            _Decoded(self),
            batch_size=batch_size,
            sampler=order.tolist(),
            num_workers=self.workers,
            pin_memory=device.type == "cuda",
        )
        for images, labels in loader:
            yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)


class _Decoded(TorchDataset[tuple[Tensor, int]]):
    def __init__(self, pictures: Streamed):
        self.pictures = pictures

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        try:
            picture = self.pictures.open(index)
        except (InvalidImage, OSError) as error:  # a grey picture keeps the order of all others exact
            log.warning("a grey picture stands in: %s", error)
            picture = Image.new("RGB", (32, 32), (128, 128, 128))
        return as_tensor(picture, self.pictures.preprocess), int(self.pictures.labels[index])


def as_tensor(picture: Image.Image, preprocess: Preprocess) -> Tensor:
    """What a model sees of a picture, before normalisation: uint8 (channels, height, width)."""
    pixels = torch.from_numpy(np.array(preprocess.input_image(picture)))
    return pixels.reshape(*preprocess.size, preprocess.channels).permute(2, 0, 1).contiguous()
