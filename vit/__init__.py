"""A Vision Transformer from scratch, and the tools to look inside it.

Everything that a notebook or a page needs is here; nothing of it draws or trains until asked.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vit.archives import ImportedDataset, import_dataset
    from vit.attention import AttentionRecord, record, rollout
    from vit.checkpoints import Checkpoint, find_checkpoint, list_checkpoints, load_checkpoint, save_checkpoint
    from vit.config import ViTConfig
    from vit.errors import InvalidCheckpoint, InvalidConfig, InvalidDataset, InvalidImage, UserError
    from vit.images import Preprocess, decode_image
    from vit.model import VisionTransformer, ViTOutput
    from vit.relevance import GradientRecord, legrad, relevance_record

# Loaded on first use, so that decoding a picture does not wait for torch.
_HOMES = {
    "ImportedDataset": "archives",
    "import_dataset": "archives",
    "AttentionRecord": "attention",
    "record": "attention",
    "rollout": "attention",
    "Checkpoint": "checkpoints",
    "find_checkpoint": "checkpoints",
    "list_checkpoints": "checkpoints",
    "load_checkpoint": "checkpoints",
    "save_checkpoint": "checkpoints",
    "InvalidCheckpoint": "errors",
    "InvalidConfig": "errors",
    "InvalidDataset": "errors",
    "InvalidImage": "errors",
    "UserError": "errors",
    "Preprocess": "images",
    "decode_image": "images",
    "ViTConfig": "config",
    "VisionTransformer": "model",
    "ViTOutput": "model",
    "GradientRecord": "relevance",
    "legrad": "relevance",
    "relevance_record": "relevance",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'vit' has no attribute {name!r}")
    return getattr(import_module(f"vit.{_HOMES[name]}"), name)
