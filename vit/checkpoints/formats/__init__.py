"""Formats of weight files: safetensors, pickles, NumPy archives."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
