"""Classes from outside a checkpoint: from typed phrases (`text`), from labelled pictures (`examples`)."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
