"""Attention to take away: every number of a view, with where it came from."""

import io
import json
import platform
from dataclasses import replace
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vit.attention import AttentionRecord
from vit.checkpoints import Checkpoint
from vit.errors import UserError
from vit.explain import Explanation
from vit.images import Geometry
from vit.overlay import COLORMAPS, Colormap, mosaic, overlay
from vit.viewer.payload import unpack
from vit.viewer.selection import Selection

MAX_BYTES = 1 << 30  # bytes of float16 attention in one file


def attention_bytes(record: AttentionRecord) -> int:
    """Size of all attention matrices as float16 [bytes]."""
    return record.blocks * record.heads * record.tokens**2 * 2


def attention_npz(
    record: AttentionRecord, heatmap: Tensor, checkpoint: Checkpoint, geometry: Geometry, view: dict[str, Any]
) -> bytes:
    """Pack a view and all attention behind it.

    Args:
        heatmap: (rows, cols), before any scaling for display.
        view: method, block, head, query and whatever else names the heatmap.

    Returns:
        an NPZ file: `heatmap` (rows, cols) float32, `attention` (L, H, N, N) float16 (absent where `view` names
        another method than "attention"), `logits` (C,), and `meta`, a JSON string.

    Raises:
        UserError: the matrices take more than 1 GB.
    """
    arrays: dict[str, np.ndarray] = {"heatmap": heatmap.float().numpy(), "logits": record.logits[0].float().numpy()}
    if view["method"] == "attention":
        if attention_bytes(record) > MAX_BYTES:
            raise UserError(
                f"All attention of this picture takes {attention_bytes(record) / 1e9:.1f} GB; a file holds 1 GB. "
                "Choose a smaller input size."
            )
        every = np.empty((record.blocks, record.heads, record.tokens, record.tokens), np.float16)
        for block in range(record.blocks):
            every[block] = record.full(block).half().numpy()
        arrays["attention"] = every
    meta = {
        "view": view,
        "prefix": record.prefix,
        "grid": record.grid,
        "labels": checkpoint.labels,
        "checkpoint": {"name": checkpoint.name, "sha256": checkpoint.hash, "config": checkpoint.config.to_dict()},
        "picture": {"width": geometry.width, "height": geometry.height, "box": geometry.box},
        "preprocess": checkpoint.preprocess.to_config(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
    }
    out = io.BytesIO()
    np.savez_compressed(out, **arrays, meta=np.array(json.dumps(meta)))  # type: ignore[arg-type]
    return out.getvalue()


def weights(record: AttentionRecord, selection: Selection) -> Tensor:
    """What the viewer shows for a selection: (N,)."""
    if selection.view == "rollout":
        return record.rollout(selection.token, direction=selection.direction)
    return record.weights(selection.token, selection.block, selection.head, selection.direction)


def overlay_png(explanation: Explanation, selection: Selection) -> bytes:
    """The picture at its original size under the selected map, in the viewer's own colours."""
    record = explanation.record
    numbers = weights(record, selection)
    vmax = _shared_top(explanation, selection)
    if selection.view == "rollout" or selection.scale == "own":
        vmax = _strongest_patch(numbers, record, without=selection.token if selection.view == "rollout" else None)
    return _png(
        overlay(
            explanation.picture,
            record.heatmap(numbers).numpy(),
            explanation.geometry.box,
            opacity=selection.opacity,
            colormap=_colormap(selection),
            smooth=selection.smooth,
            vmax=vmax,
        )
    )


def grid_png(explanation: Explanation, selection: Selection, cell: int = 96) -> bytes:
    """The maps of every head of every block for the selected token, one row per block."""
    record, token = explanation.record, selection.token
    maps = []
    for block in range(record.blocks):
        if selection.direction == "from":
            maps.append(record.rows(block, [token])[:, 0])
        else:
            maps.append(record.columns(block, [token])[:, :, 0])
    return _png(
        mosaic(
            record.heatmap(torch.stack(maps)).numpy(),
            _colormap(selection),
            shared=selection.scale == "shared",
            vmax=_shared_top(explanation, selection) if selection.scale == "shared" else None,
            cell=cell,
        )
    )


def view_npz(explanation: Explanation, selection: Selection, checkpoint: Checkpoint) -> bytes:
    """The selected view and all attention as NPZ; raises UserError as `attention_npz` does."""
    view = {"method": "attention", "block": selection.block, "head": selection.head} | {
        "query": selection.token, "direction": selection.direction,
    }  # fmt: skip
    heatmap = explanation.record.heatmap(weights(explanation.record, replace(selection, view="attention")))
    return attention_npz(explanation.record, heatmap, checkpoint, explanation.geometry, view)


def _shared_top(explanation: Explanation, selection: Selection) -> float:
    """The end of the viewer's shared colour scale for this query."""
    tops = unpack(explanation.payload)[1]["tops"]  # (2, N)
    return float(tops[0 if selection.direction == "from" else 1, selection.token])


def _strongest_patch(numbers: Tensor, record: AttentionRecord, without: int | None) -> float:
    numbers = numbers.clone()
    if without is not None:
        numbers[without] = 0
    return float(record.heatmap(numbers).max())


def _colormap(selection: Selection) -> Colormap:
    return cast(Colormap, selection.colormap) if selection.colormap in COLORMAPS else "viridis"


def _png(picture: Image.Image) -> bytes:
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()
