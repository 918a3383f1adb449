"""A measurement over a dataset's pictures in fixed parts: whoever takes which, together they say the same."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from vit.data.pictures import Pictures
from vit.progress import tqdm

_CPU = torch.device("cpu")
Part = dict[str, NDArray[Any]]


@dataclass(frozen=True)
class InParts:
    """What is to be done, and with which pictures.

    Attributes:
        pictures: of the dataset.
        count: how many of them, the first.
        batch_size: pictures of a part, which go through the model together: another number may give other last digits.
        compute: of the pictures (B, channels, height, width) uint8, their labels (B,), and the number of the first.
        device: on which it wants them.
    """

    pictures: Pictures
    count: int
    batch_size: int
    compute: Callable[[Tensor, Tensor, int], Part]
    device: torch.device = _CPU

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return -(-self.count // self.batch_size)

    def part(self, number: int) -> Part:
        """Compute one part, by its number from 0."""
        first = number * self.batch_size
        places = torch.arange(first, min(first + self.batch_size, self.count))
        (images, labels), *_ = self.pictures.batches(places, self.batch_size, self.device)
        return self.compute(images, labels, first)

    def all(self, progress: Callable[[int, int], None] = lambda done, total: None) -> Iterator[Part]:
        """Every part in order.

        Args:
            progress: called with the pictures that are done, and how many there are.
        """
        done = 0
        progress(done, self.count)
        for images, labels in self.pictures.batches(torch.arange(self.count), self.batch_size, self.device):
            yield self.compute(images, labels, done)
            done += len(labels)
            progress(done, self.count)


def pictures_bar(visible: bool) -> Callable[[int, int], None]:
    """A bar on the terminal for `InParts.all`."""
    bar: Any = None

    def progress(done: int, total: int) -> None:  # the data are read by then, with a bar of their own
        nonlocal bar
        if bar is None:
            bar = tqdm(total=total, unit="pictures", leave=False, disable=not visible)
        bar.update(done - bar.n)
        if done == total:
            bar.close()

    return progress
