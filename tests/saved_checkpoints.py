"""Save tiny checkpoints, and edit their files."""

import json
from pathlib import Path
from typing import Any

from tiny import LABELS

from vit.checkpoints.save import save_checkpoint
from vit.images.preprocess import Preprocess
from vit.model.transformer import VisionTransformer


def save(folder: Path, model: VisionTransformer, **kwargs: Any) -> Path:
    """Save with matching labels and preprocessing."""
    config = model.config
    half = (0.5,) * config.channels
    return save_checkpoint(
        folder,
        model,
        LABELS[: config.num_classes],
        Preprocess(config.image_size, mean=half, std=half),
        **kwargs,
    )


def edit(path: Path, **changes: Any) -> None:
    """Change top-level fields of a JSON file; None removes one."""
    document = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: value for key, value in document.items() if value is not None}))
