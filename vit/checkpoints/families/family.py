"""What a family of checkpoints is, and the three steps from its tensors to ours: rename, reshape, infer.

The steps look at names and shapes only, so they give the same answer for tensors on the meta device: a file is
understood, and refused, before any of its weights are read.
"""

import math
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, reduce
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from vit.errors import InvalidCheckpoint
from vit.images.preprocess import Preprocess
from vit.model.config import BiasResize, ViTConfig, check_field
from vit.untrusted import brief

Tensors = dict[str, Tensor]

MAX_PATCHES = 4096
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)

# Widths whose heads are not 64 wide. Source: timm 1.0.31, every entry of vision_transformer, deit and eva.
_HEADS = {1152: 16, 1280: 16, 1408: 16, 1536: 24, 1664: 16, 1792: 16, 4096: 32}


class Recognised(NamedTuple):
    """What tensors tell of a model that no file names.

    Attributes:
        fields: of the config.
        model: what people call it; "" for a plain one.
    """

    fields: Mapping[str, Any] = MappingProxyType({})
    model: str = ""


@dataclass(frozen=True)
class Family:
    """How one library writes a plain ViT.

    Attributes:
        name: what people call it.
        signature: regular expression that finds one of its names.
        without: regular expression that finds the names of other families that have that name, too.
        keys: (ours, theirs) for every module or parameter; `{i}` stands for the number of the block, `{h}` for that
            of the head, and ".weight" or ".bias" may follow. Ours are the names of `VisionTransformer`, before
            `reshape`.
        ignored: regular expression of names that play no part in classification.
        square: all its models were made for square pictures.
        fixed: config fields that are the same in every model of the family and never in a file.
        assumed: config field -> (value, why), for what neither shapes nor a silent config tell.
        called: config field -> what the family's config.json calls it.
        read_config: the config fields that the family's config.json states, where more than their names differ; see
            `stated`.
        by_name: config fields inferred from the name of a published model; never those that tensors could contradict.
        by_tensors: (renamed tensors, the family's names of them, name of file and folder) -> the config fields that
            published models with such tensors share, and which models these are. It is asked where no config.json
            names the architecture, and refuses tensors that could be those of several.
        adjust: renamed tensors to what the blocks of this project compute, where more than names differ, and the
            config fields inferred on the way.
        stated_size: (height, width) that the family's config.json gives pictures, which count as those of the
            position embeddings where these are as many [px].
        preprocess: (config, name) -> the preprocessing when no file states it, and why this one.
        stated_preprocess, stated_labels: what the family's config.json says of these, if it does.
    """

    name: str
    signature: str
    keys: tuple[tuple[str, str], ...]
    preprocess: Callable[[ViTConfig, str], tuple[Preprocess, str]]
    without: str = r"(?!)"
    ignored: str = r"(?!)"
    square: bool = True
    fixed: Mapping[str, Any] = field(default_factory=dict)
    assumed: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    called: Mapping[str, str] = field(default_factory=dict)
    read_config: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None
    by_name: Callable[[str], dict[str, Any]] = lambda name: {}
    adjust: Callable[[Tensors], tuple[Tensors, dict[str, Any]]] = lambda tensors: (tensors, {})
    by_tensors: Callable[[Tensors, Collection[str], str], Recognised] = lambda tensors, names, name: Recognised()
    stated_size: Callable[[Mapping[str, Any]], tuple[int, int] | None] = lambda document: None
    stated_preprocess: Callable[[Mapping[str, Any]], Preprocess | None] = lambda document: None
    stated_labels: Callable[[Mapping[str, Any]], Any] = lambda document: document.get("id2label")

    def claims(self, names: list[str]) -> bool:
        """Whether a file with these tensor names is of this family."""
        return any(re.search(self.signature, name) for name in names) and not any(
            re.search(self.without, name) for name in names
        )

    def stated(self, document: Mapping[str, Any]) -> dict[str, Any]:
        """The config fields that the family's config.json states.

        Raises:
            InvalidCheckpoint: a field cannot have such a value.
        """
        if self.read_config is not None:
            return self.read_config(document)
        stated = {ours: document[theirs] for ours, theirs in self.called.items() if theirs in document}
        for ours, value in stated.items():
            check_stated(ours, value, self.called[ours])
        return stated

    def find(self, name: str) -> str | None:
        """Our name for one of the family's, before `reshape`; None for a name that it does not know."""
        return next(
            (_fill(match, ours) for pattern, ours in _patterns(self.keys) if (match := pattern.fullmatch(name))), None
        )

    def rename(self, tensors: Tensors) -> Tensors:
        """Give tensors with the family's names those of `VisionTransformer`, before `reshape`.

        Raises:
            InvalidCheckpoint: a name that the family does not know, or two names for one thing.
        """
        renamed: Tensors = {}
        for name, tensor in tensors.items():
            if re.search(self.ignored, name):
                continue
            ours = self.find(name)
            if ours is None:
                raise InvalidCheckpoint(
                    f"This {self.name} checkpoint holds a tensor that a plain Vision Transformer does not have "
                    f"(`{brief(name)}`), so it cannot be opened faithfully."
                )
            if ours in renamed:
                raise InvalidCheckpoint(f"The file holds `{brief(name)}` twice, under two spellings.")
            renamed[ours] = tensor
        return renamed

    def rename_back(self, tensors: Tensors) -> Tensors:
        """Give tensors with our names those of the family, in the first spelling in `keys`."""
        patterns = [(_pattern(ours), theirs) for ours, theirs in self.keys]
        return {
            next(_fill(match, theirs) for pattern, theirs in patterns if (match := pattern.fullmatch(name))): tensor
            for name, tensor in tensors.items()
        }


