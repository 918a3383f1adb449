"""Labelled pictures for a model: in memory, or decoded on demand."""

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
Name = Callable[[int], str]


class Pictures(Protocol):
    """One split: uint8 pictures with labels, delivered in batches in any order."""

    @property
    def labels(self) -> Tensor:
        """Class of each picture, (n,) int64."""

    @property
    def name(self) -> Name:
        """Returns the name of picture i with its folder, as its owner knows it; "" if it has none."""

    def relabelled(self, to_label: Tensor) -> "Pictures":
        """Return the same pictures with label i replaced by `to_label[i]`."""

    def batches(self, order: Tensor, batch_size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (uint8 (B, channels, height, width), labels (B,) int64) on `device`, following `order` (m,)."""

    def decoded_per_second(self) -> float | None:
        """Recent decoding throughput of all workers together [pictures/s]; None if nothing is decoded."""

    def close(self) -> None:
        """Stop the workers; a later request starts them again."""


def first_batches(
    pictures: Pictures,
    count: int,
    batch_size: int,
    device: torch.device,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the first `count` pictures as `Pictures.batches` does.

    Args:
        progress: called with the number of pictures done, and in total.
    """
    done = 0
    progress(done, count)
    for images, labels in pictures.batches(torch.arange(count), batch_size, device):
        yield images, labels
        done += len(labels)
        progress(done, count)


def no_name(index: int) -> str:
    """Return the name of a picture without one."""
    return ""


@dataclass(frozen=True)
class InMemoryPictures:
    """Pictures in one tensor.

    Attributes:
        images: uint8 (n, channels, height, width).
        labels: (n,) int64.
        name: see `Pictures`.
    """

    images: Tensor
    labels: Tensor
    name: Name = no_name

    def to(self, device: torch.device) -> Self:
        """Move the pictures to another device."""
        return replace(self, images=self.images.to(device), labels=self.labels.to(device))

    def relabelled(self, to_label: Tensor) -> Self:
        """Return the same pictures with label i replaced by `to_label[i]`."""
        return replace(self, labels=to_label[self.labels])

    def batches(self, order: Tensor, batch_size: int, device: torch.device) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield (uint8 (B, channels, height, width), labels (B,) int64) on `device`, following `order` (m,)."""
        for part in order.to(self.images.device).split(batch_size):
            yield self.images[part].to(device), self.labels[part].to(device)

    def decoded_per_second(self) -> None:
        """Return None: nothing is decoded."""

    def close(self) -> None:
        """Do nothing: there are no workers."""


@dataclass(frozen=True)
class StreamedPictures:
    """Pictures decoded on demand.

    Attributes:
        open: returns picture i, known to be readable.
        labels: (n,) int64.
        preprocess: crop and size.
        workers: processes that decode; they live until `close`, and inherit the files that were open at their start.
        name: see `Pictures`.
    """

    open: Callable[[int], Image.Image]
    labels: Tensor
    preprocess: Preprocess
    workers: int
    name: Name = no_name

    loaders: dict[tuple[int, str], tuple["DataLoader[Any]", "_Order"]] = field(
        default_factory=dict, compare=False, repr=False
    )
    effort: "_Effort" = field(default_factory=lambda: _Effort(), compare=False, repr=False)

    def relabelled(self, to_label: Tensor) -> Self:
        """Return the same pictures with label i replaced by `to_label[i]`."""
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
        """Decoding throughput of all workers together since the last call [pictures/s]."""
        pictures, seconds = self.effort.pictures, self.effort.seconds
        self.effort.pictures, self.effort.seconds = 0, 0.0
        return max(self.workers, 1) * pictures / seconds if seconds else None

    def close(self) -> None:
        """Stop the worker processes."""
        self.loaders.clear()  # garbage collection of a loader stops its workers

    def _loader(self, batch_size: int, device: str) -> tuple["DataLoader[Any]", "_Order"]:
        """Return a loader for the current order; its workers persist between epochs."""
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
    """Convert errors about unreadable pictures in a loader's batches to one sentence.

    Raises:
        InvalidDataset: which picture, and why.
    """
    try:
        yield from batches
    except (InvalidImage, OSError) as error:
        reason = str(error).strip().splitlines()[-1]  # a worker's message contains its traceback
        kind = f"{type(error).__module__}.{type(error).__name__}: "
        raise InvalidDataset(
            f"A picture can no longer be read: {reason.removeprefix(kind)} Put it back, and resume."
        ) from error


@dataclass
class _Effort:
    """Number of decoded pictures, and the time that workers spent on them."""

    pictures: int = 0
    seconds: float = 0.0


class _Order(Sampler[int]):
    """Yields indices in the order that was set last."""

    def __init__(self) -> None:
        self.order: list[int] = []

    def __iter__(self) -> Iterator[int]:
        return iter(self.order)

    def __len__(self) -> int:
        return len(self.order)


class _Decoded(TorchDataset[tuple[Tensor, int, float]]):
    """Returns a picture, its label, and its decoding time [s]."""

    def __init__(self, pictures: StreamedPictures):
        self.pictures = pictures

    def __getitem__(self, index: int) -> tuple[Tensor, int, float]:
        started = clock()
        pixels = as_tensor(self.pictures.open(index), self.pictures.preprocess)
        return pixels, int(self.pictures.labels[index]), clock() - started


def as_tensor(picture: Image.Image, preprocess: Preprocess) -> Tensor:
    """Crop and resize a picture for a model, without normalisation: uint8 (channels, height, width)."""
    pixels = torch.from_numpy(np.array(preprocess.input_image(picture)))
    return pixels.reshape(*preprocess.size, preprocess.channels).permute(2, 0, 1).contiguous()
