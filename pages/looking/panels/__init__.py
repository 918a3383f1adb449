"""Parts of page Explore: the controls above the viewer, and the panels below it."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
