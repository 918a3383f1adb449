"""New classes for a checkpoint, from phrases (`text`), labelled pictures (`examples`) or one picture (`similarity`)."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
