"""Process a dataset's pictures in fixed parts; the result does not depend on which worker computes which part."""

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
class PartitionedComputation:
    """A computation on the first pictures of a dataset, divided into parts.

    Attributes:
        pictures: of the dataset.
        count: number of pictures, from the start.
        batch_size: pictures per part, which are one batch; another size may change the last digits of results.
        compute: called with pictures (B, channels, height, width) uint8, their labels (B,), and the index of the first.
        device: of the pictures.
    """

    pictures: Pictures
    count: int
    batch_size: int
    compute: Callable[[Tensor, Tensor, int], Part]
    device: torch.device = _CPU

    @property
    def parts(self) -> int:
        """Number of parts."""
        return -(-self.count // self.batch_size)

    def part(self, number: int) -> Part:
        """Compute one part, counted from 0."""
        first = number * self.batch_size
        places = torch.arange(first, min(first + self.batch_size, self.count))
        (images, labels), *_ = self.pictures.batches(places, self.batch_size, self.device)
        return self.compute(images, labels, first)

    def all(self, progress: Callable[[int, int], None] = lambda done, total: None) -> Iterator[Part]:
        """Compute all parts in order.

        Args:
            progress: called with the number of pictures done, and in total.
        """
        done = 0
        progress(done, self.count)
        for images, labels in self.pictures.batches(torch.arange(self.count), self.batch_size, self.device):
            yield self.compute(images, labels, done)
            done += len(labels)
            progress(done, self.count)


def pictures_bar(visible: bool) -> Callable[[int, int], None]:
    """Return a progress callback for `PartitionedComputation.all` that shows a bar in the terminal."""
    bar: Any = None

    def progress(done: int, total: int) -> None:  # created at the first call, when the bar for loading data is gone
        nonlocal bar
        if bar is None:
            bar = tqdm(total=total, unit="pictures", leave=False, disable=not visible)
        bar.update(done - bar.n)
        if done == total:
            bar.close()

    return progress
