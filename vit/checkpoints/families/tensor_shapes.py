"""Names and shapes of tensors: to those of `VisionTransformer`, and the config fields that they determine."""

import math
import re
from collections.abc import Sequence
from functools import reduce
from typing import Any

import torch
from torch import Tensor

from vit.errors import InvalidCheckpoint
from vit.model.config import BiasResize
from vit.untrusted import brief

Tensors = dict[str, Tensor]

MAX_PATCHES = 4096

# Widths for which heads are not 64 wide. Source: timm 1.0.31, every entry of vision_transformer, deit and eva.
_HEADS = {1152: 16, 1280: 16, 1408: 16, 1536: 24, 1664: 16, 1792: 16, 4096: 32}


def reshape(tensors: Tensors, grid: tuple[int, int] | None, placed: bool = False) -> tuple[Tensors, tuple[str, ...]]:
    """Convert renamed tensors to the names and shapes of `VisionTransformer`; also return the names of prefix tokens.

    All tensors become float32, except the matrices of the blocks, which are most of a model: if they are in half
    precision they stay so, and `Linear` casts them in the forward pass. `tensors` is emptied, to avoid holding the
    weights twice.

    Queries, keys and values are fused, as are the two halves of a gated MLP. The position of a prefix token is added to
    the token, as both are constants, so that only patches have positions. The two heads of a distilled model, whose
    outputs are averaged, become one head on both tokens concatenated, with halved weights.

    Args:
        grid: (rows, cols) of patches if a config states them; else the number of patches must be a square.
        placed: positions are rotary or relative, so position embeddings may be missing; they are then zero.

    Raises:
        InvalidCheckpoint: a tensor is missing or has the wrong shape, or two tensors do not fit.
    """
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
            f"The {rows} positions do not fit {expected}, but "
            f"{possible_grids(rows - min(prefix.shape[1], rows - 1))} patches. State the size in a config.json: "
            '{"image_size": [256, 128]} for transformers, {"pretrained_cfg": {"input_size": [3, 256, 128]}} for timm.'
        )
    own = rows - patches  # number of prefix tokens with a position; they come first
    if own:
        prefix = concatenate([added(prefix[:, :own], positions[:, :own]), prefix[:, own:]], 1)
    tensors["prefix_tokens"] = prefix
    tensors["pos_embed"] = positions[:, own:]
    return tensors, names


def check_dtypes(tensors: Tensors) -> None:
    """Raise InvalidCheckpoint for a tensor of integers, complex numbers or small floats, with which torch may fail."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or tensor.itemsize < 2:
            kind = str(tensor.dtype).removeprefix("torch.")
            raise InvalidCheckpoint(
                f"`{brief(name)}` is stored as {kind}; this app reads weights of 16, 32 and 64-bit floats."
            )


_MATRICES = re.compile(r"blocks\.\d+\.(attn\.(q|k|v|qkv|proj)|mlp\.(fc1|fc2|gate|up))\.weight")


def _half_or_float(name: str, tensor: Tensor) -> Tensor:
    return tensor if tensor.itemsize == 2 and _MATRICES.fullmatch(name) else tensor.float()


def concatenate(parts: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Concatenate tensors like `torch.cat`, which on the meta device imports torch's compiler (2 s).

    Raises:
        InvalidCheckpoint: they differ in another dimension, or lack this one.
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
    """Add two tensors; a plain sum on the meta device would import torch's compiler, see `concatenate`."""
    return one if one.is_meta and one.shape == other.shape else one + other


