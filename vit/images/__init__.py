"""Decode untrusted pictures, preprocess them for models, and map patches back to pixels."""

from typing import TYPE_CHECKING

from vit.lazy import names_of

if TYPE_CHECKING:
    from vit.images.files.decode import decode_frames
    from vit.images.preprocess import Preprocess

__all__, __getattr__ = names_of(__name__, __path__)
