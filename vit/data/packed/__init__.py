"""Many pictures in few files: one module per format, and an index of the pictures' positions."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
