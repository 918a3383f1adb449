"""Ways out of the viewer: figures, tables, animations, contact sheets and code."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
