"""One of the two sides of page Compare."""

from dataclasses import dataclass

from pages.looking.controls import method_choice
from vit.explain.map_comparison import Layout
from vit.explain.record import AttentionRecord

SIDES = {"a": "Left", "b": "Right"}


@dataclass(frozen=True)
class Side:
    """One of the two sides.

    Attributes:
        name: "a" or "b", the prefix of its query parameters.
        payload: from `pages.components.viewer.feed`.
        example: its picture; the checkpoint is None for an epoch of a run.
        facts: the predictions as text.
        choice: class and method; None without classes.
    """

    name: str
    payload: str
    example: method_choice.Example
    facts: str
    choice: method_choice.MethodChoice | None = None

    @property
    def record(self) -> AttentionRecord:
        """Attention of the picture, computed on demand."""
        return self.example.explanation.record

    @property
    def shape(self) -> tuple[int, int, int]:
        """Blocks, heads and tokens."""
        return self.record.blocks, self.record.heads, self.record.tokens

    @property
    def layout(self) -> Layout:
        """Layout of its tokens."""
        return Layout(self.record.prefix, self.record.grid)
