"""A predicted class, apart from `vit.view.explanation`, so that the stored first view needs no torch."""

from typing import NamedTuple


class Prediction(NamedTuple):
    """A class and its predicted probability, 0 to 1."""

    label: str
    probability: float