@cache
def _patterns(keys: tuple[tuple[str, str], ...]) -> list[tuple[re.Pattern[str], str]]:
    return [(_pattern(theirs), ours) for ours, theirs in keys]


def _pattern(template: str) -> re.Pattern[str]:
    numbers = re.escape(template)
    for letter in "ih":
        numbers = numbers.replace(re.escape(f"{{{letter}}}"), rf"(?P<{letter}>0|[1-9][0-9]{{0,3}})")
    return re.compile(numbers + r"(?P<end>\.weight|\.bias)?", re.ASCII)


def _fill(match: re.Match[str], template: str) -> str:
    for letter in "ih":
        template = template.replace(f"{{{letter}}}", match.groupdict().get(letter) or "")
    return template + (match["end"] or "")


def reshape(tensors: Tensors, grid: tuple[int, int] | None, placed: bool = False) -> tuple[Tensors, tuple[str, ...]]:
    """Renamed tensors to the exact names and shapes of `VisionTransformer`; and the prefix tokens' names.

    All become float32 but the matrices of the blocks, nearly all of a model: if they are in half precision they stay
    so, and `Linear` casts them when it computes. `tensors` is empty afterwards: no weights are held twice.

    Queries, keys and values are fused, as are the two halves of a gated MLP. The position row of a prefix token is
    added to the token, a sum of two constants, so positions remain for patches only. The two heads of a distilled
    model, whose answers are averaged, become one over both tokens side by side, with half the weights.

    Args:
        grid: (rows, cols) of patches where a config says so; else the number of patches must be a square.
        placed: positions are rotary or relative, so there need be no position embeddings; they are zero then.

    Raises:
        InvalidCheckpoint: a tensor is missing, of the wrong shape or of whole numbers, or two do not go together.
    """
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or tensor.itemsize < 2:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise InvalidCheckpoint(
                f"`{brief(name)}` is stored as {kind}; this app reads weights of 16, 32 and 64-bit floats."
            )
    tensors = {name: _half_or_float(name, tensors.pop(name)) for name in list(tensors)}
    for name in [name for name in tensors if name.endswith(("attn.q.weight", "mlp.gate.weight"))]:
        letters = ("q", "k", "v") if name.endswith("q.weight") else ("gate", "up")
        _fuse_layers(tensors, name.removesuffix(f"{letters[0]}.weight"), letters)
    _average_heads(tensors)

    dim = needed(tensors, "patch_embed.weight", 4).shape[0]
    parts = {name: tensors.pop(f"prefix.{name}") for name in ("cls", "dist", "reg") if f"prefix.{name}" in tensors}
    prefix = _as_tokens([tensors.pop("prefix")] if "prefix" in tensors else list(parts.values()), dim)
    names: tuple[str, ...] = tuple(name for name in ("cls", "dist") if name in parts)
    names += tuple(f"reg{i + 1}" for i in range(prefix.shape[1] - len(names)))
    if placed and grid and "pos_embed" not in tensors:
        tensors["pos_embed"] = prefix.new_zeros(1, math.prod(grid), dim)
    positions = needed(tensors, "pos_embed", 3)
    if positions.shape[2] != dim or len(positions) != 1:
        raise InvalidCheckpoint("The patches and the position embeddings differ in width.")
    rows = positions.shape[1]
    patches = next(
        (
            rows - own
            for own in sorted({0, 1, 2, prefix.shape[1]}, reverse=True)
            if own <= min(prefix.shape[1], rows - 1)
            and (rows - own == math.prod(grid) if grid else math.isqrt(rows - own) ** 2 == rows - own)
        ),
        None,
    )
    if patches is None:
        expected = f"{grid[0]} x {grid[1]} patches" if grid else "a square picture"
        raise InvalidCheckpoint(
            f"The {rows} position embeddings do not fit {expected}; config.json must state the right image_size, as "
            f"of {possible_grids(rows - min(prefix.shape[1], rows - 1))} patches."
        )
    own = rows - patches  # so many prefix tokens have a position row; they come first
    if own:
        prefix = concatenate([added(prefix[:, :own], positions[:, :own]), prefix[:, own:]], 1)
    tensors["prefix_tokens"] = prefix
    tensors["pos_embed"] = positions[:, own:]
    return tensors, names


