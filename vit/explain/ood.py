"""Out-of-distribution detection: whether a picture is unlike the training data of a model.

    python -m vit ood --data cifar10 --others folder:data/photos --keep

A picture's score is the sum of two z-scores relative to known pictures:

    distance    Mahalanobis distance of its mean patch token after the first block
                (Lee et al. 2018, arXiv 1807.03888, section 2; one Gaussian for all classes)
    energy      minus the log-sum-exp of its logits (Liu et al. 2020, arXiv 2010.03759, section 3.2)

The reference statistics are saved as `known.zip` beside the weights, with score quantiles of known pictures, and of
foreign pictures, since a model with few classes detects only some of those.
"""

import io
import json
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from vit.checkpoints.checkpoint import Checkpoint
from vit.data.datasets import load_dataset
from vit.data.pictures import Pictures
from vit.errors import UserError
from vit.explain.cost import images_in_memory
from vit.files import replaced
from vit.images.preprocess import Normalise
from vit.model.transformer import VisionTransformer
from vit.progress import tqdm
from vit.untrusted import Unreadable, parse_json, read_bytes

FILE = "known.zip"
ALARM_SHARE = 0.1  # false positive rate: share of known pictures that are flagged
KNOWN_PICTURES = 10_000  # maximum number of pictures of each split
_FILE_BYTES = 64 << 20  # maximum size of the file, packed and unpacked
_BATCH_PICTURES = 250  # maximum batch size
_QUANTILES = 101


class Atypicality(NamedTuple):
    """How unusual a picture is.

    Attributes:
        known: share of known pictures with a score at least as high, 0 to 1.
        others: share of foreign pictures with a score at least as high; None if none were measured.
    """

    known: float
    others: float | None


@dataclass(frozen=True)
class Reference:
    """Reference statistics of the pictures that a model was trained on.

    Attributes:
        mean: (D,), mean of the mean patch tokens after the first block.
        precision: (D, D), inverse of their covariance.
        centre, spread: (2,), mean and standard deviation of distance and energy.
        scores: (101,), score quantiles of known pictures outside the training split.
        others: (101,), score quantiles of foreign pictures; None if none were measured.
        data, other_data: display names of the datasets; for a folder, the name of the folder.
    """

    mean: Tensor
    precision: Tensor
    centre: Tensor
    spread: Tensor
    scores: Tensor
    others: Tensor | None
    data: str
    other_data: str = ""

    def score(self, model: VisionTransformer, pixels: Tensor) -> Tensor:
        """Compute the score (B,) of each input (B, channels, height, width); higher is more unusual."""
        features, logits = features_and_logits(model, pixels)
        return ((measures(features, logits, self.mean, self.precision) - self.centre) / self.spread).sum(1)

    @property
    def detection_rate(self) -> float | None:
        """Share of foreign pictures that are flagged, 0 to 1; None if none were measured."""
        limit = float(np.interp(1 - ALARM_SHARE, np.linspace(0, 1, _QUANTILES), self.scores.numpy()))
        return self.assess(limit).others

    def assess(self, score: float) -> Atypicality:
        """Return how unusual a score is."""
        return Atypicality(
            _share_above(self.scores, score), None if self.others is None else _share_above(self.others, score)
        )


