"""Every way to explain a prediction that the app offers, by name; each gives one number per token.

The table itself needs no torch: a page that lists the methods opens at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from vit.explain.settings import ROLLOUT, Direction, Fusion, Tuning

if TYPE_CHECKING:
    from torch import Tensor

    from vit.explain.record import Precision
    from vit.explain.relevance import GradientRecord
    from vit.model.transformer import Change, VisionTransformer


@dataclass(frozen=True)
class Subject:
    """A picture that was asked about one class.

    Attributes:
        model: that answered.
        pixels: (1, channels, height, width).
        kept: of the pass forward, and back from the class; the latter not where it was asked `without_class`.
        change: of what the model's heads give, as in `relevance_record`.
    """

    model: VisionTransformer
    pixels: Tensor
    kept: GradientRecord
    change: Change | None = None

    @classmethod
    def of(
        cls, model: VisionTransformer, pixels: Tensor, target: int | None = None, change: Change | None = None
    ) -> Subject:
        """Run the picture through the model and back; see `relevance_record`."""
        from vit.explain.relevance import relevance_record

        return cls(model, pixels, relevance_record(model, pixels, target, change), change)

    @classmethod
    def without_class(
        cls, model: VisionTransformer, pixels: Tensor, precision: Precision = "float32", change: Change | None = None
    ) -> Subject:
        """Run the picture through the model only, which is enough for methods that are not of a class."""
        from vit.explain.record import record

        return cls(model, pixels, cast("GradientRecord", record(model, pixels, precision, change)), change)


Query = int | None  # a token, or the class itself
USUAL = Tuning()


class Method(NamedTuple):
    """A way to explain.

    Attributes:
        title: for people.
        words: what it does, one sentence.
        weights: of a subject, a token (None for the class itself), a direction and settings: (N,), at least 0.
        of_class: it differs from class to class.
        of_tokens: it can be asked about any token.
        settings: those of `Tuning` that mean something to it.
        layers: the block and the head that it takes, of methods that can take others, see `of_layers`.
    """

    title: str
    words: str
    weights: Callable[[Subject, Query, Direction, Tuning], Tensor]
    of_class: bool = True
    of_tokens: bool = True
    settings: tuple[str, ...] = ()
    layers: Mapping[str, int | Fusion] = MappingProxyType({})


def weights(
    subject: Subject, name: str, query: Query = None, direction: Direction = "from", tuning: Tuning = USUAL
) -> Tensor:
    """What a method gives each token, (N,); page, command line and ranking ask here.

    Args:
        query: the token asked about; None for the class itself.
        direction: of a token; the class itself only looks.

    Raises:
        KeyError: there is no such method.
        ValueError: there is no such token, or the method can be asked about the class only.
    """
    method = METHODS[name]
    if query is not None and not method.of_tokens:
        raise ValueError(f"{method.title} explains the class as a whole, not a token.")
    return method.weights(subject, query, "from" if query is None else direction, tuning)


def heatmap(
    subject: Subject, name: str, query: Query = None, direction: Direction = "from", tuning: Tuning = USUAL
) -> Tensor:
    """The map of a method, (rows, cols), before any scaling for display; see `weights`."""
    return subject.kept.heatmap(weights(subject, name, query, direction, tuning))


def of_layers(subject: Subject, name: str, query: Query, direction: Direction, layers: Mapping[str, Any]) -> Tensor:
    """What a method gives each token, (N,), of another block or head than usual.

    Args:
        layers: "block" and "head", of those in `Method.layers`; those left out are as usual.

    Raises:
        KeyError: the method has no such choice.
        ValueError: there is no such token, block or head.
    """
    kept, layers = subject.kept, {**METHODS[name].layers, **layers}
    if name == "attention":
        return kept.weights(kept.read if query is None else query, direction=direction, **layers)
    if name == "attention-gradient":
        return kept.attention_gradient(query, direction=direction, **layers)
    return {"gradcam": kept.gradcam}[name](**layers)


def _rollout(subject: Subject, query: Query, direction: Direction, tuning: Tuning) -> Tensor:
    start = subject.kept.read if query is None else query
    return subject.kept.rollout(start, tuning.residual, direction, tuning.fusion, tuning.discard)


def _relevance(subject: Subject, query: Query, direction: Direction, tuning: Tuning) -> Tensor:
    return subject.kept.relevance(query, direction, tuning.start_block, own=False)


def _legrad(subject: Subject, query: Query, direction: Direction, tuning: Tuning) -> Tensor:
    from vit.explain.relevance import legrad

    return legrad(subject.model, subject.pixels, subject.kept.target, tuning.start_block, subject.change)


def _both(subject: Subject, query: Query, direction: Direction, tuning: Tuning) -> Tensor:
    from vit.explain.maps import geometric_mean

    return geometric_mean(*(one(subject, query, direction, tuning) for one in (_relevance, _rollout)))


METHODS: dict[str, Method] = {
    "attention": Method(
        "Raw attention",
        "The last block, mean of heads: where the model looks last.",
        lambda subject, query, direction, _: subject.kept.last_attention(query, direction),
        of_class=False,
        layers={"block": -1, "head": "mean"},
    ),
    "rollout": Method(
        "Rollout",
        "Attention multiplied through all blocks, half of every token staying.",
        _rollout,
        of_class=False,
        settings=ROLLOUT,
    ),
    "attention-gradient": Method(
        "Attention × gradient",
        "Attention where more of it would raise the class, mean of all blocks and heads.",
        lambda subject, query, direction, _: subject.kept.attention_gradient(query, direction=direction),
        layers={"block": "mean", "head": "mean"},
    ),
    "attention-gradient-last": Method(
        "Attention × gradient, last block",
        "Attention where more of it would raise the class, last block, mean of heads.",
        lambda subject, query, direction, _: subject.kept.attention_gradient(None, -1),
        of_tokens=False,  # where the head reads the class token alone, no other row of the last block plays a part
    ),
    "input-gradient": Method(
        "Attention × input gradient",
        "Raw attention, times how strongly each patch's pixels move the class.",
        lambda subject, query, direction, _: (
            subject.kept.last_attention(query, direction) * subject.kept.input_gradient
        ),
    ),
    "gradient-rollout": Method(
        "Gradient rollout",
        "Rollout of attention times its gradient.",
        lambda subject, query, direction, tuning: subject.kept.gradient_rollout(
            query, direction, tuning.discard, tuning.start_block
        ),
        settings=("discard", "start_block"),
    ),
    "relevance": Method(
        "Relevance",
        "Attention times the positive part of its gradient, added up through all blocks (Chefer et al. 2021).",
        _relevance,
        settings=("start_block",),
    ),
    "relevance-rollout": Method(
        "Relevance and rollout",
        "What both maps agree on: their geometric mean.",
        _both,
        settings=("start_block", *ROLLOUT),
    ),
    "legrad": Method(
        "LeGrad",
        "What the class would gain by more attention, mean of all blocks (Bousselham et al. 2024).",
        _legrad,
        of_tokens=False,
        settings=("start_block",),
    ),
    "gradcam": Method(
        "Grad-CAM",
        "Channels of the last block's tokens, weighed by what the class gains by them (Selvaraju et al. 2017).",
        lambda subject, query, direction, _: subject.kept.gradcam(),
        of_tokens=False,
        layers={"block": -1},
    ),
}