_MATRICES = re.compile(r"blocks\.\d+\.(attn\.(q|k|v|qkv|proj)|mlp\.(fc1|fc2|gate|up))\.weight")


def _half_or_float(name: str, tensor: Tensor) -> Tensor:
    return tensor if tensor.itemsize == 2 and _MATRICES.fullmatch(name) else tensor.float()


def concatenate(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Join tensors along a dimension, as `torch.cat`, which on the meta device imports torch's compiler: 2 s.

    Raises:
        InvalidCheckpoint: they differ in another dimension, or have none.
    """
    shapes = [list(part.shape) for part in parts]
    others = [shape[:dim] + shape[dim + 1 :] for shape in shapes]
    if any(len(shape) <= dim for shape in shapes) or any(other != others[0] for other in others):
        raise InvalidCheckpoint(f"Weights of the shapes {brief(shapes)} do not go together: the file is damaged.")
    if not parts[0].is_meta:
        return torch.cat(list(parts), dim)
    length = sum(shape[dim] for shape in shapes)
    dtype = reduce(torch.promote_types, (part.dtype for part in parts))
    return torch.empty(*others[0][:dim], length, *others[0][dim:], dtype=dtype, device="meta")


def added(one: Tensor, other: Tensor) -> Tensor:
    """The sum of two tensors, which for those on the meta device would import torch's compiler too."""
    return one if one.is_meta and one.shape == other.shape else one + other


def _fuse_layers(tensors: Tensors, start: str, letters: tuple[str, ...]) -> None:
    """Put several linear layers on one input under each other."""
    fused = "qkv" if "q" in letters else "fc1"
    for end in ("weight", "bias"):
        parts = [tensors.pop(f"{start}{letter}.{end}", None) for letter in letters]
        present = [part for part in parts if part is not None]
        whole = len(present) == len(letters)
        if present and (not whole or len({part.shape for part in present}) > 1 or present[0].ndim == 0):
            what = "Queries, keys and values" if fused == "qkv" else "The two halves of the MLP"
            raise InvalidCheckpoint(f"{what} do not go together in `{brief(start[:-1])}`.")
        if present:
            tensors[f"{start}{fused}.{end}"] = concatenate(present)


def with_position_bias(tensors: Tensors, resize: BiasResize) -> tuple[Tensors, dict[str, Any]]:
    """Give each block its table of relative position biases, if there are any; return the tensors and config fields.

    Args:
        tensors: renamed; what all blocks share is `position_bias`.
        resize: how the library interpolates a table.
    """
    tensors = dict(tensors)
    if "position_bias" in tensors:
        shared = tensors.pop("position_bias")
        for block in {name.split(".")[1] for name in tensors if name.startswith("blocks.")}:
            name = f"blocks.{block}.attn.position_bias"
            tensors[name] = added(shared, tensors[name]) if name in tensors else concatenate([shared])  # a copy
    if "blocks.0.attn.position_bias" not in tensors:
        return tensors, {}
    return tensors, {"position_bias": resize, "heads": needed(tensors, "blocks.0.attn.position_bias", 2).shape[1]}


def biased_grid(tensors: Tensors, hint: tuple[int, int] | None = None) -> tuple[int, int] | None:
    """(rows, cols) of patches by how many biases there are, of renamed tensors; None if there are none.

    Args:
        hint: (rows, cols) that a config means.

    Raises:
        InvalidCheckpoint: a table is of no square picture's, and of no such grid's.
    """
    tables = (name for name in tensors if name.endswith("position_bias"))
    if (name := next(tables, None)) is None:
        return None
    distances = needed(tensors, name, 2).shape[0] - 3
    if hint is not None and (2 * hint[0] - 1) * (2 * hint[1] - 1) == distances:
        return hint
    side = math.isqrt(max(distances, 0))
    if side**2 != distances or side % 2 == 0:
        raise InvalidCheckpoint(
            f"The {distances + 3} biases by relative position do not fit a square picture; config.json must state the "
            "right image_size."
        )
    return (side + 1) // 2, (side + 1) // 2


def _average_heads(tensors: Tensors) -> None:
    """(head(cls) + head_dist(dist)) / 2 as one head on [cls, dist]. Source: DeiT, arXiv 2012.12877, section 4."""
    if "head_dist.weight" in tensors:
        one, other = needed(tensors, "head.weight", 2), tensors.pop("head_dist.weight")
        if one.shape != other.shape:
            raise InvalidCheckpoint("The heads of the class token and of the distillation token differ in shape.")
        tensors["head.weight"] = torch.cat([one, other], 1) / 2
        bias = needed(tensors, "head.bias", 1), tensors.pop("head_dist.bias", None)
        if bias[1] is None or bias[0].shape != bias[1].shape:
            raise InvalidCheckpoint("The heads of the class token and of the distillation token differ in shape.")
        tensors["head.bias"] = (bias[0] + bias[1]) / 2


def _as_tokens(parts: list[Tensor], dim: int) -> Tensor:
    """Tokens of any leading shape as (1, S, D)."""
    if any(part.ndim == 0 or part.numel() % dim or part.shape[-1] != dim for part in parts):
        raise InvalidCheckpoint("The class token and the patches differ in width.")
    if not parts:
        return torch.zeros(1, 0, dim)
    return concatenate([part.reshape(1, -1, dim) for part in parts], 1)


def infer(tensors: Tensors, prefix: tuple[str, ...]) -> dict[str, Any]:
    """The config fields that names and shapes of reshaped tensors tell.

    Args:
        prefix: names of the prefix tokens, as `reshape` gives them.

    Raises:
        InvalidCheckpoint: a tensor is missing or of the wrong shape, there is no block, or patches are not square.
    """
    patch = needed(tensors, "patch_embed.weight", 4)
    if patch.shape[2] != patch.shape[3]:
        raise InvalidCheckpoint(
            f"Patches of {patch.shape[2]} x {patch.shape[3]} px are not supported, only square ones."
        )
    depth = len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})
    if not depth:
        raise InvalidCheckpoint("The weights hold no transformer block.")
    dim, head = patch.shape[0], tensors.get("head.weight")
    mlp_dim = needed(tensors, "blocks.0.mlp.fc2.weight", 2).shape[1]
    before_head = needed(tensors, "pre_logits.weight", 2) if "pre_logits.weight" in tensors else None
    config = {
        "patch_size": patch.shape[2],
        "channels": patch.shape[1],
        "dim": dim,
        "depth": depth,
        "mlp_dim": mlp_dim,
        "gated_mlp": needed(tensors, "blocks.0.mlp.fc1.weight", 2).shape[0] == 2 * mlp_dim,
        "num_classes": 0 if head is None else needed(tensors, "head.weight", 2).shape[0],
        "patch_bias": "patch_embed.bias" in tensors,
        "qkv_bias": "blocks.0.attn.qkv.bias" in tensors,
        "norm_pre": "norm_pre.weight" in tensors,
        "norm": "before_pool" if "norm.weight" in tensors else "none",
        "attn_norm": "blocks.0.attn.norm.weight" in tensors,
        "mlp_norm": "blocks.0.mlp.norm.weight" in tensors,
        "pre_logits": 0 if before_head is None else before_head.shape[0],
        "prefix": prefix,
    }
    if "pool.probe" in tensors:
        config["pool"] = "map"
        pool_mlp_dim = needed(tensors, "pool.mlp.fc2.weight", 2).shape[1]
        config["pool_mlp_dim"] = 0 if pool_mlp_dim == mlp_dim else pool_mlp_dim
    elif head is not None and before_head is None and head.shape[1] == 2 * dim:
        config["pool"] = "cls_dist" if "dist" in prefix else "cls_mean"
    elif "cls" not in prefix:
        config["pool"] = "mean"
    return config


