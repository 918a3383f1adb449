"""Picture and video files: sniff, check and decode them."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
