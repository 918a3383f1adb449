"""Read, write, convert and download Vision Transformer checkpoints; files are treated as untrusted."""

from typing import TYPE_CHECKING

from vit.lazy import names_of

if TYPE_CHECKING:
    from vit.checkpoints.catalog import find_checkpoint
    from vit.checkpoints.checkpoint import Checkpoint
    from vit.checkpoints.load import list_checkpoints, load_checkpoint, summarise
    from vit.checkpoints.save import save_checkpoint

__all__, __getattr__ = names_of(__name__, __path__)
