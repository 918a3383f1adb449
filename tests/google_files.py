"""A tiny timm model, and its tensors as in Google's .npz files."""

import re
from typing import Any

import numpy as np
import timm
from tiny import fill
from torch import nn

TINY: dict[str, Any] = dict(img_size=32, patch_size=8, embed_dim=64, depth=2, num_heads=4, num_classes=5)
Arrays = dict[str, np.ndarray]


def timms(**changes: Any) -> nn.Module:
    """A tiny timm model, every parameter random."""
    return fill(timm.models.VisionTransformer(**TINY | changes))


def written(model: Any, start: str = "", big_vision: bool = False, together: bool = False) -> Arrays:
    """Return a timm model's tensors under Google's names: the inverse of timm's `_load_weights`.

    Args:
        start: prefix of all names.
        big_vision: use big_vision's names for layers.
        together: stack the tensors of all blocks into one array.
    """
    state = {name: tensor.numpy() for name, tensor in model.state_dict().items()}
    heads = model.blocks[0].attn.num_heads
    arrays: Arrays = {}

    def norm(ours: str, theirs: str) -> None:
        arrays[f"{theirs}/scale"], arrays[f"{theirs}/bias"] = state[f"{ours}.weight"], state[f"{ours}.bias"]

    def dense(weight: np.ndarray, bias: np.ndarray, theirs: str) -> None:
        arrays[f"{theirs}/kernel"], arrays[f"{theirs}/bias"] = weight.T, bias

    def attention(parts: dict[str, tuple[np.ndarray, np.ndarray]], ours: str, theirs: str) -> None:
        for part, (weight, bias) in parts.items():
            dense(weight, bias, f"{theirs}/{part}")
            arrays[f"{theirs}/{part}/kernel"] = weight.T.reshape(weight.shape[1], heads, -1)
            arrays[f"{theirs}/{part}/bias"] = bias.reshape(heads, -1)
        dense(state[f"{ours}.proj.weight"], state[f"{ours}.proj.bias"], f"{theirs}/out")
        arrays[f"{theirs}/out/kernel"] = arrays[f"{theirs}/out/kernel"].reshape(
            heads, -1, len(state[f"{ours}.proj.bias"])
        )

    def split(ours: str, names: tuple[str, ...]) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        both = (np.split(state[f"{ours}.{end}"], len(names)) for end in ("weight", "bias"))
        return dict(zip(names, zip(*both, strict=True), strict=True))

    def mlp(ours: str, theirs: str) -> None:
        for i in (0, 1):
            dense(state[f"{ours}.fc{i + 1}.weight"], state[f"{ours}.fc{i + 1}.bias"], f"{theirs}/Dense_{i}")

    arrays["embedding/kernel"] = state["patch_embed.proj.weight"].transpose(2, 3, 1, 0)
    arrays["embedding/bias"] = state["patch_embed.proj.bias"]
    if "cls_token" in state:
        arrays["cls"] = state["cls_token"]
    arrays["pos_embedding" if big_vision else "Transformer/posembed_input/pos_embedding"] = state["pos_embed"]
    first, last, third = (0, 1, 0) if big_vision else (1, 2, 3)
    for i in range(len(model.blocks)):
        ours, theirs = f"blocks.{i}", f"Transformer/encoderblock_{i}"
        norm(f"{ours}.norm1", f"{theirs}/LayerNorm_0")
        parts = split(f"{ours}.attn.qkv", ("query", "key", "value"))
        attention(parts, f"{ours}.attn", f"{theirs}/MultiHeadDotProductAttention_{first}")
        norm(f"{ours}.norm2", f"{theirs}/LayerNorm_{last}")
        mlp(f"{ours}.mlp", f"{theirs}/MlpBlock_{third}")
    norm("norm", "Transformer/encoder_norm")
    if "attn_pool.latent" in state:
        arrays["MAPHead_0/probe"] = state["attn_pool.latent"]
        parts = {"query": (state["attn_pool.q.weight"], state["attn_pool.q.bias"])}
        parts |= split("attn_pool.kv", ("key", "value"))
        attention(parts, "attn_pool", "MAPHead_0/MultiHeadDotProductAttention_0")
        norm("attn_pool.norm", "MAPHead_0/LayerNorm_0")
        mlp("attn_pool.mlp", "MAPHead_0/MlpBlock_0")
    if "head.weight" in state:
        dense(state["head.weight"], state["head.bias"], "head")
    if together:
        block = re.compile(r"(Transformer/encoderblock)_\d+/(.*)")
        stacked: dict[str, list[np.ndarray]] = {}
        for name in [name for name in arrays if block.match(name)]:
            stacked.setdefault(block.sub(r"\1/\2", name), []).append(arrays.pop(name))
        arrays |= {name: np.stack(parts) for name, parts in stacked.items()}
    return {start + name: array for name, array in arrays.items()}
