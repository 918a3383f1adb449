"""Names of classes: a dataset's and a model's, matched."""

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
    """A dataset's test pictures at a model's input size, labelled by the model's classes.

    Args:
        labels: names of the model's classes, in its order.
        data, root, reading: see `load_dataset`.
        model: its name, for what is told where classes do not match.

    Raises:
        InvalidDataset: the dataset cannot be read, or has a class that the model does not know.
    """
    dataset = load_dataset(data, preprocess, root=root, only="test", **reading)
    return dataset.test.relabelled(match_classes(dataset.classes, labels, model))


def match_classes(classes: Sequence[str], labels: Sequence[str], model: str) -> torch.Tensor:
    """The model's label of each of a dataset's classes, matched by name: (number of classes,).

    Args:
        labels: names of the model's classes, in its order.
        model: its name, for what is told where classes do not match.

    Raises:
        InvalidDataset: the model does not know a class.
    """
    strangers = [name for name in classes if name not in labels]
    if strangers:
        raise InvalidDataset(
            f"{model} does not know the class {strangers[0]!r} of this dataset. Its classes: {', '.join(labels[:20])}."
        )
    return torch.tensor([labels.index(name) for name in classes])
