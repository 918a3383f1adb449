"""What a family of checkpoints is, and the three steps from its tensors to ours: rename, reshape, infer.

The steps look at names and shapes only, so they give the same answer for tensors on the meta device: a file is
understood, and refused, before any of its weights are read.
"""

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vit.errors import InvalidCheckpoint
from vit.images import Preprocess
from vit.model import ViTConfig

Tensors = dict[str, Tensor]

# The whole numbers that a file may claim: (least, most). Wide enough for every published plain ViT.
LIMITS = {
    "image_size": (1, 4096),
    "patch_size": (1, 512),
    "channels": (1, 3),
    "num_classes": (0, 100_000),
    "dim": (1, 8192),
    "depth": (1, 100),
    "heads": (1, 256),
    "mlp_dim": (1, 65_536),
}
MAX_PATCHES = 4096
MAX_PREFIX = 64

# Widths whose heads are not 64 wide. Source: timm 1.0.31, every entry of vision_transformer, deit and eva.
_HEADS = {1152: 16, 1280: 16, 1408: 16, 1536: 24, 1664: 16, 1792: 16, 4096: 32}


@dataclass(frozen=True)
class Family:
    """How one library writes a plain ViT.

    Attributes:
        name: what people call it.
        signature: regular expression that finds one of its names, and nobody else's.
        keys: (ours, theirs) for every module or parameter; `{i}` stands for the number of the block, and
            ".weight" or ".bias" may follow. Ours are the names of `VisionTransformer`, before `reshape`.
        ignored: regular expression of names that play no part in classification.
        fixed: config fields that are the same in every model of the family and never in a file.
        assumed: config field -> (value, why), for what neither shapes nor a silent config tell.
        read_config: the config fields that the family's config.json states.
        preprocess: (config, file name) -> the preprocessing when no file states it, and why this one.
        labels: (config, file name) -> class names when no file states them, and why; None if there are none.
    """

    name: str
    signature: str
    keys: tuple[tuple[str, str], ...]
    preprocess: Callable[[ViTConfig, str], tuple[Preprocess, str]]
    ignored: str = r"(?!)"
    fixed: Mapping[str, Any] = field(default_factory=dict)
    assumed: Mapping[str, tuple[Any, str]] = field(default_factory=dict)
    read_config: Callable[[Mapping[str, Any]], dict[str, Any]] = lambda document: {}
    labels: Callable[[ViTConfig, str], tuple[tuple[str, ...], str] | None] = lambda config, file: None

    def claims(self, names: list[str]) -> bool:
        """Whether a file with these tensor names is of this family."""
        return any(re.search(self.signature, name) for name in names)

    def rename(self, tensors: Tensors) -> Tensors:
        """Their names to ours.

        Raises:
            InvalidCheckpoint: a name that the family does not know, or two names for one thing.
        """
        patterns = [(_pattern(theirs), ours) for ours, theirs in self.keys]
        renamed: Tensors = {}
        for name, tensor in tensors.items():
            if re.search(self.ignored, name):
                continue
            ours = next((_fill(match, ours) for pattern, ours in patterns if (match := pattern.fullmatch(name))), None)
            if ours is None:
                raise InvalidCheckpoint(
                    f"This {self.name} checkpoint holds a tensor that a plain Vision Transformer does not have "
                    f"(`{shown(name)}`), so it cannot be opened faithfully."
                )
            if ours in renamed:
                raise InvalidCheckpoint(f"The file holds `{shown(name)}` twice, under two spellings.")
            renamed[ours] = tensor
        return renamed

    def rename_back(self, tensors: Tensors) -> Tensors:
        """Our names to theirs, the first spelling in `keys`."""
        patterns = [(_pattern(ours), theirs) for ours, theirs in self.keys]
        return {
            next(_fill(match, theirs) for pattern, theirs in patterns if (match := pattern.fullmatch(name))): tensor
            for name, tensor in tensors.items()
        }


