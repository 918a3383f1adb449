"""Labelled pictures for a model: all in memory, or decoded as they are asked for."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from time import perf_counter as clock
from typing import Any, Protocol, Self, TypeVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Sampler
from torch.utils.data import Dataset as TorchDataset

from vit.errors import InvalidDataset, InvalidImage
from vit.images.preprocess import Preprocess

T = TypeVar("T")


class Pictures(Protocol):
    """One split: uint8 pictures with labels, delivered in any order, batch by batch."""

    @property
    def labels(self) -> Tensor:
        """The class of each picture, (n,) int64."""

    def relabelled(self, to_label: Tensor) -> "Pictures":
        """The same pictures with label i replaced by `to_label[i]`."""

    def batches(self, order: Tensor, batch_size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (uint8 (B, channels, height, width), labels (B,) int64) on `device`, following `order` (m,)."""

    def decoded_per_second(self) -> float | None:
        """How many pictures all that decode could decode in a second, lately; None where there is nothing to decode."""

    def close(self) -> None:
        """End what works for them; they can be asked for again."""


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

    def decoded_per_second(self) -> None:
        """There is nothing to decode."""

    def close(self) -> None:
        """Nothing works for them."""


@dataclass(frozen=True)
class Streamed:
    """Pictures decoded as they are needed.

    Attributes:
        open: gives picture i, each of which could be read.
        labels: (n,) int64.
        preprocess: says how a picture is cut to the input size.
        workers: processes that decode; they live until `close`, and hold what this process had open as they began.
    """

    open: Callable[[int], Image.Image]
    labels: Tensor
    preprocess: Preprocess
    workers: int

    loaders: dict[tuple[int, str], tuple["DataLoader[Any]", "_Order"]] = field(
        default_factory=dict, compare=False, repr=False
    )
    effort: "_Effort" = field(default_factory=lambda: _Effort(), compare=False, repr=False)

    def relabelled(self, to_label: Tensor) -> Self:
        """The same pictures with label i replaced by `to_label[i]`."""
        return replace(self, labels=to_label[self.labels], loaders={}, effort=_Effort())

    def batches(self, order: Tensor, batch_size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (uint8 (B, channels, height, width), labels (B,) int64) on `device`, following `order` (m,)."""
        loader, sampler = self._loader(batch_size, device.type)
        sampler.order = order.tolist()
        for images, labels, seconds in _readable(loader):
            self.effort.pictures += len(seconds)
            self.effort.seconds += seconds.sum().item()
            yield images.to(device, non_blocking=True), labels.to(device, non_blocking=True)

    def decoded_per_second(self) -> float | None:
        """How many pictures all processes together could decode in a second, since the last call."""
        pictures, seconds = self.effort.pictures, self.effort.seconds
        self.effort.pictures, self.effort.seconds = 0, 0.0
        return max(self.workers, 1) * pictures / seconds if seconds else None

    def close(self) -> None:
        """End the processes that decode."""
        self.loaders.clear()  # a loader that nobody knows ends its processes

    def _loader(self, batch_size: int, device: str) -> tuple["DataLoader[Any]", "_Order"]:
        """Batches in the order that is set; its processes are there from one epoch to the next."""
        if (batch_size, device) not in self.loaders:
            sampler = _Order()
            loader = DataLoader(
                _Decoded(self),
                batch_size=batch_size,
                sampler=sampler,
                num_workers=self.workers,
                persistent_workers=self.workers > 0,
                pin_memory=device == "cuda",
            )
            self.loaders[batch_size, device] = loader, sampler
        return self.loaders[batch_size, device]


def _readable(batches: Iterable[T]) -> Iterator[T]:
    """The batches of a loader; a picture that can no longer be read ends them with a sentence.

    Raises:
        InvalidDataset: which picture, and why.
    """
    try:
        yield from batches
    except (InvalidImage, OSError) as error:
        reason = str(error).strip().splitlines()[-1]  # of a process that decodes, the message is its traceback
        kind = f"{type(error).__module__}.{type(error).__name__}: "
        raise InvalidDataset(
            f"A picture can no longer be read: {reason.removeprefix(kind)} Put it back, and resume."
        ) from error


@dataclass
class _Effort:
    """What decoding took: how many pictures, and the seconds that processes spent on them."""

    pictures: int = 0
    seconds: float = 0.0


class _Order(Sampler[int]):
    """Places in the order that was set last."""

    def __init__(self) -> None:
        self.order: list[int] = []

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)


class _Decoded(TorchDataset[tuple[Tensor, int, float]]):
    """A picture, its label, and how long it took to decode [s]."""

    def __init__(self, pictures: Streamed):
        self.pictures = pictures

    def __getitem__(self, index: int) -> tuple[Tensor, int, float]:
        started = clock()
        pixels = as_tensor(self.pictures.open(index), self.pictures.preprocess)
        return pixels, int(self.pictures.labels[index]), clock() - started


def as_tensor(picture: Image.Image, preprocess: Preprocess) -> Tensor:
    """What a model sees of a picture, before normalisation: uint8 (channels, height, width)."""
    pixels = torch.from_numpy(np.array(preprocess.input_image(picture)))
    return pixels.reshape(*preprocess.size, preprocess.channels).permute(2, 0, 1).contiguous()
