"""Google's `.npz` files of the Vision Transformer, from google-research/vision_transformer and big_vision.

JAX multiplies from the other side, so matrices are transposed. Those of queries, keys and values are (D, H, K), which
gives the number of heads. timm reads these files, too; where it deviates from Google's code, this module follows timm
and reports the difference.
"""

import re
from collections.abc import Callable
from typing import Any

from torch import Tensor

from vit.checkpoints.families.family import Family
from vit.checkpoints.families.tensor_shapes import Tensors, concatenate, needed
from vit.errors import InvalidCheckpoint
from vit.images.preprocess import Preprocess
from vit.model.config import MAX_DEPTH, ViTConfig

_ATTENTION = (("q", "query"), ("k", "key"), ("v", "value"), ("proj", "out"))
# ours, theirs, inside a block. flax numbers the layers: all together in Google's first code, by type in big_vision
_IN_BLOCK = tuple(
    pair
    for attention, norm, mlp in ((1, 2, 3), (0, 1, 0))
    for pair in (
        ("norm1", "LayerNorm_0"),
        *((f"attn.{ours}", f"MultiHeadDotProductAttention_{attention}/{theirs}") for ours, theirs in _ATTENTION),
        ("norm2", f"LayerNorm_{norm}"),
        ("mlp.fc1", f"MlpBlock_{mlp}/Dense_0"),
        ("mlp.fc2", f"MlpBlock_{mlp}/Dense_1"),
    )
)
# ours, theirs
_LAYERS = (
    ("patch_embed", "embedding"),
    *((f"blocks.{{i}}.{ours}", f"Transformer/encoderblock_{{i}}/{theirs}") for ours, theirs in _IN_BLOCK),
    *((f"blocks.{ours}", f"Transformer/encoderblock/{theirs}") for ours, theirs in _IN_BLOCK),  # blocks stacked
    ("norm", "Transformer/encoder_norm"),
    *((f"pool.{ours}", f"MAPHead_0/MultiHeadDotProductAttention_0/{theirs}") for ours, theirs in _ATTENTION),
    ("pool.norm", "MAPHead_0/LayerNorm_0"),
    ("pool.mlp.fc1", "MAPHead_0/MlpBlock_0/Dense_0"),
    ("pool.mlp.fc2", "MAPHead_0/MlpBlock_0/Dense_1"),
    ("pre_logits", "pre_logits"),
    ("head", "head"),
)
KEYS = (
    ("prefix.cls", "cls"),
    ("pos_embed", "Transformer/posembed_input/pos_embedding"),
    ("pos_embed", "pos_embedding"),
    ("pool.probe", "MAPHead_0/probe"),
    *(
        (f"{ours}.{end}", f"{theirs}/{name}")
        for ours, theirs in _LAYERS
        for end, name in (("weight", "kernel"), ("weight", "scale"), ("bias", "bias"))
    ),
)

# our name -> number of dimensions of their array, and its conversion
_TURNS: tuple[tuple[str, int, Callable[[Tensor], Tensor]], ...] = (
    (r"patch_embed\.weight", 4, lambda kernel: kernel.permute(3, 2, 0, 1)),  # (height, width, channels, D)
    (r".*\.[qkv]\.weight", 3, lambda kernel: kernel.flatten(1).T),  # (D, H, K)
    (r".*\.[qkv]\.bias", 2, lambda bias: bias.flatten()),  # (H, K)
    (r".*\.proj\.weight", 3, lambda kernel: kernel.flatten(0, 1).T),  # (H, K, D)
    (r"(.*\.fc[12]|pre_logits|head)\.weight", 2, lambda kernel: kernel.T),
)


def _adjust(tensors: Tensors) -> tuple[Tensors, dict[str, Any]]:
    if "pos_embed" not in tensors:
        raise InvalidCheckpoint("The file has no position embeddings. Computed ones (sincos2d) are not supported.")
    _split_blocks(tensors)
    fields: dict[str, Any] = {"heads": _count_heads(tensors)}
    if "prefix.cls" in tensors and "pool.probe" not in tensors:
        fields["pool"] = "cls"  # Google's code creates the token only if the head reads it
    turned = {}
    for name in list(tensors):
        for pattern, ndim, turn in _TURNS:
            if re.fullmatch(pattern, name):
                turned[name] = turn(needed(tensors, name, ndim)).contiguous()
                break
        else:
            turned[name] = tensors[name]
        del tensors[name]  # avoid holding the weights twice
    for end in ("weight", "bias"):
        if f"pool.k.{end}" in turned and f"pool.v.{end}" in turned:
            turned[f"pool.kv.{end}"] = concatenate([turned.pop(f"pool.k.{end}"), turned.pop(f"pool.v.{end}")])
    return turned, fields


def _split_blocks(tensors: Tensors) -> None:
    """Split tensors that contain all blocks into one per block."""
    for name in [name for name in tensors if re.match(r"blocks\.\D", name)]:
        blocks = tensors.pop(name)
        if blocks.ndim == 0 or len(blocks) > MAX_DEPTH:
            raise InvalidCheckpoint(f"`{name}` has the wrong shape: {tuple(blocks.shape)}.")
        for i, block in enumerate(blocks):
            own = f"blocks.{i}.{name.removeprefix('blocks.')}"
            if own in tensors:
                raise InvalidCheckpoint(f"The file holds `{own}` twice, on its own and with those of all blocks.")
            tensors[own] = block


def _count_heads(tensors: Tensors) -> int:
    """Infer the number of heads, which must be equal in all blocks."""
    names = [name for name in tensors if re.fullmatch(r".*\.[qkv]\.weight", name)]
    counts = {needed(tensors, name, 3).shape[1] for name in names}
    if len(counts) != 1:
        what = "differ in their number of attention heads" if counts else "have no attention"
        raise InvalidCheckpoint(f"The weights cannot be opened: the blocks {what}.")
    return counts.pop()


def _preprocess(config: ViTConfig, file: str) -> tuple[Preprocess, str]:
    half = (0.5,) * config.channels
    shorter = int(min(config.image_size) / 0.9)
    why = (
        f"The file does not state its preprocessing; timm's for Google's models is used: shorter side to {shorter} px, "
        "the centre, bicubic, mean and deviation 0.5."
    )
    return Preprocess(config.image_size, "shortest", shorter, "bicubic", half, half, rounding="even"), why


FAMILY = Family(
    name="Google",
    signature=r"^embedding/kernel$",
    keys=KEYS,
    fixed={"eps": 1e-6, "position_resize": "bilinear"},  # flax's default; timm's choice for these files
    assumed={
        "activation": (
            "gelu",
            "The activation is not in the file; exact GELU is used, as by timm. Google's code computes the tanh "
            "approximation of it, which moves logits by about a ten-thousandth.",
        ),
    },
    adjust=_adjust,
    preprocess=_preprocess,
)
FAMILIES = (FAMILY,)
