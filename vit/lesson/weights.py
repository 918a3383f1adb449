"""Quantise a model's weights for the lesson, so that the file is small enough for e-mail, without visible error.

Each row of a matrix is stored as integers of `BITS` bits and one scale. `benchmarks/lesson.py` measures the error of
maps and predictions. `vit/lesson/web/weights.js` reads the weights.
"""

import zlib
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer

BITS = 21
MIDDLE = 1 << (BITS - 1)  # the integer that represents 0
_MIN_QUANTISED = 1024  # elements; smaller tensors, such as biases, are stored as float32
_MAX_TOKENS = 256  # with more, the viewer needs queries and keys instead of maps


class PackedWeights(NamedTuple):
    """Packed weights of a model.

    Attributes:
        tensors: `name`, `rows`, `cols` and whether it is `rounded`, in storage order.
        packed: deflated: float32 numbers, then the lowest, middle and highest bytes of all integers.
    """

    tensors: list[dict[str, Any]]
    packed: bytes


def pack_weights(model: VisionTransformer) -> PackedWeights:
    """Quantise and pack the weights of a model that `unsupported_reason` accepts."""
    tensors: list[dict[str, Any]] = []
    exact: list[np.ndarray] = []
    whole: list[np.ndarray] = []
    for name, tensor in _tensors(model).items():
        matrix = tensor.detach().float().cpu().numpy().astype(np.float64)
        rounded = matrix.size >= _MIN_QUANTISED
        tensors.append({"name": name, "rows": matrix.shape[0], "cols": matrix.shape[1], "rounded": rounded})
        if not rounded:
            exact.append(matrix)
            continue
        steps = (np.abs(matrix).max(1, keepdims=True) / (MIDDLE - 1)).astype(np.float32)
        exact.append(steps)
        whole.append(np.rint(matrix / np.maximum(steps, np.finfo(np.float32).tiny)).astype(np.int64) + MIDDLE)
    numbers = np.concatenate([np.empty(0, np.int64), *(part.ravel() for part in whole)])
    planes = b"".join((numbers >> shift & 255).astype(np.uint8).tobytes() for shift in (0, 8, 16))
    # Weights do not repeat, so Huffman coding alone compresses better than with string matching: it shortens the
    # highest bytes.
    deflate = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS, 9, zlib.Z_HUFFMAN_ONLY)
    content = np.concatenate([part.ravel() for part in exact]).astype("<f4").tobytes() + planes
    return PackedWeights(tensors, deflate.compress(content) + deflate.flush())


def unpack_weights(weights: PackedWeights) -> dict[str, np.ndarray]:
    """Unpack weights, (rows, cols) by name, like `weights.js`."""
    content = zlib.decompress(weights.packed)
    count = sum(one["rows"] * (1 if one["rounded"] else one["cols"]) for one in weights.tensors)
    exact = np.frombuffer(content, "<f4", count)
    planes = np.frombuffer(content, np.uint8, offset=4 * count).reshape(3, -1).astype(np.int64)
    whole = planes[0] + (planes[1] << 8) + (planes[2] << 16) - MIDDLE
    tensors = {}
    for one in weights.tensors:
        rows, cols = one["rows"], one["cols"]
        size = rows * cols
        if one["rounded"]:
            steps, exact = exact[:rows, None].astype(np.float64), exact[rows:]
            tensors[one["name"]] = (whole[:size].reshape(rows, cols) * steps).astype(np.float32)
            whole = whole[size:]
        else:
            tensors[one["name"]], exact = exact[:size].reshape(rows, cols), exact[size:]
    return tensors


def unsupported_reason(config: ViTConfig) -> str:
    """Return why `vit/lesson/web/transformer.js` does not support a model; "" if it does."""
    if config.activation != "gelu" or config.gated_mlp:
        return "its MLP is not a plain MLP with GELU"
    norms = config.norm_pre or config.post_norm or config.attn_norm or config.mlp_norm
    if config.rope is not None or config.position_bias or norms or config.pre_logits:
        return "it has layers that the lesson does not support"
    if config.pool not in ("cls", "mean"):
        return f"its pooling is {config.pool!r}"
    return f"it has {config.tokens} tokens, of {_MAX_TOKENS} at most" if config.tokens > _MAX_TOKENS else ""


def _tensors(model: VisionTransformer) -> dict[str, Tensor]:
    """Return every weight as a matrix (outputs, inputs); biases and scales are single rows."""
    state, config = dict(model.state_dict()), model.config
    dim = config.dim
    for block in range(config.depth):
        at = f"blocks.{block}"
        for scale, layer in (("scale1", "attn.proj"), ("scale2", "mlp.fc2")):  # fold LayerScale into the layer before
            if (factor := state.pop(f"{at}.{scale}", None)) is not None:
                state[f"{at}.{layer}.weight"] = state[f"{at}.{layer}.weight"] * factor[:, None]
                state[f"{at}.{layer}.bias"] = state[f"{at}.{layer}.bias"] * factor
        if not config.qkv_bias:
            state[f"{at}.attn.qkv.bias"] = torch.zeros(3 * dim)
    if not config.patch_bias:
        state["patch_embed.bias"] = torch.zeros(dim)
    if config.norm == "none":
        state |= {"norm.weight": torch.ones(dim), "norm.bias": torch.zeros(dim)}
    shapes = {"prefix_tokens": (-1, dim), "pos_embed": (-1, dim)}
    return {
        name: tensor.reshape(shapes.get(name, (1 if tensor.ndim == 1 else tensor.shape[0], -1)))
        for name, tensor in state.items()
    }
