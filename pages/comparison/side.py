"""One of the two sides that page Compare shows beside each other."""

from dataclasses import dataclass

from pages.looking import class_question
from vit.explain.map_comparison import Layout
from vit.explain.record import AttentionRecord

SIDES = {"a": "Left", "b": "Right"}


@dataclass(frozen=True)
class Side:
    """One of the two.

    Attributes:
        name: "a" or "b", before everything of its own in links.
        payload: from `pages.components.viewer.feed`.
        example: its picture; the checkpoint is None for one of a run.
        facts: what the model answers.
        question: class and method; None where there are no classes.
    """

    name: str
    payload: str
    example: class_question.Example
    facts: str
    question: class_question.Question | None = None

    @property
    def title(self) -> str:
        """For people."""
        return SIDES[self.name]

    @property
    def record(self) -> AttentionRecord:
        """Attention on demand."""
        return self.example.explanation.record

    @property
    def shape(self) -> tuple[int, int, int]:
        """Blocks, heads and tokens."""
        return self.record.blocks, self.record.heads, self.record.tokens

    @property
    def layout(self) -> Layout:
        """Where its tokens lie."""
        return Layout(self.record.prefix, self.record.grid)
