"""Load a few training pictures of a dataset without reading the others."""

import time
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vit.data.datasets import load_dataset
from vit.data.shapes import SHAPES, shapes
from vit.images.preprocess import Preprocess
from vit.training.loop.config import TrainConfig
from vit.training.loop.fine_tuning import model_config


class Sample(NamedTuple):
    """A few training pictures, and facts about the others.

    Attributes:
        images: uint8 (n, channels, height, width), sized as for training, see `TrainConfig.train_scale`.
        labels: (n,) int64.
        classes: one name per label.
        train_pictures, test_pictures, validation_pictures: number of pictures in each split.
        seconds: time to open and resize one picture [s].
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]
    train_pictures: int
    test_pictures: int
    validation_pictures: int = 0
    seconds: float = 0.0


def sample(config: TrainConfig, count: int) -> Sample:
    """Load a few training pictures without reading the others; equal seeds give equal pictures.

    Raises:
        InvalidDataset: there are none.
        InvalidCheckpoint, InvalidConfig: problems with the run's initial checkpoint, see `fine_tuning.resolve`.
    """
    model = model_config(config, num_classes=1)
    if config.data == "shapes" and model.channels == 3:
        pictures, _ = shapes(count, model.image_size[0], seed=1)
        train, test, validation = 4000, 1000, 1000
        return Sample(pictures.images, pictures.labels, SHAPES, min(train, config.limit or train), test, validation)
    unnormalised = Preprocess(model.image_size, mean=(0.0,) * model.channels, std=(1.0,) * model.channels)
    root = Path(config.data_root)
    scale = config.train_scale
    dataset = load_dataset(
        config.data, unnormalised, root=root, budget=0, workers=0, limit=config.limit, train_scale=scale
    )
    train = len(dataset.train.labels)
    order = torch.randperm(train, generator=torch.Generator().manual_seed(config.seed))[:count]
    started = time.perf_counter()
    images, labels = next(dataset.train.batches(order, max(len(order), 1), torch.device("cpu")))
    seconds = (time.perf_counter() - started) / max(len(order), 1)
    test, validation = len(dataset.test.labels), len(dataset.validation.labels)
    return Sample(images, labels, dataset.classes, train, test, validation, seconds)
