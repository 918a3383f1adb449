"""The training loop: configuration, steps, measures, and the files that it writes to a run's folder."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