def _pattern(template: str) -> re.Pattern[str]:
    number = re.escape(template).replace(re.escape("{i}"), r"(?P<i>0|[1-9][0-9]{0,3})")
    return re.compile(number + r"(?P<end>\.weight|\.bias)?", re.ASCII)


def _fill(match: re.Match[str], template: str) -> str:
    return template.replace("{i}", match.groupdict().get("i") or "") + (match["end"] or "")


def reshape(tensors: Tensors, grid: tuple[int, int] | None) -> Tensors:
    """Renamed tensors to the exact names and shapes of `VisionTransformer`, in float32.

    Queries, keys and values are fused. The position row of a prefix token is added to the token, a sum of two
    constants, so positions remain for patches only.

    Args:
        grid: (rows, cols) of patches where a config says so; else the number of patches must be a square.
    """
    for name, tensor in tensors.items():
        if not tensor.is_floating_point():
            kind = str(tensor.dtype).removeprefix("torch.")
            raise InvalidCheckpoint(f"The weights are not floating-point numbers: `{shown(name)}` is {kind}.")
    tensors = {name: tensor.float() for name, tensor in tensors.items()}
    for block in [name.removesuffix("q.weight") for name in tensors if name.endswith(".attn.q.weight")]:
        for end in ("weight", "bias"):
            parts = [tensors.pop(f"{block}{letter}.{end}", None) for letter in "qkv"]
            present = [part for part in parts if part is not None]
            if present:
                if len(present) < 3 or len({part.shape for part in present}) > 1 or present[0].ndim == 0:
                    raise InvalidCheckpoint(f"Queries, keys and values do not go together in `{shown(block[:-1])}`.")
                tensors[f"{block}qkv.{end}"] = torch.cat(present)

    positions = needed(tensors, "pos_embed", 3)
    dim = positions.shape[2]
    prefix = tensors.pop("prefix.cls", tensors.pop("prefix", None))
    prefix = positions[:, :0] if prefix is None else prefix
    if prefix.numel() % dim or len(positions) != 1:
        raise InvalidCheckpoint("The class token and the position embeddings differ in width.")
    prefix = prefix.reshape(1, -1, dim)  # (1, S, D)
    rows = positions.shape[1]
    choices = {rows, rows - prefix.shape[1]}
    patches = next((n for n in choices if (n == math.prod(grid) if grid else n > 0 and math.isqrt(n) ** 2 == n)), None)
    if patches is None:
        wanted = f"{grid[0]} x {grid[1]} patches" if grid else "a square picture"
        raise InvalidCheckpoint(
            f"The {rows} position embeddings do not fit {wanted}; config.json must state the right image_size."
        )
    if patches < rows:
        prefix = prefix + positions[:, : rows - patches]
    tensors["prefix_tokens"] = prefix
    tensors["pos_embed"] = positions[:, rows - patches :]
    return tensors


def infer(tensors: Tensors) -> dict[str, Any]:
    """The config fields that the shapes of reshaped tensors tell."""
    patch = needed(tensors, "patch_embed.weight", 4)
    if patch.shape[2] != patch.shape[3]:
        raise InvalidCheckpoint(
            f"Patches of {patch.shape[2]} x {patch.shape[3]} px are not supported, only square ones."
        )
    depth = len({name.split(".")[1] for name in tensors if name.startswith("blocks.")})
    if not depth:
        raise InvalidCheckpoint("The weights hold no transformer block.")
    head = tensors.get("head.weight")
    return {
        "patch_size": patch.shape[2],
        "channels": patch.shape[1],
        "dim": patch.shape[0],
        "depth": depth,
        "mlp_dim": needed(tensors, "blocks.0.mlp.fc1.weight", 2).shape[0],
        "num_classes": 0 if head is None else needed(tensors, "head.weight", 2).shape[0],
        "qkv_bias": "blocks.0.attn.qkv.bias" in tensors,
        "norm": "before_pool" if "norm.weight" in tensors else "none",
    }


