"""Initial weights: some that already attend like a trained model's, and those of a checkpoint.

What else follows from a checkpoint to start from, the sizes of the model and the normalisation of its input, is
resolved once, when a run is launched, and written into its folder: nothing needs the checkpoint any more as soon as
the run has taken its weights over.
"""

import json
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, cast

import torch
from torch import Tensor
from torch.nn import functional as F

from vit.checkpoints import CONFIG, Checkpoint, load_checkpoint
from vit.errors import InvalidConfig
from vit.files import replaced
from vit.model import Block, VisionTransformer, ViTConfig, resize_positions
from vit.paths import checkpoints_folder
from vit.recipes import TrainConfig
from vit.runs import read_json

BASE = "base.json"  # in a run's folder


class Base(NamedTuple):
    """What a run takes over from the checkpoint that it starts from, the weights aside.

    Attributes:
        name: of the checkpoint, as `TrainConfig.init_from` has it.
        model: its sizes.
        mean, std: of its input, per channel, for pixels from 0 to 1.
    """

    name: str
    model: ViTConfig
    mean: tuple[float, ...]
    std: tuple[float, ...]


def resolve(config: TrainConfig) -> Base | None:
    """Look up what follows from the checkpoint that a run starts from; None where it starts from none.

    The checkpoint is opened, and fetched where it has to be, once per process and version of its files.

    Raises:
        InvalidCheckpoint: it cannot be had or opened.
        InvalidConfig: the settings contradict it.
    """
    if not config.init_from:
        return None
    base = _open_base(config.init_from, _version(config.init_from))
    try:
        config.vit_config(1, base.model)
    except ValueError as error:
        raise InvalidConfig(str(error)) from error
    return base


def model_config(config: TrainConfig, num_classes: int) -> ViTConfig:
    """The model that a run trains, for a dataset of so many classes.

    Raises:
        InvalidCheckpoint, InvalidConfig: as `resolve`.
    """
    base = resolve(config)
    return config.vit_config(num_classes, base and base.model)


@lru_cache(maxsize=16)
def _open_base(name: str, version: object) -> Base:
    checkpoint = load_checkpoint(name)
    return Base(name, checkpoint.config, checkpoint.preprocess.mean, checkpoint.preprocess.std)


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
    """What was kept when the run was launched, or else `resolve(config)`."""
    values = read_json(run / BASE)
    if config.init_from and values.get("name") == config.init_from:
        with suppress(KeyError, TypeError, ValueError):
            mean, std = tuple(map(float, values["mean"])), tuple(map(float, values["std"]))
            return Base(config.init_from, ViTConfig.from_dict(values["model"]), mean, std)
    return resolve(config)


@torch.no_grad()
def mimetic_(model: VisionTransformer) -> None:
    """Set sine-cosine positions, and attention that starts near the identity, in place.

    In trained transformers W_q W_k^T is close to a positive multiple of the identity plus noise, and W_v W_proj to a
    negative one. Starting there teaches small data sets much faster.

    Source: Trockman & Kolter 2023, "Mimetic Initialization of Self-Attention Layers", arXiv 2305.09828, section 4.
    """
    config = model.config
    dim, width = config.dim, config.dim // config.heads
    model.pos_embed.copy_(sine_cosine(dim, *config.grid))
    for block in model.blocks:
        attention = cast(Block, block).attn
        q, k, v = attention.qkv.weight.chunk(3)  # (D, D) each, output first
        for head in range(config.heads):
            part = slice(head * width, (head + 1) * width)
            left, right = _factors(0.7 * torch.randn(dim, dim) / dim**0.5 + 0.7 * torch.eye(dim), width)
            q[part], k[part] = left.T, right
        left, right = _factors(0.4 * torch.randn(dim, dim) / dim**0.5 - 0.4 * torch.eye(dim), dim)
        v.copy_(right)
        attention.proj.weight.copy_(left)


@torch.no_grad()
def take_over_(model: VisionTransformer, checkpoint: Checkpoint, classes: Sequence[str]) -> None:
    """Set a model's weights to a checkpoint's, in place, to train on from there.

    Positions are interpolated where the grids differ. The head is taken over where the classes are the same, and
    starts at zero, as a new model's does, where they are not.

    Raises:
        ValueError: the model has other sizes than the checkpoint's.
    """
    weights = dict(checkpoint.model.state_dict())
    config = checkpoint.config
    weights["pos_embed"] = resize_positions(
        weights["pos_embed"], config.grid, model.config.grid, config.position_resize
    )
    if tuple(classes) != checkpoint.labels:
        weights = {name: value for name, value in weights.items() if not name.startswith("head.")}
        weights |= {name: value for name, value in model.state_dict().items() if name.startswith("head.")}
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise ValueError(f"The weights of {checkpoint.name} do not fit: {error}") from error


def _factors(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """The best (D, rank) and (rank, D) whose product is `matrix` (D, D)."""
    u, s, vh = torch.linalg.svd(matrix)
    root = s[:rank].sqrt()
    return u[:, :rank] * root, root[:, None] * vh[:rank]


def sine_cosine(dim: int, rows: int, cols: int) -> Tensor:
    """Fixed 2-D position embeddings (1, rows * cols, dim): sines and cosines of x, then of y.

    Source: MAE, arXiv 2111.06377, `util/pos_embed.py`.
    """
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(cols), indexing="ij")
    quarter = dim // 4
    frequency = 10000 ** (-torch.arange(quarter) / max(quarter, 1))
    waves = [f(p.flatten()[:, None] * frequency) for p in (x, y) for f in (torch.sin, torch.cos)]
    positions = torch.cat(waves, 1)  # (P, 4 * quarter)
    return F.pad(positions, (0, dim - positions.shape[1]))[None]
