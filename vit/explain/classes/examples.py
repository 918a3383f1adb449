"""Classes from labelled pictures, for any checkpoint: a linear probe or a nearest-neighbour classifier on features."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.custom_classes import CustomClasses
from vit.confidence import wilson
from vit.data.datasets import load_dataset
from vit.devices import restored_device
from vit.errors import InvalidDataset, UserError
from vit.explain.features import Features, features_of, pooled_features
from vit.explain.head_census import batch_size
from vit.model.classification_heads import NeighbourHead
from vit.model.layers import Linear
from vit.progress import pictures_bar

try:
    from sklearn.linear_model import LogisticRegression
    from sklearn.model_selection import StratifiedKFold, cross_val_predict
    from sklearn.pipeline import Pipeline, make_pipeline
    from sklearn.preprocessing import StandardScaler
except ModuleNotFoundError as error:
    raise UserError("Classes from examples need scikit-learn: pip install scikit-learn") from error

Classifier = Literal["probe", "neighbours"]
FOLDS = 5  # of the cross-validation, at most the number of pictures of the smallest class


class CrossValidation(NamedTuple):
    """Cross-validated accuracy on the example pictures.

    Attributes:
        accuracy: 0 to 1.
        interval: its 95% confidence interval.
    """

    accuracy: float
    interval: tuple[float, float]

    @classmethod
    def of(cls, right: NDArray[np.bool_]) -> "CrossValidation":
        """Compute the accuracy from which of n pictures were classified correctly, (n,)."""
        return cls(float(right.mean()), wilson(int(right.sum()), len(right)))


def classes_from_examples(
    checkpoint: Checkpoint,
    data: str,
    classifier: Classifier = "probe",
    limit: int = 1000,
    *,
    root: Path = Path("data"),
    bar: bool = False,
) -> CustomClasses:
    """Train a classifier for the classes of a dataset on a checkpoint's features.

    Args:
        checkpoint: as loaded; with or without classes.
        data: a dataset's name, or "folder:PATH" with one folder per class. Test pictures are not used.
        classifier: "probe" is a logistic regression, which can be saved in a checkpoint; "neighbours" lets the 20
            nearest pictures vote.
        limit: number of training pictures, taken evenly from the classes.
        root: folder of downloaded datasets.
        bar: show a progress bar.

    Raises:
        InvalidDataset: the dataset cannot be read, or has fewer than two classes.
    """
    dataset = load_dataset(data, checkpoint.preprocess, root=root, only="train", at_most=limit)
    with restored_device(checkpoint.model):
        known = features_of(checkpoint, dataset.train, dataset.classes, limit, progress=pictures_bar(bar))
    return classes_from_features(known, data, classifier, limit=limit)


def classes_from_pictures(
    checkpoint: Checkpoint, groups: Mapping[str, Sequence[Image.Image]], classifier: Classifier = "probe"
) -> CustomClasses:
    """Train a classifier for named groups of pictures on a checkpoint's features.

    Args:
        checkpoint: as loaded; with or without classes.
        groups: class name -> RGB pictures.
        classifier: see `classes_from_examples`.

    Raises:
        UserError: fewer than two groups, or an empty group.
    """
    if len(groups) < 2 or not all(groups.values()):
        raise UserError("Examples need two named groups at least, each with a picture.")
    pictures = [picture for group in groups.values() for picture in group]
    batch, vectors = batch_size(checkpoint, checkpoint.preprocess), []
    for first in range(0, len(pictures), batch):
        pixels = torch.cat([checkpoint.preprocess(picture) for picture in pictures[first : first + batch]])
        vectors.append(pooled_features(checkpoint.model, pixels).float().numpy())
    labels = np.repeat(np.arange(len(groups)), [len(group) for group in groups.values()])
    return classes_from_features(Features(np.concatenate(vectors), labels, tuple(groups)), "pictures", classifier)


def classes_from_features(
    examples: Features, data: str, classifier: Classifier = "probe", **facts: Any
) -> CustomClasses:
    """Train a classifier on extracted features.

    Args:
        examples: features of pictures of at least two classes.
        data: display name of their source.
        classifier: see `classes_from_examples`.
        facts: additional facts to record, such as `limit` of `classes_from_examples`, or files as `groups`.

    Raises:
        InvalidDataset: a class has no picture.
        UserError: unknown classifier.
    """
    if classifier not in get_args(Classifier):
        raise UserError(f"There is no classifier {classifier!r}. Choose from {', '.join(get_args(Classifier))}.")
    counts = np.bincount(examples.labels, minlength=len(examples.classes))
    if not counts.all():
        raise InvalidDataset(f"Class {examples.classes[int(counts.argmin())]!r} has no picture to learn from.")
    head: Linear | NeighbourHead = _probe(examples) if classifier == "probe" else _neighbours(examples)
    measured = None
    if counts.min() > 1:
        measured = (
            _measured_probe(examples, int(counts.min())) if classifier == "probe" else _measured_neighbours(examples)
        )
    many = f"{len(examples.labels):,} pictures of {len(examples.classes)} classes ({data})"
    how = "logistic regression on" if classifier == "probe" else "votes of the nearest of"
    return CustomClasses(
        names=examples.classes,
        head=head.eval(),
        source=f"{how} features of {many}",
        accuracy=measured and measured.accuracy,
        interval=measured and measured.interval,
        facts={"data": data, "classifier": classifier, "pictures": len(examples.labels)} | facts,
    )


def _pipeline() -> Pipeline:
    """Return standardisation and logistic regression, with scikit-learn's default regularisation."""
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))


def _probe(examples: Features) -> Linear:
    """Fit the pipeline and convert it to one linear layer from features (B, D) to logits (B, C)."""
    scaler, regression = (step for _, step in _pipeline().fit(examples.vectors, examples.labels).steps)
    weight, bias = regression.coef_ / scaler.scale_, regression.intercept_
    bias = bias - weight @ scaler.mean_
    if len(weight) == 1:  # scikit-learn has one logit for two classes; split it into two symmetric ones
        weight, bias = np.concatenate([-weight, weight]) / 2, np.concatenate([-bias, bias]) / 2
    head = Linear(weight.shape[1], len(weight))
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(weight))
        head.bias.copy_(torch.from_numpy(bias))
    return head


def _measured_probe(examples: Features, smallest: int) -> CrossValidation:
    folds = StratifiedKFold(min(FOLDS, smallest), shuffle=True, random_state=0)
    return CrossValidation.of(
        cross_val_predict(_pipeline(), examples.vectors, examples.labels, cv=folds) == examples.labels
    )


def _neighbours(examples: Features) -> NeighbourHead:
    return NeighbourHead(torch.from_numpy(examples.vectors), torch.from_numpy(examples.labels), len(examples.classes))


@torch.inference_mode()
def _measured_neighbours(examples: Features) -> CrossValidation:
    """Measure the leave-one-out accuracy."""
    head = _neighbours(examples)
    others = head.similar(torch.from_numpy(examples.vectors)).fill_diagonal_(-torch.inf)
    return CrossValidation.of(head.vote(others).argmax(1).numpy() == examples.labels)