def square_size(tensors: Tensors, patch_size: int) -> tuple[int, int]:
    """(height, width) of a square picture with as many patches as there are positions."""
    side = math.isqrt(tensors["pos_embed"].shape[1]) * patch_size
    return side, side


def usual_heads(dim: int) -> int | None:
    """How many heads published models of this width have; None where there is no custom to go by."""
    return _HEADS.get(dim, dim // 64 if dim >= 192 and dim % 64 == 0 else None)


def build_config(values: Mapping[str, Any], called: Mapping[str, str] | None = None) -> ViTConfig:
    """Make a config from values out of a file, each checked for kind and range before anything is built.

    Args:
        called: what the file calls a field, where that differs, for the message.

    Raises:
        InvalidCheckpoint: unknown field, wrong kind, out of range, or fields that do not fit each other.
    """
    for name, value in values.items():
        check_field(name, value, (called or {}).get(name, name))
    try:
        config = ViTConfig.from_dict(dict(values))
    except ValueError as error:
        raise InvalidCheckpoint(f"The checkpoint's config cannot be: {error}") from error
    if math.prod(config.grid) > MAX_PATCHES:
        raise InvalidCheckpoint(f"The config means {math.prod(config.grid)} patches; at most {MAX_PATCHES} are opened.")
    return config


def check_field(name: str, value: object, called: str) -> None:
    """Refuse a config value of the wrong kind or out of range, in the words of the file that holds it."""
    if name in LIMITS:
        least, most = LIMITS[name]
        numbers = value if name == "image_size" and isinstance(value, list | tuple) else [value]
        fine = all(type(number) is int and least <= number <= most for number in numbers)
        if not fine or len(numbers) not in (1, 2):
            raise InvalidCheckpoint(
                f"Config field {called} must be a whole number from {least} to {most}, not {shown(value)}."
            )
        if name == "channels" and value == 2:
            raise InvalidCheckpoint(f"Config field {called} must be 1 (grey) or 3 (colour), not 2.")
    elif name in ("eps", "dropout", "drop_path", "layer_scale"):
        number = type(value) in (int, float) and -1e3 <= value <= 1e3  # type: ignore[operator]
        if not number and not (name == "layer_scale" and value is None):
            raise InvalidCheckpoint(f"Config field {called} must be a small number, not {shown(value)}.")
    elif name == "qkv_bias":
        if type(value) is not bool:
            raise InvalidCheckpoint(f"Config field {called} must be true or false, not {shown(value)}.")
    elif name == "prefix":
        names = value if isinstance(value, list | tuple) else [None]
        if len(names) > MAX_PREFIX or not all(
            isinstance(n, str) and re.fullmatch(r"[a-z0-9_]{1,32}", n) for n in names
        ):
            raise InvalidCheckpoint(f"Config field {called} must name at most {MAX_PREFIX} tokens, not {shown(value)}.")
    elif not isinstance(value, str):
        raise InvalidCheckpoint(f"Config field {called} must be a word, not {shown(value)}.")


def needed(tensors: Tensors, name: str, ndim: int) -> Tensor:
    """The tensor of that name, or a sentence that says it is missing or of the wrong shape."""
    if name not in tensors:
        raise InvalidCheckpoint(f"The weights are incomplete: `{name}` is missing.")
    if tensors[name].ndim != ndim:
        raise InvalidCheckpoint(f"`{name}` has the wrong shape: {tuple(tensors[name].shape)}.")
    return tensors[name]


def shown(value: object) -> str:
    """Something from a file, short and printable."""
    text = value if isinstance(value, str) else repr(value) if not isinstance(value, int) else hex_or_int(value)
    text = "".join(c if c.isprintable() else "?" for c in text[:60])
    return text.replace("`", "'")


def hex_or_int(value: int) -> str:
    """A whole number, short even if it has a million digits."""
    return str(value) if abs(value) < 1 << 63 else "a number beyond 64 bits"
