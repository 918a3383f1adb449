"""Whether a picture is unlike those that a model learnt from: out-of-distribution detection.

    python -m vit ood --data cifar10 --others folder:data/photos --keep

A picture's score is the sum of two numbers, each less its mean over known pictures and in units of their spread:

    distance    of its patches after the first block, averaged, from those of known pictures: Mahalanobis distance
                (Lee et al. 2018, arXiv 1807.03888, section 2; one Gaussian for all classes)
    energy      minus the log-sum-exp of its logits (Liu et al. 2020, arXiv 2010.03759, section 3.2)

What known pictures are like is kept in `known.zip` beside the weights. Among them a picture is as usual as its score;
what share of foreign pictures has such a score is kept as well, as a model of few classes notices only some of them.
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
ALARM_SHARE = 0.1  # share of known pictures that are called unlike them
KNOWN_PICTURES = 10_000  # at most, looked at to learn what known ones are like
_FILE_BYTES = 64 << 20  # of the file, unpacked
_BATCH_PICTURES = 250  # at most
_QUANTILES = 101  # quantiles


class Unlike(NamedTuple):
    """How unusual a picture is.

    Attributes:
        known: share of known pictures whose score is at least as high, 0 to 1.
        others: the same of foreign pictures; None where none were looked at.
    """

    known: float
    others: float | None


@dataclass(frozen=True)
class Reference:
    """What the pictures are like that a model learnt from.

    Attributes:
        mean: (D,) of the patches after the first block.
        precision: (D, D), the inverse of their covariance.
        centre, spread: (2,), of distance and energy.
        scores: (101,), quantiles over known pictures that the model did not learn from.
        others: (101,), quantiles over foreign pictures; None where none were looked at.
        data, other_data: names of the datasets, for people; of a folder, its own.
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
        """How unlike known pictures each input (B, channels, height, width) is: (B,), the higher the more unlike."""
        features, logits = look(model, pixels)
        return ((measures(features, logits, self.mean, self.precision) - self.centre) / self.spread).sum(1)

    @property
    def noticed(self) -> float | None:
        """The share of foreign pictures that is called unlike, 0 to 1; None where none were looked at."""
        limit = float(np.interp(1 - ALARM_SHARE, np.linspace(0, 1, _QUANTILES), self.scores.numpy()))
        return self.judge(limit).others

    def judge(self, score: float) -> Unlike:
        """How unusual a score is."""
        return Unlike(
            _share_above(self.scores, score), None if self.others is None else _share_above(self.others, score)
        )


@torch.inference_mode()
def look(model: VisionTransformer, pixels: Tensor) -> tuple[Tensor, Tensor]:
    """Patches after the first block, averaged (B, D), and logits (B, C) of a model's input."""
    x, (first, *_) = model.walk(pixels, every=True)
    x = first(x)
    return x[:, len(model.config.prefix) :].mean(1), model(pixels).logits


def measures(features: Tensor, logits: Tensor, mean: Tensor, precision: Tensor) -> Tensor:
    """Distance and energy (B, 2) of what `look` gives."""
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
    """Learn what known pictures are like from a training split, and how usual scores are from test splits.

    Args:
        data: a dataset as `vit.data.datasets.load_dataset` has it, which the model learnt from.
        others: one of foreign pictures; "" for none.
        most: pictures of each split.

    Raises:
        UserError: the model has no classes.
        InvalidDataset: a dataset cannot be read.
    """
    if not checkpoint.config.num_classes:
        raise UserError("The model has no classes, so there is nothing to be sure or unsure of.")
    dataset = load_dataset(data, checkpoint.preprocess, root=root, at_most=most)
    features, _ = _look_at_split(checkpoint, dataset.train, most, bar)
    mean, away = features.mean(0), features - features.mean(0)
    covariance = (away.T @ away).double() / len(features)
    covariance.diagonal().add_(1e-3 * covariance.diagonal().mean())  # a direction that hardly varies counts for little
    precision = torch.linalg.inv(covariance).float()
    reference = measures(*_look_at_split(checkpoint, dataset.test, most, bar), mean, precision)
    centre, spread = reference.mean(0), reference.std(0)
    steps = torch.linspace(0, 1, _QUANTILES)

    def quantiles(values: Tensor) -> Tensor:
        return ((values - centre) / spread).sum(1).quantile(steps)

    foreign = None
    if others:
        test = load_dataset(others, checkpoint.preprocess, root=root, at_most=most, only="test").test
        foreign = quantiles(measures(*_look_at_split(checkpoint, test, most, bar), mean, precision))
    names = (Path(spec.removeprefix("folder:")).name for spec in (data, others))
    return Reference(mean, precision, centre, spread, quantiles(reference), foreign, *names)


def write(checkpoint: Checkpoint, reference: Reference) -> Path:
    """Keep it beside the weights of a checkpoint, whose identity it carries.

    Raises:
        UserError: the checkpoint is not a folder.
    """
    if not checkpoint.path.is_dir():
        raise UserError(f"{checkpoint.path.name} is a single file. Put it into a folder of its own first.")
    facts = {"identity": checkpoint.identity, "data": reference.data, "other_data": reference.other_data}
    arrays = {name: getattr(reference, name) for name in _NAMES}
    with replaced(checkpoint.path / FILE) as file, zipfile.ZipFile(file, "w") as archive:
        for name, content in [("facts.json", json.dumps(facts).encode()), *_zip_members(arrays)]:
            archive.writestr(zipfile.ZipInfo(name), content)  # the same bytes whenever it is written
    return checkpoint.path / FILE


def read(checkpoint: Checkpoint) -> Reference | None:
    """What is kept beside a checkpoint; None where there is nothing, or of another checkpoint."""
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


def _look_at_split(checkpoint: Checkpoint, pictures: Pictures, most: int, bar: bool) -> tuple[Tensor, Tensor]:
    """Features (n, D) and logits (n, C) of a split."""
    normalise = Normalise(checkpoint.preprocess, torch.device("cpu"))
    count = min(most, len(pictures.labels))
    order = torch.randperm(len(pictures.labels), generator=torch.Generator().manual_seed(0))[:count]
    batch = images_in_memory(checkpoint.config, checkpoint.preprocess.size, _BATCH_PICTURES)
    batches = pictures.batches(order, batch, torch.device("cpu"))
    steps = tqdm(batches, total=-(-count // batch), unit="batches", leave=False, disable=not bar)
    outputs = [look(checkpoint.model, normalise(images)) for images, _ in steps]
    return torch.cat([features for features, _ in outputs]), torch.cat([logits for _, logits in outputs])


def _share_above(quantiles: Tensor, score: float) -> float:
    """The share of numbers at or above a score, of which these are the quantiles."""
    return float(1 - np.interp(score, quantiles.numpy(), np.linspace(0, 1, len(quantiles))))
