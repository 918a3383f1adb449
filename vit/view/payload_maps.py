"""Compute maps from a payload without torch, as the viewer does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from vit.view.payload import unpack

if TYPE_CHECKING:
    from vit.explain.settings import Fusion
    from vit.view.selection import Selection


def weights_of(payload: bytes, selection: Selection) -> np.ndarray:
    """Compute the numbers of a selection (N,) from a payload, in the precision of the payload.

    Supports attention, rollout and the pooling query; attention for other views.
    """
    header, sections = unpack(payload)
    if selection.view == "pool" and "pool" in sections:
        return _fuse_maps(sections["pool"], selection.head)
    blocks = header["blocks"]
    if selection.view == "rollout":
        vector, split, stays = np.zeros(header["tokens"], np.float32), len(header["prefix"]), selection.residual
        vector[selection.token] = 1
        for block in reversed(range(blocks)) if selection.direction == "from" else range(blocks):
            heads = np.stack([_head_matrix(sections, block, head) for head in range(header["heads"])])
            matrix = _discarded(_fuse_maps(heads, selection.fusion), selection.discard, split)
            matrix /= matrix.sum(-1, keepdims=True)
            mixed = vector @ matrix if selection.direction == "from" else matrix @ vector
            vector = stays * vector + (1 - stays) * mixed
        return vector
    chosen = range(blocks) if isinstance(selection.block, str) else [selection.block]
    maps = [
        _fuse_maps(_token_maps(sections, block, selection.token, selection.direction == "to"), selection.head)
        for block in chosen
    ]
    return _fuse_maps(np.stack(maps), selection.block) if isinstance(selection.block, str) else maps[0]


def _fuse_maps(maps: np.ndarray, how: int | Fusion) -> np.ndarray:
    """Select one of several maps (M, ...), or fuse all of them: (...)."""
    if not isinstance(how, str):
        return maps[how]
    return maps.mean(0) if how == "mean" else maps.max(0) if how == "max" else maps.min(0)


def _discarded(rows: np.ndarray, share: float, split: int) -> np.ndarray:
    """Set the weakest patches of each row (N, N) to 0, in place; see `vit.explain.maps.discard_weakest`."""
    count = int(share * (rows.shape[-1] - split))
    if count:
        weakest = np.argpartition(rows[:, split:], count - 1, -1)[:, :count] + split
        np.put_along_axis(rows, weakest, 0, -1)
    return rows


def _token_maps(sections: Mapping[str, np.ndarray], block: int, token: int, to: bool) -> np.ndarray:
    """Compute attention from or to a token in every head of a block: (H, N)."""
    if "maps" not in sections:
        q, k = (sections[name][block].astype(np.float32) for name in ("queries", "keys"))
        scores = np.einsum("hnk,hk->hn", *((q, k[:, token]) if to else (k, q[:, token])))
        return np.exp(scores - (sections["log_sums"][block] if to else sections["log_sums"][block, :, token, None]))
    prefix, scales, maps = (sections[name][block] for name in ("prefix", "scales", "maps"))
    split = prefix.shape[-1]
    if to:
        return prefix[..., token].astype(np.float32) if token < split else maps[..., token - split] / 255 * scales
    return np.concatenate([prefix[:, token], maps[:, token] / 255 * scales[:, token, None]], -1).astype(np.float32)


def _head_matrix(sections: Mapping[str, np.ndarray], block: int, head: int) -> np.ndarray:
    """Compute the attention matrix of a head: (N, N)."""
    if "maps" in sections:
        prefix, scales, maps = (sections[name][block, head] for name in ("prefix", "scales", "maps"))
        return np.concatenate([prefix, maps / 255 * scales[:, None]], -1).astype(np.float32)
    q, k = (sections[name][block, head].astype(np.float32) for name in ("queries", "keys"))
    return np.exp(q @ k.T - sections["log_sums"][block, head][:, None])
