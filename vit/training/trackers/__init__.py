"""Experiment trackers: plug-ins that get a copy of a run's figures, in a process of their own that may fail."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
