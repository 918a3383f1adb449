"""The Vision Transformer, torch only.

Letters used everywhere in this project:

    B  images in the batch        H  attention heads
    L  blocks                     K  width of one head, D / H
    N  tokens, S + P              M  width of the MLP
    S  prefix tokens (class, registers)
    P  patches, rows x cols       C  classes
    D  width of a token
"""

from typing import TYPE_CHECKING

from vit.lazy import names_of

if TYPE_CHECKING:
    from vit.model.config import ViTConfig
    from vit.model.transformer import VisionTransformer, ViTOutput

__all__, __getattr__ = names_of(__name__, __path__)
