"""Modules in memory: find the ViT in them, and compare its pass with ours."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
