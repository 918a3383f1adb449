"""What a model makes of pictures before its head: one vector for each, to search, group or classify them by."""

import hashlib
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vit.checkpoints.checkpoint import Checkpoint
from vit.data.datasets import load_dataset
from vit.data.in_parts import InParts, Part, pictures_bar
from vit.data.pictures import Pictures
from vit.devices import back_where_it_was
from vit.explain.head_census import batch_size
from vit.files import replaced
from vit.images.preprocess import Normalise
from vit.model.cpu import exact_on_cpu, onednn
from vit.model.transformer import VisionTransformer

STORE_BYTES = 1_000_000_000  # of all features that are stored in one folder


class Features(NamedTuple):
    """What a model computes of each of a dataset's pictures before its head.

    Attributes:
        vectors: float32 (n, D), as the head reads them.
        labels: int64 (n,), numbers in `classes`.
        classes: of the dataset.
    """

    vectors: NDArray[np.float32]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]


@torch.inference_mode()
def pooled(model: VisionTransformer, pixels: Tensor) -> Tensor:
    """The features that the head reads, (B, D), of a model's input (B, channels, height, width)."""
    with onednn() if exact_on_cpu(pixels) else nullcontext():
        x, steps = model.walk(pixels)
        for step in steps:
            x = step(x)
        return model.pool_features(x)[0]


@torch.inference_mode()
def of_patches(model: VisionTransformer, pixels: Tensor) -> Tensor:
    """What the head would read of each patch if there was nothing else: (P, D).

    Args:
        pixels: (1, channels, height, width), the model's input.
    """
    with onednn() if exact_on_cpu(pixels) else nullcontext():
        x, steps = model.walk(pixels, every=True)
        for step in steps:
            x = step(x)
        return model.pool_features(model.read_alone(x[0, len(model.config.prefix) :]))[0]


def features(
    checkpoint: Checkpoint, data: str, limit: int = 1000, *, root: Path = Path("data"), bar: bool = False
) -> Features:
    """Features of test pictures of a dataset, whose classes need not be known.

    Args:
        limit: pictures, taken evenly from the classes.

    Raises:
        InvalidDataset: the dataset cannot be read.
    """
    with back_where_it_was(checkpoint.model):
        return combined(in_parts(checkpoint, data, limit, root=root).all(pictures_bar(bar)))


def in_parts(
    checkpoint: Checkpoint, data: str, limit: int = 1000, *, root: Path = Path("data"), **reading: int
) -> InParts:
    """Features of a dataset's test pictures, to be done in parts.

    Args:
        reading: see `load_dataset`.
    """
    dataset = load_dataset(data, checkpoint.preprocess, root=root, only="test", at_most=limit, **reading)
    return features_of(checkpoint, dataset.test, dataset.classes, limit)


def features_of(
    checkpoint: Checkpoint, pictures: Pictures, classes: Sequence[str], limit: int, device: str | None = None
) -> InParts:
    """Features of pictures (the first `limit`) that are read already, to be done in parts.

    Args:
        device: where the model is moved; None for a GPU where there is one.
    """
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    model, normalise = checkpoint.model.to(where), Normalise(checkpoint.preprocess, where)

    def compute(images: Tensor, labels: Tensor, _: int) -> Part:
        vectors = pooled(model, normalise(images)).float().cpu().numpy()
        return {"vectors": vectors, "labels": labels.cpu().numpy(), "classes": np.array(classes)}

    count = min(limit, len(pictures.labels))
    return InParts(pictures, count, batch_size(checkpoint, checkpoint.preprocess), compute, where)


def combined(parts: Iterable[Part]) -> Features:
    """What all parts say together, in their order."""
    every = list(parts)
    vectors, labels = (np.concatenate([part[name] for part in every]) for name in ("vectors", "labels"))
    return Features(vectors, labels, tuple(every[0]["classes"].tolist()))


def save(extracted: Features, file: Path) -> None:
    """Write an NPZ with `vectors`, `labels` and `classes`; an older one is replaced whole.

    Raises:
        OSError: the file cannot be written.
    """
    with replaced(file) as out:
        np.savez(out, vectors=extracted.vectors, labels=extracted.labels, classes=np.array(extracted.classes))


def load(file: Path) -> Features:
    """Read what `save` wrote.

    Raises:
        OSError: there is no such file, or it cannot be read.
        ValueError: it is another one, or damaged.
    """
    try:
        with np.load(file, allow_pickle=False) as arrays:
            vectors, labels, classes = (arrays[name] for name in ("vectors", "labels", "classes"))
    except (KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(f"{file} holds no features.") from error
    if vectors.ndim != 2 or labels.shape != vectors.shape[:1] or classes.ndim != 1:
        raise ValueError(f"{file} holds no features.")
    return Features(vectors, labels, tuple(classes.tolist()))


def stored(key: str, folder: Path, work: Callable[[], Features]) -> Features:
    """Features that were computed once for all programs, read from a folder or computed and written there.

    Where they cannot be written they are computed each time. The files that nobody read for longest go first, beyond
    `STORE_BYTES`.

    Args:
        key: tells them from all others: of the checkpoint's identity, and the pictures.
    """
    file = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npz"
    with suppress(OSError, ValueError):
        features = load(file)
        os.utime(file)
        return features
    computed = work()
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        save(computed, file)
        files = sorted(folder.glob("*.npz"), key=lambda one: one.stat().st_mtime, reverse=True)
        size = 0
        for one in files:
            size += one.stat().st_size
            if size > STORE_BYTES and one != file:
                one.unlink()
    return computed
