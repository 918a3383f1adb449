"""The pictures of a run: training, validation and test split, and their preprocessing."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import torch

from vit.data.datasets import Dataset, load_dataset
from vit.data.pictures import InMemoryPictures, Pictures
from vit.errors import InvalidConfig, InvalidDataset
from vit.images.preprocess import Normalise, Preprocess
from vit.training.loop.config import TrainConfig
from vit.training.loop.distributed import Process, memory_budget
from vit.training.loop.fine_tuning import ResolvedStart

_MEASURED_AT_ONCE = 32  # pictures per batch, whose pixels take 8 bytes each


@dataclass(frozen=True)
class RunData:
    """The data of a run.

    Attributes:
        name: name of the dataset for the model card, without a path, because the card is published.
        classes: class names in the order of labels.
        folders: names of their folders, if those differ.
        train, validation, test: the splits, on the device if they fit into memory.
        preprocess: preprocessing of the trained model.
        normalise: the same, for batches on the device.
        batch_size: over all processes; at most the number of training pictures.
    """

    name: str
    classes: tuple[str, ...]
    folders: tuple[str, ...]
    train: Pictures
    validation: Pictures
    test: Pictures
    preprocess: Preprocess
    normalise: Normalise
    batch_size: int

    @property
    def steps_per_epoch(self) -> int:
        """Number of whole training batches."""
        return len(self.train.labels) // self.batch_size

    def fingerprint(self) -> list[object]:
        """Return what must be unchanged about the data when a run is resumed; classes may be renamed."""
        counts = [len(self.train.labels), len(self.validation.labels)]
        return [*(self.folders or self.classes), *counts, *self.preprocess.mean, *self.preprocess.std]

    def test_split(self, data: str) -> str:
        """Return a hash of the test pictures: of the run's setting `data` and the labels, not of their pixels."""
        labels = self.test.labels.tolist()
        return hashlib.sha256(repr((data, self.folders or self.classes, labels)).encode()).hexdigest()[:16]


def open_data(config: TrainConfig, process: Process, start: ResolvedStart, dataset: Dataset | None = None) -> RunData:
    """Load and split the run's dataset, and compute its normalisation.

    Args:
        start: the model, for its input, and the checkpoint that it starts from, whose normalisation is used.
        dataset: replaces the dataset of `config.data`, for dry runs.

    Raises:
        InvalidDataset: it cannot be read, or has too few pictures.
        InvalidConfig: batches cannot be divided among the processes.
    """
    sizes, base = start.model, start.base
    unnormalised = Preprocess(sizes.image_size, mean=(0.0,) * sizes.channels, std=(1.0,) * sizes.channels)
    with process.leader_first():
        dataset = dataset or load_dataset(
            config.data,
            unnormalised,
            root=Path(config.data_root),
            budget=memory_budget(process.device),
            workers=config.workers,
            limit=config.limit,
            train_scale=config.train_scale,
        )
    train, validation, test = (
        _to_device(one, process.device) for one in (dataset.train, dataset.validation, dataset.test)
    )
    if not len(validation.labels):
        raise InvalidDataset(
            f"{config.data} has too few pictures to keep any for validation. Add some: four of a class are enough."
        )
    mean, std = (base.mean, base.std) if base else mean_and_std(train, process.device)
    preprocess = Preprocess(sizes.image_size, mean=mean, std=std)
    batch_size = min(config.batch_size, len(train.labels))
    if batch_size % process.world:
        raise InvalidConfig(f"batch_size {batch_size} does not divide among {process.world} devices.")
    kind, colon, path = config.data.partition(":")
    return RunData(
        name=f"{kind} {Path(path).expanduser().resolve().name}" if colon else kind,
        classes=tuple(dataset.classes),
        folders=tuple(dataset.folders),
        train=train,
        validation=validation,
        test=test,
        preprocess=preprocess,
        normalise=Normalise(preprocess, process.device),
        batch_size=batch_size,
    )


def _to_device(pictures: Pictures, device: torch.device) -> Pictures:
    """Move pictures in memory to the device."""
    return pictures.to(device) if isinstance(pictures, InMemoryPictures) else pictures


def mean_and_std(pictures: Pictures, device: torch.device) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Compute mean and standard deviation per channel, for pixels 0 to 1, over at most 10,000 pictures."""
    chosen = torch.linspace(0, len(pictures.labels) - 1, min(len(pictures.labels), 10_000)).long()
    sums = []
    for images, _ in pictures.batches(chosen, _MEASURED_AT_ONCE, device):
        pixels = images.transpose(0, 1).flatten(1).to("cpu", torch.float64) / 255  # (channels, pixels)
        sums.append(torch.stack([torch.ones_like(pixels).sum(1), pixels.sum(1), pixels.square().sum(1)]))
    count, total, squares = torch.stack(sums).sum(0)  # each (channels,)
    mean = total / count
    std = (squares / count - mean.square()).clamp_min(0).sqrt()
    return tuple(round(v, 4) for v in mean.tolist()), tuple(max(round(v, 4), 1e-3) for v in std.tolist())
