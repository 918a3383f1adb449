"""Every way to explain a prediction that the app offers, by name; each gives one number per token."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from vit.attention import Direction, geometric_mean
from vit.model import VisionTransformer
from vit.relevance import GradientRecord, legrad, relevance_record


@dataclass(frozen=True)
class Subject:
    """A picture that was asked about one class.

    Attributes:
        model: that answered.
        pixels: (1, channels, height, width).
        kept: of the pass forward, and back from the class.
    """

    model: VisionTransformer
    pixels: Tensor
    kept: GradientRecord

    @classmethod
    def of(cls, model: VisionTransformer, pixels: Tensor, target: int | None = None) -> "Subject":
        """Run the picture through the model and back; see `relevance_record`."""
        return cls(model, pixels, relevance_record(model, pixels, target))


class Method(NamedTuple):
    """A way to explain.

    Attributes:
        title: for people.
        words: what it does, one sentence.
        weights: of a subject, a token (None for the class itself) and a direction: (N,), at least 0.
        of_class: it differs from class to class.
        of_tokens: it can be asked about any token.
    """

    title: str
    words: str
    weights: Callable[[Subject, int | None, Direction], Tensor]
    of_class: bool = True
    of_tokens: bool = True


def heatmap(subject: Subject, name: str, query: int | None = None, direction: Direction = "from") -> Tensor:
    """The map of a method, (rows, cols), before any scaling for display.

    Raises:
        KeyError: there is no such method.
        ValueError: there is no such token, or the method can be asked about the class only.
    """
    method = METHODS[name]
    if query is not None and not method.of_tokens:
        raise ValueError(f"{method.title} explains the class as a whole, not a token.")
    return subject.kept.heatmap(method.weights(subject, query, direction))


def _attention(subject: Subject, query: int | None, direction: Direction) -> Tensor:
    kept = subject.kept
    if query is not None:
        return kept.weights(query, direction=direction)
    if kept.pool_attention is not None:  # the last to look is the pooling query
        return kept.pool_attention.mean(0)
    weights = torch.zeros_like(kept.read)
    for start, rows in kept.row_chunks(kept.blocks - 1):  # (H, R, N)
        weights += (kept.read[start : start + rows.shape[1]] @ rows).mean(0)
    return weights


def _rollout(subject: Subject, query: int | None, direction: Direction) -> Tensor:
    return subject.kept.rollout(subject.kept.read if query is None else query, direction=direction)


def _both(subject: Subject, query: int | None, direction: Direction) -> Tensor:
    return geometric_mean(subject.kept.relevance(query, direction), _rollout(subject, query, direction))


METHODS: dict[str, Method] = {
    "attention": Method(
        "Raw attention", "The last block, mean of heads: where the model looks last.", _attention, of_class=False
    ),
    "rollout": Method(
        "Rollout", "Attention multiplied through all blocks, half of every token staying.", _rollout, of_class=False
    ),
    "attention-gradient": Method(
        "Attention × gradient",
        "Attention where more of it would raise the class, mean of all blocks and heads.",
        lambda subject, query, direction: subject.kept.attention_gradient(query, direction=direction),
    ),
    "attention-gradient-last": Method(
        "Attention × gradient, last block",
        "Attention where more of it would raise the class, last block, mean of heads.",
        lambda subject, query, direction: subject.kept.attention_gradient(None, -1),
        of_tokens=False,  # where the head reads the class token alone, no other row of the last block plays a part
    ),
    "gradient-rollout": Method(
        "Gradient rollout",
        "Rollout of attention times its gradient.",
        lambda subject, query, direction: subject.kept.gradient_rollout(query, direction),
    ),
    "relevance": Method(
        "Relevance",
        "Attention times the positive part of its gradient, added up through all blocks (Chefer et al. 2021).",
        lambda subject, query, direction: subject.kept.relevance(query, direction),
    ),
    "relevance-rollout": Method(
        "Relevance and rollout", "What both maps agree on: their geometric mean.", _both
    ),
    "legrad": Method(
        "LeGrad",
        "What the class would gain by more attention, mean of all blocks (Bousselham et al. 2024).",
        lambda subject, query, direction: legrad(subject.model, subject.pixels, subject.kept.target),
        of_tokens=False,
    ),
    "gradcam": Method(
        "Grad-CAM",
        "Channels of the last block's tokens, weighed by what the class gains by them (Selvaraju et al. 2017).",
        lambda subject, query, direction: subject.kept.gradcam(),
        of_tokens=False,
    ),
}  # fmt: skip
