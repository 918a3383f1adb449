"""Attention to take away: every number of a view, with where it came from."""

import io
import json
import platform
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vit.attention import AttentionRecord, fuse
from vit.checkpoints import Checkpoint
from vit.errors import UserError
from vit.explain import Explanation
from vit.images import Geometry, Preprocess
from vit.overlay import COLORMAPS, Colormap, mosaic, overlay
from vit.viewer.payload import read_header, unpack
from vit.viewer.selection import Selection, View

MAX_BYTES = 1 << 30  # bytes of float16 attention in one file


def attention_bytes(record: AttentionRecord) -> int:
    """Size of all attention matrices as float16 [bytes]."""
    return record.blocks * record.heads * record.tokens**2 * 2


def attention_npz(
    record: AttentionRecord,
    heatmap: Tensor,
    checkpoint: Checkpoint,
    preprocess: Preprocess,
    geometry: Geometry,
    view: dict[str, Any],
    every: bool | None = None,
) -> bytes:
    """Pack a view and all attention behind it.

    Args:
        heatmap: (rows, cols), before any scaling for display.
        preprocess: as it was for this picture, its size above all.
        view: method, block, head, query and whatever else names the heatmap.
        every: put all attention in; left out, only where `view` names the method "attention".

    Returns:
        an NPZ file: `heatmap` (rows, cols) float32, `attention` (L, H, N, N) float16 where asked for, `features`
        (N, D) where the method is "similar", `pool_attention` (H, N) where the model pools by attention, `logits`
        (C,), and `meta`, a JSON string.

    Raises:
        UserError: the matrices take more than 1 GB.
    """
    arrays: dict[str, np.ndarray] = {"heatmap": heatmap.float().numpy(), "logits": record.logits[0].float().numpy()}
    if record.features is not None and view["method"] == "similar":
        arrays["features"] = record.features.float().numpy()
    if record.pool_attention is not None:
        arrays["pool_attention"] = record.pool_attention.float().numpy()
    if view["method"] == "attention" if every is None else every:
        if attention_bytes(record) > MAX_BYTES:
            raise UserError(
                f"All attention of this picture takes {attention_bytes(record) / 1e9:.1f} GB; a file holds 1 GB. "
                "Choose a smaller input size."
            )
        attention = np.empty((record.blocks, record.heads, record.tokens, record.tokens), np.float16)
        for block in range(record.blocks):
            attention[block] = record.full(block).half().numpy()
        arrays["attention"] = attention
    meta = {
        "view": view,
        "prefix": record.prefix,
        "grid": record.grid,
        "labels": checkpoint.labels,
        "checkpoint": {"name": checkpoint.name, "sha256": checkpoint.hash, "config": checkpoint.config.to_dict()},
        "picture": {"width": geometry.width, "height": geometry.height, "box": geometry.box},
        "preprocess": preprocess.to_config(),
        "precision": str(record.queries[0].dtype).removeprefix("torch."),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
    }
    out = io.BytesIO()
    np.savez_compressed(out, **arrays, meta=np.array(json.dumps(meta)))  # type: ignore[arg-type]
    return out.getvalue()


def weights(record: AttentionRecord, selection: Selection) -> Tensor:
    """What the viewer shows for a selection: (N,); attention where the record has nothing for its view."""
    view = _view(record, selection)
    if view == "rollout":
        return record.rollout(selection.token, direction=selection.direction)
    if view == "similar":
        return record.similarity(selection.token)
    if view == "pool":
        heads = cast(Tensor, record.pool_attention)  # (H, N)
        return fuse(heads, selection.head) if isinstance(selection.head, str) else heads[selection.head]
    return record.weights(selection.token, selection.block, selection.head, selection.direction)


def overlay_png(explanation: Explanation, selection: Selection) -> bytes:
    """The picture at its original size under the selected map, in the viewer's own colours."""
    record = explanation.record
    numbers = weights(record, selection)
    low, top = _ends(explanation, selection, numbers)
    return _png(
        overlay(
            explanation.picture,
            record.heatmap(numbers).numpy() - low,
            explanation.geometry.box,
            opacity=selection.opacity,
            colormap=_colormap(selection),
            smooth=selection.smooth,
            vmax=top - low,
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
    record = explanation.record
    method = _view(record, selection)
    names = {
        "attention": ("block", "head", "token", "direction"),
        "rollout": ("token", "direction"),
        "similar": ("token",),
        "pool": ("head",),
    }[method]
    view = {"method": method} | {"query" if name == "token" else name: getattr(selection, name) for name in names}
    heatmap = record.heatmap(weights(record, selection))
    return attention_npz(record, heatmap, checkpoint, explanation.preprocess, explanation.geometry, view, every=True)


def _view(record: AttentionRecord, selection: Selection) -> View:
    """The selected view, or attention where the record has nothing for it."""
    missing = {"similar": record.features is None, "pool": record.pool_attention is None}
    return "attention" if missing.get(selection.view) else selection.view


def _ends(explanation: Explanation, selection: Selection, numbers: Tensor) -> tuple[float, float]:
    """Where the viewer's colours begin and end."""
    record = explanation.record
    view, own = _view(record, selection), selection.scale == "own"
    if view == "similar":
        patches = torch.arange(len(record.prefix), record.tokens)
        others = numbers[patches[patches != selection.token]]
        spread = own and len(others) > 0 and bool(others.max() > others.min())
        return (float(others.min()), float(others.max())) if spread else (0.0, 1.0)
    if view == "rollout" or own:
        return 0.0, _strongest_patch(numbers, record, without=selection.token if view == "rollout" else None)
    if view == "pool":
        return 0.0, read_header(explanation.payload)["pool_top"]
    return 0.0, _shared_top(explanation, selection)


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
