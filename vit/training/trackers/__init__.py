"""Experiment trackers: plug-ins that receive a run's metrics, in a separate process that may fail."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
