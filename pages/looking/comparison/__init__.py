"""Page Compare: two maps side by side, and contact sheets of many pictures."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)  # both modules import PyTorch
