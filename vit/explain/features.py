"""Extract pooled features of pictures, the input of the head, for search, clustering or classification."""

import hashlib
import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vit.checkpoints.checkpoint import Checkpoint
from vit.data.datasets import load_pictures
from vit.data.pictures import Pictures, first_batches
from vit.devices import restored_device
from vit.explain.head_census import batch_size
from vit.files import replaced, trim_cache
from vit.images.preprocess import Normalise
from vit.model.cpu import onednn_for
from vit.model.transformer import VisionTransformer
from vit.progress import pictures_bar
from vit.stored_archives import read_arrays
from vit.untrusted import Unreadable

STORE_BYTES = 1_000_000_000  # maximum size of a cache folder
_FILE_BYTES = 16 << 30  # of one file; a million vectors of 1,536 numbers take 6 GB


class Features(NamedTuple):
    """Pooled features of a dataset's pictures.

    Attributes:
        vectors: float32 (n, D), inputs of the head.
        labels: int64 (n,), indices into `classes`.
        classes: class names of the dataset.
    """

    vectors: NDArray[np.float32]
    labels: NDArray[np.int64]
    classes: tuple[str, ...]


@torch.inference_mode()
def pooled_features(model: VisionTransformer, pixels: Tensor) -> Tensor:
    """Compute the head's input features (B, D) for a model's input (B, channels, height, width)."""
    with onednn_for(pixels):
        x, steps = model.walk(pixels)
        for step in steps:
            x = step(x)
        return model.pool_features(x)[0]


@torch.inference_mode()
def patch_features(model: VisionTransformer, pixels: Tensor) -> Tensor:
    """Compute the head's input features (P, D) for each patch token as if it were the only token.

    Args:
        pixels: (1, channels, height, width), the model's input.
    """
    with onednn_for(pixels):
        x, steps = model.walk(pixels, every=True)
        for step in steps:
            x = step(x)
        return model.pool_features(model.single_token_inputs(x[0, len(model.config.prefix) :]))[0]


def features(
    checkpoint: Checkpoint, data: str, limit: int = 1000, *, root: Path = Path("data"), bar: bool = False
) -> Features:
    """Extract features of a dataset's test pictures, or of a folder without classes. The model may have other classes.

    Args:
        limit: number of pictures, taken evenly from the classes.

    Raises:
        InvalidDataset: the dataset cannot be read.
    """
    dataset = load_pictures(data, checkpoint.preprocess, root=root, at_most=limit)
    with restored_device(checkpoint.model):
        return features_of(checkpoint, dataset.test, dataset.classes, limit, progress=pictures_bar(bar))


def features_of(
    checkpoint: Checkpoint,
    pictures: Pictures,
    classes: Sequence[str],
    limit: int,
    device: str | None = None,
    *,
    progress: Callable[[int, int], None],
) -> Features:
    """Extract features of the first `limit` pictures.

    Args:
        device: device that the model is moved to; None for a GPU if there is one.
        progress: called with the number of pictures done, and in total.
    """
    where = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    model, normalise = checkpoint.model.to(where), Normalise(checkpoint.preprocess, where)
    count, batch = min(limit, len(pictures.labels)), batch_size(checkpoint, checkpoint.preprocess)
    vectors, every = [], []
    for images, labels in first_batches(pictures, count, batch, where, progress):
        vectors.append(pooled_features(model, normalise(images)).float().cpu().numpy())
        every.append(labels.cpu().numpy())
    return Features(np.concatenate(vectors), np.concatenate(every), tuple(classes))


def save(extracted: Features, file: Path) -> None:
    """Write an NPZ file with `vectors`, `labels` and `classes`, atomically.

    Raises:
        OSError: the file cannot be written.
    """
    with replaced(file) as out:
        np.savez(out, vectors=extracted.vectors, labels=extracted.labels, classes=np.array(extracted.classes))


def load(file: Path) -> Features:
    """Read a file written by `save`.

    Raises:
        FileNotFoundError: the file does not exist.
        ValueError: it is another kind of file, or damaged.
    """
    try:
        arrays = read_arrays(file, _FILE_BYTES)
    except Unreadable as error:
        raise ValueError(f"{file} holds no features.") from error
    vectors, labels, classes = (arrays.get(name, np.zeros(0)) for name in ("vectors", "labels", "classes"))
    if (
        (vectors.ndim, labels.shape, classes.ndim) != (2, vectors.shape[:1], 1)
        or (vectors.dtype.str, labels.dtype.str, classes.dtype.kind) != ("<f4", "<i8", "U")
        or not np.isfinite(vectors).all()
        or not ((labels >= 0) & (labels < len(classes))).all()
    ):
        raise ValueError(f"{file} holds no features.")
    return Features(vectors, labels, tuple(classes.tolist()))


def stored(key: str, folder: Path, work: Callable[[], Features]) -> Features:
    """Return features from an on-disk cache that all processes share; compute and cache them on a miss.

    Least recently used files beyond `STORE_BYTES` are deleted. If the folder is not writable, nothing is cached.

    Args:
        key: cache key: the checkpoint's identity and the pictures.
        work: computes the features.
    """
    file = folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npz"
    with suppress(OSError, ValueError):
        features = load(file)
        os.utime(file)  # marks it as recently used
        return features
    computed = work()
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
        save(computed, file)
        trim_cache(set(folder.glob("*.npz")) - {file}, STORE_BYTES - file.stat().st_size)
    return computed
