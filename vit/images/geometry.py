"""The position of a model's input in the original picture, without torch."""

from dataclasses import dataclass
from typing import NamedTuple


class Box(NamedTuple):
    """A rectangle in pixels of the original picture, given by its edges: a whole picture is 0, 0, width, height."""

    left: float
    top: float
    right: float
    bottom: float


@dataclass(frozen=True)
class Geometry:
    """Position of the model's input in the original picture.

    Attributes:
        width, height: the original picture [px].
        box: the part of it that the model sees [px].
    """

    width: int
    height: int
    box: Box
