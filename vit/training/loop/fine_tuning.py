"""What a run takes from the checkpoint that it starts from.

Model sizes and normalisation are resolved once, at launch, and written to the run's folder. Once the run has loaded the
weights, it does not need the checkpoint any more.
"""

import os
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from vit.checkpoints.checkpoint import CONFIG, Checkpoint
from vit.checkpoints.load import load_checkpoint
from vit.errors import InvalidConfig
from vit.model.config import ViTConfig
from vit.model.positions import positions_at
from vit.model.transformer import VisionTransformer
from vit.paths import checkpoints_folder
from vit.training.loop.config import TrainConfig
from vit.training.loop.run_folder import BASE, START, read_json, write_json


class Base(NamedTuple):
    """Properties of the checkpoint that a run starts from, without the weights.

    Attributes:
        name: value of `TrainConfig.init_from`.
        model: its configuration, with the input size of its preprocessing, not that of its position embeddings.
        mean, std: normalisation per channel, for pixels from 0 to 1.
    """

    name: str
    model: ViTConfig
    mean: tuple[float, ...]
    std: tuple[float, ...]


class ResolvedStart(NamedTuple):
    """The checkpoint that a run starts from, and the model that it trains.

    Attributes:
        base: properties of the checkpoint; None without one.
        model: configuration of the model.
    """

    base: Base | None
    model: ViTConfig


def resolve(config: TrainConfig, num_classes: int = 1, base: Base | None = None) -> ResolvedStart:
    """Look up the checkpoint that a run starts from, and the model that it trains.

    The checkpoint is opened, and downloaded if necessary, once per process and version of its files.

    Args:
        num_classes: number of classes of the dataset; any number does if only sizes are needed.
        base: properties of the checkpoint, if they are known; None to open it.

    Raises:
        InvalidCheckpoint: it cannot be downloaded or opened.
        InvalidConfig: the settings contradict it.
    """
    if not config.init_from:
        return ResolvedStart(None, config.vit_config(num_classes))
    base = base or _open_base(config.init_from, _version(config.init_from))
    try:
        return ResolvedStart(base, config.vit_config(num_classes, base.model))
    except ValueError as error:
        raise InvalidConfig(str(error)) from error


def model_config(config: TrainConfig, num_classes: int) -> ViTConfig:
    """Return the configuration of the model, see `resolve`."""
    return resolve(config, num_classes).model


@lru_cache(maxsize=16)
def _open_base(name: str, version: object) -> Base:
    checkpoint = load_checkpoint(name)
    preprocess = checkpoint.preprocess
    model = replace(checkpoint.config, image_size=preprocess.size)
    return Base(name, model, preprocess.mean, preprocess.std)


def _version(name: str) -> object:
    """Return a cache key that changes with the files of a local checkpoint; None for a remote one, which is pinned."""
    for path in (checkpoints_folder() / name, Path(name)):
        with suppress(OSError, ValueError):
            files = [os.stat(file) for file in (path, path / CONFIG) if os.path.lexists(file)]
            if files:
                return str(path), *((file.st_ino, file.st_mtime_ns) for file in files)
    return None


def write_base(run: Path, base: Base) -> None:
    """Write the properties of the initial checkpoint to a run's folder."""
    values = {"name": base.name, "model": base.model.to_dict(), "mean": base.mean, "std": base.std}
    write_json(run / BASE, values)


def base_of(config: TrainConfig, run: Path) -> Base | None:
    """Return what `write_base` wrote at launch, or else the base of `resolve(config)`."""
    values = read_json(run / BASE)
    if config.init_from and values.get("name") == config.init_from:
        with suppress(KeyError, TypeError, ValueError):
            mean, std = tuple(map(float, values["mean"])), tuple(map(float, values["std"]))
            return Base(config.init_from, ViTConfig.from_dict(values["model"]), mean, std)
    return resolve(config).base


def start_of(name: str, run: Path) -> str:
    """Return the path of the initial checkpoint: the copy in the run's folder if there is one, else its name."""
    copy = run / START / Path(name).name
    return str(copy) if copy.is_dir() else name


@torch.no_grad()
def load_weights_(model: VisionTransformer, checkpoint: Checkpoint, classes: Sequence[str]) -> None:
    """Load a checkpoint's weights into a model, in place, for fine-tuning.

    Position embeddings are interpolated if the grids differ. The head is loaded if the classes are the same, and
    otherwise keeps its initialisation, zero.

    Raises:
        ValueError: the sizes of model and checkpoint differ.
    """
    weights = positions_at(checkpoint.model.state_dict(), checkpoint.config, model.config.grid)
    if tuple(classes) != checkpoint.labels:
        weights = {name: value for name, value in weights.items() if not name.startswith("head.")}
        weights |= {name: value for name, value in model.state_dict().items() if name.startswith("head.")}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"The weights of {checkpoint.name} do not fit: {error}") from error
