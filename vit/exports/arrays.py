"""The numbers of views, and all attention, as NPZ with their provenance."""

import io
import json
import platform
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vit.checkpoints.checkpoint import Checkpoint
from vit.errors import UserError
from vit.explain.names import page_names
from vit.explain.record import AttentionRecord
from vit.images.geometry import Geometry
from vit.images.preprocess import Preprocess
from vit.view.explanation import Explanation
from vit.view.map_view import MapView, Unit
from vit.view.selection import Selection

MAX_BYTES = 1 << 30  # maximum size of the float16 attention in a file


def attention_bytes(record: AttentionRecord) -> int:
    """Return the size of all attention matrices in float16 [bytes]."""
    return record.blocks * record.heads * record.tokens**2 * 2


def attention_npz(
    record: AttentionRecord,
    heatmap: Tensor,
    checkpoint: Checkpoint,
    preprocess: Preprocess,
    geometry: Geometry,
    view: dict[str, Any],
    unit: Unit,
    every: bool | None = None,
) -> bytes:
    """Write a view and its attention matrices as NPZ.

    Args:
        heatmap: (rows, cols), not scaled for display.
        preprocess: as used for this picture.
        view: facts of the heatmap: method, block, head, query and so on.
        unit: of the heatmap, see `MapView`.
        every: whether to include all attention; None to include it if the method of `view` is "attention".

    Returns:
        an NPZ file: `heatmap` (rows, cols) float32, `attention` (L, H, N, N) float16 if included, `features` (N, D) if
        the method is "similar", `pool_attention` (H, N) if the model has attention pooling, `logits` (C,), and `meta`,
        a JSON string with the provenance and the `unit` of the heatmap.

    Raises:
        UserError: the attention matrices take more than 1 GB.
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
    meta = provenance(record, checkpoint, preprocess, geometry, view) | {"unit": unit}
    out = io.BytesIO()
    np.savez_compressed(out, **arrays, meta=np.array(json.dumps(meta)))  # type: ignore[arg-type]
    return out.getvalue()


def provenance(
    record: AttentionRecord, checkpoint: Checkpoint, preprocess: Preprocess, geometry: Geometry, view: dict[str, Any]
) -> dict[str, Any]:
    """Collect the provenance of the numbers in a file."""
    return {
        "view": view | ({"page": page_names(view)} if page_names(view) else {}),
        "prefix": record.prefix,
        "grid": record.grid,
        "labels": checkpoint.labels,
        "checkpoint": {
            "name": checkpoint.name,
            "sha256": checkpoint.hash,
            "identity": checkpoint.identity,
            "config": checkpoint.config.to_dict(),
        },
        "picture": {"width": geometry.width, "height": geometry.height, "box": geometry.box},
        "preprocess": preprocess.to_config(),
        "precision": str(record.queries[0].dtype).removeprefix("torch."),
        "versions": {"python": platform.python_version(), "torch": torch.__version__, "numpy": np.__version__},
    }


def view_npz(
    explanation: Explanation, selection: Selection, checkpoint: Checkpoint, map_view: MapView | None = None
) -> bytes:
    """Write the selected view and all attention as NPZ.

    Args:
        map_view: the map; None to derive it from the selection.

    Raises:
        UserError: see `attention_npz`.
    """
    record = explanation.record
    map_view = map_view or MapView.of(record, selection)
    heatmap, geometry = record.heatmap(map_view.weights), explanation.geometry
    facts, unit = map_view.facts, map_view.unit
    return attention_npz(record, heatmap, checkpoint, explanation.preprocess, geometry, facts, unit, every=True)
