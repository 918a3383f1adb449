"""What a run takes over from the checkpoint that it starts from.

The sizes of the model and the normalisation of its input are resolved once, when a run is launched, and written into
its folder: nothing needs the checkpoint any more as soon as the run has taken its weights over.
"""

import json
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
from vit.files import replaced
from vit.model.config import ViTConfig
from vit.model.positions import positions_at
from vit.model.transformer import VisionTransformer
from vit.paths import checkpoints_folder
from vit.training.config import TrainConfig
from vit.training.run_folder import BASE, START, read_json


class Base(NamedTuple):
    """What a run takes over from the checkpoint that it starts from, the weights aside.

    Attributes:
        name: of the checkpoint, as `TrainConfig.init_from` has it.
        model: its sizes; that of the input is what its preprocessing says, not what its positions were learnt at.
        mean, std: of its input, per channel, for pixels from 0 to 1.
    """

    name: str
    model: ViTConfig
    mean: tuple[float, ...]
    std: tuple[float, ...]


class Resolved(NamedTuple):
    """What follows from the settings of a run and the checkpoint that it starts from.

    Attributes:
        base: what it takes over from the checkpoint; None where it starts from none.
        model: the model that it trains.
    """

    base: Base | None
    model: ViTConfig


def resolve(config: TrainConfig, num_classes: int = 1) -> Resolved:
    """Look up what follows from the checkpoint that a run starts from, and the model that it trains.

    The checkpoint is opened, and fetched where it has to be, once per process and version of its files.

    Args:
        num_classes: of the dataset; any number will do where only sizes are needed.

    Raises:
        InvalidCheckpoint: the checkpoint cannot be had or opened.
        InvalidConfig: the settings contradict it.
    """
    if not config.init_from:
        return Resolved(None, config.vit_config(num_classes))
    base = _open_base(config.init_from, _version(config.init_from))
    try:
        return Resolved(base, config.vit_config(num_classes, base.model))
    except ValueError as error:
        raise InvalidConfig(str(error)) from error


def model_config(config: TrainConfig, num_classes: int) -> ViTConfig:
    """The model of `resolve`."""
    return resolve(config, num_classes).model


@lru_cache(maxsize=16)
def _open_base(name: str, version: object) -> Base:
    checkpoint = load_checkpoint(name)
    preprocess = checkpoint.preprocess
    model = replace(checkpoint.config, image_size=preprocess.size)
    return Base(name, model, preprocess.mean, preprocess.std)


def _version(name: str) -> object:
    """Another value for other files of that name; None for what lies elsewhere, which is pinned when it is fetched."""
    for path in (checkpoints_folder() / name, Path(name)):
        with suppress(OSError, ValueError):
            files = [os.stat(file) for file in (path, path / CONFIG) if os.path.lexists(file)]
            if files:
                return str(path), *((file.st_ino, file.st_mtime_ns) for file in files)
    return None


def write_base(run: Path, base: Base) -> None:
    """Keep in a run's folder what follows from the checkpoint that it starts from."""
    values = {"name": base.name, "model": base.model.to_dict(), "mean": base.mean, "std": base.std}
    with replaced(run / BASE) as file:
        file.write(json.dumps(values, indent=2).encode() + b"\n")


def base_of(config: TrainConfig, run: Path) -> Base | None:
    """What was kept when the run was launched, or else what `resolve` finds."""
    values = read_json(run / BASE)
    if config.init_from and values.get("name") == config.init_from:
        with suppress(KeyError, TypeError, ValueError):
            mean, std = tuple(map(float, values["mean"])), tuple(map(float, values["std"]))
            return Base(config.init_from, ViTConfig.from_dict(values["model"]), mean, std)
    return resolve(config).base


def start_of(name: str, run: Path) -> str:
    """Where the checkpoint lies that a run starts from: the copy in its folder, where one went along."""
    copy = run / START / Path(name).name
    return str(copy) if copy.is_dir() else name


@torch.no_grad()
def load_weights_(model: VisionTransformer, checkpoint: Checkpoint, classes: Sequence[str]) -> None:
    """Set a model's weights to a checkpoint's, in place, to train on from there.

    Positions are interpolated where the grids differ. The head is taken over where the classes are the same, and
    starts at zero, as a new model's does, where they are not.

    Raises:
        ValueError: the model has other sizes than the checkpoint's.
    """
    weights = positions_at(checkpoint.model.state_dict(), checkpoint.config, model.config.grid)
    if tuple(classes) != checkpoint.labels:
        weights = {name: value for name, value in weights.items() if not name.startswith("head.")}
        weights |= {name: value for name, value in model.state_dict().items() if name.startswith("head.")}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"The weights of {checkpoint.name} do not fit: {error}") from error
