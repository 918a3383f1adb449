"""Classes from outside a checkpoint: from phrases (`text`), labelled pictures (`examples`), or one (`similarity`)."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
