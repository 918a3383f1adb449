"""Disk cache of the pictures' features, which every rung of the ladder computes with the same checkpoint."""

import hashlib
import logging
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from vit.data.pictures import InMemoryPictures
from vit.files import replaced, trim_cache
from vit.images.preprocess import Normalise
from vit.model.transformer import VisionTransformer
from vit.paths import runs_folder
from vit.stored_archives import read_arrays
from vit.training.loop.adaptation import merged
from vit.untrusted import Unreadable

MOST_BYTES = 1 << 29  # total size of the cache; the least recently used files are deleted

_HASHED_BYTES = 1 << 26  # pixels hashed at once

log = logging.getLogger(__name__)


def place(
    model: VisionTransformer, pictures: InMemoryPictures, normalise: Normalise, order: Tensor, device: torch.device
) -> Path:
    """Return the cache file for the features of these pictures, on this kind of device.

    Its name is a hash of everything that affects the features: pixels, weights except the head's, config, library.
    """
    digest = hashlib.blake2b(digest_size=16)
    words = (
        torch.__version__,
        device.type,
        torch.backends.cpu.get_cpu_capability(),
        model.config,
        pictures.images.shape,
    )
    digest.update(repr(words).encode())
    state = merged(model).state_dict()
    weights = (tensor for name, tensor in sorted(state.items()) if not name.startswith("head."))
    at_once = max(1, _HASHED_BYTES // pictures.images[0].nbytes)
    pixels = (pictures.images[part] for part in order.to(pictures.images.device).split(at_once))
    for tensor in (normalise.mean, normalise.std, *weights):
        digest.update(_bytes(tensor))
    for tensor in pixels:  # in chunks: the pictures may take gigabytes
        digest.update(_bytes(tensor))
    return runs_folder() / ".features" / "probe" / f"{digest.hexdigest()}.npz"


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().reshape(-1).contiguous().view(torch.uint8).numpy().data


def load(path: Path, count: int, width: int) -> Tensor | None:
    """Load features (count, width) float32; None if there are none, or the file does not fit."""
    try:
        features = read_arrays(path, MOST_BYTES)["features"]
        path.touch()
    except (OSError, Unreadable, KeyError):
        return None
    fits = features.shape == (count, width) and features.dtype == np.float32
    return torch.from_numpy(features) if fits else None


def save(path: Path, features: Tensor) -> None:
    """Save features (n, D); on failure only log, because the next rung can compute them again."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced(path) as file:
            np.savez(file, features=features.numpy())
        earlier = path.parents[1].glob("*.npy")  # files of earlier versions, without checksums
        trim_cache([*path.parent.glob("*.npz"), *earlier], MOST_BYTES)
    except OSError as error:
        log.warning("Features are not kept: %s", error)
