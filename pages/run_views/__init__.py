"""What is seen of runs: curves, attention over epochs, actions, results, several runs compared."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
