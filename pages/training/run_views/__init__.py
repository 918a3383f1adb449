"""Views of runs: curves, attention over epochs, actions, results, comparison of runs, searches."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