@torch.inference_mode()
def features_and_logits(model: VisionTransformer, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Compute mean patch tokens after the first block (B, D) and logits (B, C) of a model's input."""
    x, (first, *_) = model.walk(pixels, every=True)
    x = first(x)
    return x[:, len(model.config.prefix) :].mean(1), model(pixels).logits


def measures(features: Tensor, logits: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
    """Compute distance and energy (B, 2) from the outputs of `features_and_logits`."""
    away = features - mean
    return torch.stack([((away @ precision) * away).sum(1), -logits.logsumexp(1)], 1)


def fit(
    checkpoint: Checkpoint,
    data: str,
    others: str = "",
    *,
    root: Path = Path("data"),
    most: int = KNOWN_PICTURES,
    bar: bool = False,
) -> Reference:
    """Fit the reference statistics to a training split, and the score quantiles to test splits.

    Args:
        data: dataset that the model was trained on, as for `vit.data.datasets.load_dataset`.
        others: dataset of foreign pictures; "" for none.
        most: maximum number of pictures of each split.

    Raises:
        UserError: the model has no classes.
        InvalidDataset: a dataset cannot be read.
    """
    if not checkpoint.config.num_classes:
        raise UserError("The model has no classes, so there is nothing to be sure or unsure of.")
    dataset = load_dataset(data, checkpoint.preprocess, root=root, at_most=most)
    features, _ = _split_features(checkpoint, dataset.train, most, bar)
    mean, away = features.mean(0), features - features.mean(0)
    covariance = (away.T @ away).double() / len(features)
    # Regularise: without it, directions with almost no variance would dominate the distance.
    covariance.diagonal().add_(1e-3 * covariance.diagonal().mean())
    precision = torch.linalg.inv(covariance).float()
    reference = measures(*_split_features(checkpoint, dataset.test, most, bar), mean, precision)
    centre, spread = reference.mean(0), reference.std(0)
    steps = torch.linspace(0, 1, _QUANTILES)

    def quantiles(values: Tensor) -> Tensor:
        return ((values - centre) / spread).sum(1).quantile(steps)

    foreign = None
    if others:
        test = load_dataset(others, checkpoint.preprocess, root=root, at_most=most, only="test").test
        foreign = quantiles(measures(*_split_features(checkpoint, test, most, bar), mean, precision))
    names = (Path(spec.removeprefix("folder:")).name for spec in (data, others))
    return Reference(mean, precision, centre, spread, quantiles(reference), foreign, *names)


def write(checkpoint: Checkpoint, reference: Reference) -> Path:
    """Write the reference beside a checkpoint's weights, together with the checkpoint's identity.

    Raises:
        UserError: the checkpoint is not a folder.
    """
    if not checkpoint.path.is_dir():
        raise UserError(f"{checkpoint.path.name} is a single file. Put it into a folder of its own first.")
    facts = {"identity": checkpoint.identity, "data": reference.data, "other_data": reference.other_data}
    arrays = {name: getattr(reference, name) for name in _NAMES}
    with replaced(checkpoint.path / FILE) as file, zipfile.ZipFile(file, "w") as archive:
        for name, content in [("facts.json", json.dumps(facts).encode()), *_zip_members(arrays)]:
            archive.writestr(zipfile.ZipInfo(name), content)  # ZipInfo's fixed date makes the file reproducible
    return checkpoint.path / FILE


def read(checkpoint: Checkpoint) -> Reference | None:
    """Read the reference beside a checkpoint; None if it is missing, invalid, or of another checkpoint."""
    try:
        with zipfile.ZipFile(io.BytesIO(read_bytes(checkpoint.path / FILE, _FILE_BYTES))) as archive:
            if sum(member.file_size for member in archive.infolist()) > _FILE_BYTES:
                return None
            facts = parse_json(archive.read("facts.json"))
            if facts["identity"] != checkpoint.identity:
                return None
            arrays = {
                name: torch.from_numpy(np.load(io.BytesIO(archive.read(f"{name}.npy")), allow_pickle=False))
                for name in _NAMES
                if f"{name}.npy" in archive.namelist()
            }
    except (OSError, Unreadable, ValueError, KeyError, TypeError, RuntimeError, EOFError, zipfile.BadZipFile):
        return None
    width = checkpoint.config.dim
    shapes = {"mean": (width,), "precision": (width, width), "centre": (2,), "spread": (2,)}
    for name, tensor in arrays.items():
        if (
            tensor.dtype != torch.float32
            or tensor.shape != shapes.get(name, (_QUANTILES,))
            or not tensor.isfinite().all()
        ):
            return None
    if not {*_NAMES} - {"others"} <= arrays.keys():
        return None
    mean, precision, centre, spread, scores = (arrays[name] for name in _NAMES[:-1])
    names = str(facts.get("data", "")), str(facts.get("other_data", ""))
    return Reference(mean, precision, centre, spread, scores, arrays.get("others"), *names)


_NAMES = ("mean", "precision", "centre", "spread", "scores", "others")


def _zip_members(arrays: dict[str, Tensor | None]) -> Iterator[tuple[str, bytes]]:
    for name, tensor in arrays.items():
        if tensor is not None:
            out = io.BytesIO()
            np.save(out, tensor.numpy(), allow_pickle=False)
            yield f"{name}.npy", out.getvalue()


def _split_features(checkpoint: Checkpoint, pictures: Pictures, most: int, bar: bool) -> tuple[Tensor, Tensor]:
    """Compute features (n, D) and logits (n, C) of a split."""
    normalise = Normalise(checkpoint.preprocess, torch.device("cpu"))
    count = min(most, len(pictures.labels))
    order = torch.randperm(len(pictures.labels), generator=torch.Generator().manual_seed(0))[:count]
    batch = images_in_memory(checkpoint.config, checkpoint.preprocess.size, _BATCH_PICTURES)
    batches = pictures.batches(order, batch, torch.device("cpu"))
    steps = tqdm(batches, total=-(-count // batch), unit="batches", leave=False, disable=not bar)
    outputs = [features_and_logits(checkpoint.model, normalise(images)) for images, _ in steps]
    return torch.cat([features for features, _ in outputs]), torch.cat([logits for _, logits in outputs])


def _share_above(quantiles: Tensor, score: float) -> float:
    """Return the share of values at or above a score, given the quantiles of the values."""
    return float(1 - np.interp(score, quantiles.numpy(), np.linspace(0, 1, len(quantiles))))
