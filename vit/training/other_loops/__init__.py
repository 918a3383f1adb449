"""Runs of other training loops, which page Runs shows: Lightning, transformers, or somebody's own."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