def possible_grids(patches: int) -> str:
    """The grids of so many patches, in words, those nearest to a square first.

    >>> possible_grids(16)
    '4 x 4, 2 x 8 or 8 x 2'
    """
    sides = [side for side in range(2 if patches > 3 else 1, math.isqrt(patches) + 1) if patches % side == 0]
    grids = [(side, patches // side) for side in reversed(sides or [1])]
    both = [grid for one in grids for grid in dict.fromkeys((one, one[::-1]))][:4]
    words = [f"{rows} x {cols}" for rows, cols in both]
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def square_size(tensors: Tensors, patch_size: int) -> tuple[int, int]:
    """The (height, width) of a square picture with as many patches as there are positions [px]."""
    side = math.isqrt(tensors["pos_embed"].shape[1]) * patch_size
    return side, side


def default_heads(dim: int) -> int | None:
    """How many heads published models of this width have; None where there is no custom to go by."""
    return _HEADS.get(dim, dim // 64 if dim >= 192 and dim % 64 == 0 else None)


def possible_heads(dim: int) -> tuple[int, ...]:
    """Numbers of heads that divide a width into heads of 4 to 256.

    >>> possible_heads(48)
    (1, 2, 3, 4, 6, 8, 12)
    """
    return tuple(heads for heads in range(1, dim + 1) if dim % heads == 0 and 4 <= dim // heads <= 256)


def build_config(values: Mapping[str, Any]) -> ViTConfig:
    """Make a config from values out of a file.

    Raises:
        InvalidCheckpoint: unknown field, wrong kind, out of range, or fields that do not fit each other.
    """
    with _refusing():
        config = ViTConfig.from_dict(dict(values))
    if math.prod(config.grid) > MAX_PATCHES:
        raise InvalidCheckpoint(f"The config means {math.prod(config.grid)} patches; at most {MAX_PATCHES} are opened.")
    return config


def check_stated(name: str, value: object, called: str) -> None:
    """Refuse a value of the wrong kind or out of range, in the words of the file that holds it.

    Args:
        name: of the config field.
        called: what the file calls it.

    Raises:
        InvalidCheckpoint: the field cannot have this value.
    """
    with _refusing():
        check_field(name, value, called)


@contextmanager
def _refusing() -> Iterator[None]:
    """Raise InvalidCheckpoint where a config cannot be."""
    try:
        yield
    except ValueError as error:
        raise InvalidCheckpoint(f"The checkpoint's config cannot be: {error}") from error


def needed(tensors: Tensors, name: str, ndim: int) -> Tensor:
    """The tensor of that name.

    Args:
        ndim: how many dimensions it must have.

    Raises:
        InvalidCheckpoint: it is missing, or has another number of dimensions.
    """
    if name not in tensors:
        raise InvalidCheckpoint(f"The weights are incomplete: `{name}` is missing.")
    if tensors[name].ndim != ndim:
        raise InvalidCheckpoint(f"`{name}` has the wrong shape: {tuple(tensors[name].shape)}.")
    return tensors[name]
