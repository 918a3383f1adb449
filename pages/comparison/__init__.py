"""Two maps side by side, and many pictures at once."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)  # both bring PyTorch
