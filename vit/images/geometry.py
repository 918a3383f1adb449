"""Map patches of a model's input to the original picture, without torch."""

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

    >>> Geometry(40, 20, Box(10, 0, 30, 20)).patch_box(0, 1, rows=2, cols=2)
    Box(left=20.0, top=0.0, right=30.0, bottom=10.0)
    """

    width: int
    height: int
    box: Box

    def patch_box(self, row: int, col: int, rows: int, cols: int) -> Box:
        """Return the rectangle of the original picture [px] that patch (row, col) of rows x cols covers."""
        left, top, right, bottom = self.box
        width, height = (right - left) / cols, (bottom - top) / rows
        return Box(left + col * width, top + row * height, left + (col + 1) * width, top + (row + 1) * height)

    def patch_at(self, x: float, y: float, rows: int, cols: int) -> tuple[int, int] | None:
        """Return (row, col) of the patch at a point of the original picture [px]; None outside the model's input."""
        left, top, right, bottom = self.box
        if not (left <= x < right and top <= y < bottom):
            return None
        row, col = int((y - top) / (bottom - top) * rows), int((x - left) / (right - left) * cols)
        return min(row, rows - 1), min(col, cols - 1)
