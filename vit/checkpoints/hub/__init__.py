"""Hugging Face Hub: find, download and push checkpoints."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
