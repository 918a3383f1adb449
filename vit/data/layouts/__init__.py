"""Classes and splits of somebody's folders, tables and lists."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