def _fuse_layers(tensors: Tensors, start: str, letters: tuple[str, ...]) -> None:
    """Fuse several linear layers with the same input by concatenating their outputs."""
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
    """Give each block its table of relative position biases, if there are any; also return the config fields.

    Args:
        tensors: renamed; `position_bias` is shared by all blocks.
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
    """Infer (rows, cols) of patches from the number of relative position biases; None if there are none.

    Args:
        hint: (rows, cols) according to a config.

    Raises:
        InvalidCheckpoint: the table fits neither a square picture nor the hint.
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
    """Merge the two heads, (head(cls) + head_dist(dist)) / 2, into one head on [cls, dist].

    Source: DeiT, arXiv 2012.12877, section 4.
    """
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
    """Reshape tokens with any leading dimensions to (1, S, D), and concatenate them."""
    if any(part.ndim == 0 or part.numel() % dim or part.shape[-1] != dim for part in parts):
        raise InvalidCheckpoint("The class token and the patches differ in width.")
    if not parts:
        return torch.zeros(1, 0, dim)
    return concatenate([part.reshape(1, -1, dim) for part in parts], 1)


def infer(
    tensors: Tensors, prefix: tuple[str, ...], grid: tuple[int, int] | None = None, pool: str | None = None
) -> dict[str, Any]:
    """Infer config fields from names and shapes of reshaped tensors.

    Args:
        prefix: names of the prefix tokens, from `reshape`.
        grid: (rows, cols) of patches, as in `reshape`.
        pool: used where the tensors leave the pool open; None if unknown.

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
    rows, cols = grid or (math.isqrt(tensors["pos_embed"].shape[1]),) * 2
    mlp_dim = needed(tensors, "blocks.0.mlp.fc2.weight", 2).shape[1]
    before_head = needed(tensors, "pre_logits.weight", 2) if "pre_logits.weight" in tensors else None
    config = {
        "image_size": (rows * patch.shape[2], cols * patch.shape[2]),
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
    if "blocks.0.scale1" in tensors:
        config["layer_scale"] = 1.0  # any value: it only initialises untrained scales
    if "pool.probe" in tensors:
        config["pool"] = "map_patches" if prefix and pool == "map_patches" else "map"
        pool_mlp_dim = needed(tensors, "pool.mlp.fc2.weight", 2).shape[1]
        config["pool_mlp_dim"] = 0 if pool_mlp_dim == mlp_dim else pool_mlp_dim
    elif head is not None and before_head is None and head.shape[1] == 2 * dim:
        config["pool"] = "cls_dist" if "dist" in prefix else "cls_mean"
    elif "cls" not in prefix:
        config["pool"] = "all" if prefix and pool == "all" else "mean"
    elif pool is not None:
        config["pool"] = pool
    return config


def possible_grids(patches: int) -> str:
    """List the grids with this number of patches, as text, starting with the most square one.

    >>> possible_grids(16)
    '4 x 4, 2 x 8 or 8 x 2'
    """
    sides = [side for side in range(2 if patches > 3 else 1, math.isqrt(patches) + 1) if patches % side == 0]
    grids = [(side, patches // side) for side in reversed(sides or [1])]
    both = [grid for one in grids for grid in dict.fromkeys((one, one[::-1]))][:4]
    words = [f"{rows} x {cols}" for rows, cols in both]
    return " or ".join([", ".join(words[:-1]), words[-1]]) if len(words) > 1 else words[0]


def default_heads(dim: int) -> int | None:
    """Return the number of heads that published models of this width have; None if there is no convention."""
    return _HEADS.get(dim, dim // 64 if dim >= 192 and dim % 64 == 0 else None)


def possible_heads(dim: int) -> tuple[int, ...]:
    """Return the numbers of heads for which a head is 4 to 256 wide.

    >>> possible_heads(48)
    (1, 2, 3, 4, 6, 8, 12)
    """
    return tuple(heads for heads in range(1, dim + 1) if dim % heads == 0 and 4 <= dim // heads <= 256)


def needed(tensors: Tensors, name: str, ndim: int) -> Tensor:
    """Return a tensor that must exist.

    Args:
        ndim: required number of dimensions.

    Raises:
        InvalidCheckpoint: it is missing, is empty, or has another number of dimensions.
    """
    if name not in tensors:
        raise InvalidCheckpoint(f"The weights are incomplete: `{name}` is missing.")
    if tensors[name].ndim != ndim or 0 in tensors[name].shape:
        raise InvalidCheckpoint(f"`{name}` has the wrong shape: {tuple(tensors[name].shape)}.")
    return tensors[name]
