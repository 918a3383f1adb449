"""Training: the loop, runs, engines that compute them, searches, and trackers."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
