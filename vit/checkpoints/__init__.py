"""Read, write, convert and download Vision Transformer checkpoints; files are treated as untrusted."""

from typing import TYPE_CHECKING

from vit.lazy import names_of

if TYPE_CHECKING:
    from vit.checkpoints.catalog import find_checkpoint, list_folders
    from vit.checkpoints.checkpoint import Checkpoint, CheckpointInfo
    from vit.checkpoints.load import list_checkpoints, load_checkpoint, summarise
    from vit.checkpoints.save import record_facts, save_checkpoint

__all__, __getattr__ = names_of(__name__, __path__)
