"""Training: an attempt of a run, its training loop, and the files it writes to the run's folder."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
