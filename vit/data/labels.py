"""Match the class names of a dataset and a model."""

from collections.abc import Sequence
from pathlib import Path

import torch

from vit.data.datasets import load_dataset
from vit.data.pictures import Pictures
from vit.errors import InvalidDataset
from vit.images.preprocess import Preprocess


def test_pictures(
    labels: Sequence[str], preprocess: Preprocess, data: str, root: Path, model: str, **reading: int
) -> Pictures:
    """Return a dataset's test pictures at a model's input size, with the model's labels.

    Args:
        labels: names of the model's classes, in its order.
        data, root, reading: see `load_dataset`.
        model: its name, for error messages.

    Raises:
        InvalidDataset: the dataset cannot be read, or has a class that the model lacks.
    """
    dataset = load_dataset(data, preprocess, root=root, only="test", **reading)
    return dataset.test.relabelled(match_classes(dataset.classes, labels, model))


def match_classes(classes: Sequence[str], labels: Sequence[str], model: str) -> torch.Tensor:
    """Map a dataset's classes to the model's labels by name: (number of classes,).

    Args:
        labels: names of the model's classes, in its order.
        model: its name, for error messages.

    Raises:
        InvalidDataset: the model lacks a class.
    """
    unknown = [name for name in classes if name not in labels]
    if unknown:
        raise InvalidDataset(
            f"{model} has no class {unknown[0]!r}, which this dataset contains. Its classes: {', '.join(labels[:20])}."
        )
    return torch.tensor([labels.index(name) for name in classes])
