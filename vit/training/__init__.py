"""Training: one attempt of a run, its loop, and what it leaves in the run's folder."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
