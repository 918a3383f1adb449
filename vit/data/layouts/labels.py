"""Match the class names of a dataset and a model."""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from vit.data.datasets import load_dataset
from vit.data.layouts.class_names import first_name, plain_name, wordnet_ids
from vit.data.pictures import Pictures
from vit.errors import InvalidDataset
from vit.images.preprocess import Preprocess


class Match(NamedTuple):
    """The classes of a dataset among a model's labels.

    Attributes:
        labels: (number of classes,) index of each class's label.
        remark: how they were matched, for people; "" if the names are equal.
    """

    labels: Tensor
    remark: str


def test_pictures(
    labels: Sequence[str], preprocess: Preprocess, data: str, root: Path, model: str
) -> tuple[Pictures, str]:
    """Return a dataset's test pictures at a model's input size, with the model's labels; and the remark of `Match`.

    Args:
        labels: names of the model's classes, in its order.
        data, root: see `load_dataset`.
        model: its name, for error messages.

    Raises:
        InvalidDataset: the dataset cannot be read, or its classes do not match the model's, see `match_classes`.
    """
    dataset = load_dataset(data, preprocess, root=root, only="test")
    match = match_classes(dataset.classes, labels, model, dataset.folders)
    return dataset.test.relabelled(match.labels), match.remark


def match_classes(classes: Sequence[str], labels: Sequence[str], model: str, folders: Sequence[str] = ()) -> Match:
    """Match a dataset's classes with a model's labels: by equal names, else by WordNet ids, else by the names of the
    folders, else by similar names.

    A reading of the names is used only if each class has one label, and no other class has it.

    Args:
        labels: names of the model's classes, in its order.
        model: its name, for error messages.
        folders: names of the dataset's class folders, if they differ from the names of the classes.

    Raises:
        InvalidDataset: the model lacks a class, or several classes or labels have the same name.
    """
    theirs: Sequence[str] = ()
    counts = ours_counts = Counter[str]()
    for how, theirs, ours in _readings(classes, labels, folders):
        counts, ours_counts = Counter(theirs), Counter(ours)
        if all(counts[name] == ours_counts[name] == 1 for name in theirs):
            places = {name: place for place, name in enumerate(ours)}
            remark = f"The classes of the dataset and of {model} are matched by {how}." if how else ""
            return Match(torch.tensor([places[name] for name in theirs]), remark)
    for name, reading in zip(classes, theirs, strict=True):
        if not ours_counts[reading]:
            listed = ", ".join(map(repr, labels[:20]))
            raise InvalidDataset(f"{model} has no class {name!r}, which this dataset contains. Its classes: {listed}.")
    several = (pair for pair in zip(classes, theirs, strict=True) if counts[pair[1]] + ours_counts[pair[1]] > 2)
    name, reading = next(several)
    raise InvalidDataset(
        f"{name!r} names {counts[reading]} of the dataset's classes and {ours_counts[reading]} of {model}'s, so they "
        "cannot be matched. Rename them in the dataset, or in id2label of the model's config.json."
    )


def _readings(
    classes: Sequence[str], labels: Sequence[str], folders: Sequence[str]
) -> Iterator[tuple[str, Sequence[str], Sequence[str]]]:
    """Yield what names are compared by, and the names of the classes and of the labels in that reading."""
    yield "", classes, labels
    theirs, ours = wordnet_ids(folders or classes), wordnet_ids(labels)
    if theirs and ours:
        yield "WordNet ids", theirs, ours
    if folders:  # the classes may have been renamed since the model was trained
        yield "the names of their folders", folders, labels
    yield "the first of their names", [*map(first_name, classes)], [*map(first_name, labels)]
    how = "the first of their names, in which capitals and underscores do not count"
    yield how, [*map(plain_name, classes)], [*map(plain_name, labels)]
