"""The one table of methods that explain a prediction; each gives one number per token.

Page, command line, ranking, cards, exports and copied code read `METHODS`. A method is one function in this file: what
can be set about it are its keyword arguments, with their defaults. The table needs no torch: a page that lists the
methods opens at once.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal, cast

from vit import explain
from vit.explain import maps
from vit.explain import record as recording
from vit.explain.settings import DEFAULTS, ROLLOUT, Direction, Fusion

if TYPE_CHECKING:
    from torch import Tensor

    from vit.explain.cost import Progress
    from vit.explain.record import Precision
    from vit.explain.relevance import GradientRecord
    from vit.model.attention import Hook
    from vit.model.transformer import VisionTransformer


@dataclass(frozen=True)
class Subject:
    """A picture that was asked about one class.

    Attributes:
        model: that answered.
        pixels: (1, channels, height, width).
        record: of the pass forward, and back from the class; the latter not where it was asked `without_class`.
        hook: on what the model's heads compute with, as in `relevance_record`.
        progress: called with the share that is done, by methods that take many passes.
    """

    model: VisionTransformer
    pixels: Tensor
    record: GradientRecord
    hook: Hook | None = None
    progress: Progress = field(default=lambda share: None, compare=False)

    @classmethod
    def of(
        cls, model: VisionTransformer, pixels: Tensor, target: int | None = None, hook: Hook | None = None
    ) -> Subject:
        """Run the picture through the model and back; see `relevance_record`."""
        return cls(model, pixels, explain.relevance_record(model, pixels, target, hook), hook)

    @classmethod
    def without_class(
        cls, model: VisionTransformer, pixels: Tensor, precision: Precision = "float32", hook: Hook | None = None
    ) -> Subject:
        """Run the picture through the model only, which is enough for methods that are not of a class."""
        return cls(model, pixels, cast("GradientRecord", recording.record(model, pixels, precision, hook)), hook)


Query = int | None  # a token, or the class itself
Unit = Literal["weight", "share"]  # of attention; of the whole map


@dataclass(frozen=True)
class Call:
    """A question to a method, as text of Python.

    Attributes:
        query: "query=3", with its direction where that is not the usual one; "" for the class itself.
        target: the class's index.
        settings: those that are not at their defaults.
    """

    query: str
    target: int
    settings: Mapping[str, Any]

    def arguments(self, *names: str, start: bool = False, more: str = "") -> str:
        """What stands between the brackets of a call.

        Args:
            names: of the settings that it takes.
            start: the call takes no class: where nothing is asked about, it starts at what the head reads.
            more: an argument that is always there.

        >>> Call("", 3, {"start_block": 2}).arguments("start_block", more="own=False")
        'start_block=2, own=False'
        """
        query = self.query or ("query=record.read" if start else "")
        settings = (f"{name}={literal(self.settings[name])}" for name in names if name in self.settings)
        return ", ".join(filter(None, (query, *settings, more)))


def literal(value: str | float) -> str:
    """A value as Python, strings in double quotes where that is as safe.

    >>> literal("cat"), literal('a"b'), literal(3)
    ('"cat"', '\\'a"b\\'', '3')
    """
    plain = isinstance(value, str) and value.isprintable() and not set(value) & set("\"'\\")
    return f'"{value}"' if plain else repr(value)


@dataclass(frozen=True)
class Method:
    """A way to explain.

    Attributes:
        title: for people.
        sentence: what it does.
        compute: of a subject, a token (None for the class itself), a direction and settings: (N,), at least 0, in any
            unit; `weights` makes shares of what is of a class.
        code: the expression that computes the same from a record, as text of Python, in the unit of `compute`.
        of_class: it differs from class to class.
        of_tokens: it can be asked about any token.
        settings: what can be set, with the defaults.
        passes: how many it takes beside those of the record, roughly.
        imports: lines of Python that `code` needs before it, beside `import vit`.
    """

    title: str
    sentence: str
    compute: Callable[..., Tensor]
    code: Callable[[Call], str]
    of_class: bool
    of_tokens: bool
    settings: Mapping[str, Any]
    passes: int = 0
    imports: tuple[str, ...] = ()

    @property
    def unit(self) -> Unit:
        """What `weights` gives numbers in."""
        return "share" if self.of_class else "weight"


METHODS: dict[str, Method] = {}


def weights(subject: Subject, name: str, query: Query = None, direction: Direction = "from", **settings: Any) -> Tensor:
    """What a method gives each token: (N,).

    Methods of a class add up gradients of a logit, whose size means nothing across pictures: theirs are shares of the
    whole map, prefix tokens included, which sum to 1, or to 0 where nothing speaks for the class. The others are
    weights of attention: what a token gives sums to 1, what it receives need not.

    Args:
        name: in `METHODS`.
        query: the token asked about; None for the class itself.
        direction: of a token; the class itself only looks.
        settings: those that are not at their defaults, see `Method.settings`.

    Raises:
        KeyError: there is no such method.
        ValueError: there is no such token, block or head; the method can be asked about the class only, or has no such
            setting.
    """
    method = METHODS[name]
    if query is not None and not method.of_tokens:
        raise ValueError(f"{method.title} explains the class as a whole, not a token.")
    for setting in settings:
        if setting not in method.settings:
            raise ValueError(f"{method.title} has no setting {setting}.")
    numbers = method.compute(subject, query, "from" if query is None else direction, **settings)
    return shares(numbers) if method.of_class else numbers


def shares(numbers: Tensor) -> Tensor:
    """Each number's share of the sum of all of them, (N,) to (N,); zeros where that sum is 0."""
    return numbers / numbers.sum().clamp_min(1e-30)


def heatmap_of(
    subject: Subject, name: str, query: Query = None, direction: Direction = "from", **settings: Any
) -> Tensor:
    """The map of a method, (rows, cols), before any scaling for display; see `weights`."""
    return subject.record.heatmap(weights(subject, name, query, direction, **settings))


def method(
    name: str,
    title: str,
    sentence: str,
    code: Callable[[Call], str],
    *,
    of_class: bool = True,
    of_tokens: bool = True,
    passes: int = 0,
    imports: tuple[str, ...] = (),
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Enter a function of a subject, a token and a direction in the table; its keyword arguments are its settings."""

    def register(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
        parameters = inspect.signature(compute).parameters.values()
        settings = {one.name: one.default for one in parameters if one.kind is one.KEYWORD_ONLY}
        METHODS[name] = Method(title, sentence, compute, code, of_class, of_tokens, settings, passes, imports)
        return compute

    return register


# --- The methods, in the order in which they are offered --------------------------------------------------------


@method(
    "attention",
    "Raw attention",
    "The last block, mean of heads: where the model looks last.",
    lambda call: (
        f"record.weights({call.arguments('block', 'head', start=True)})"
        if call.query or {"block", "head"} & call.settings.keys()
        else "record.last_attention()"
    ),
    of_class=False,
)
def attention(
    subject: Subject,
    query: Query,
    direction: Direction,
    *,
    block: int | Fusion = -1,
    head: int | Fusion = "mean",
) -> Tensor:
    """Attention of one token, or of whatever the head reads, in one head and block or fused.

    Args:
        query: the token asked about; None for the class itself.
        direction: of a token, "from" is where it looks, "to" who looks at it; of the class itself, "from".
        block, head: an index, negative from the end, or how to fuse all of them: first heads, then blocks.
            Block -1 is whatever looks last: the last block, or the pooling query of a model that has one.

    Returns:
        (N,) weights; those of "from" sum to 1 unless maps were fused by "max" or "min".

    Raises:
        ValueError: there is no such token, block or head.
    """
    record = subject.record
    if query is None and block == -1 and record.pool_attention is not None:
        return maps.select_head(record.pool_attention, head)
    return record.weights(record.read if query is None else query, block, head, direction)


@method(
    "rollout",
    "Rollout",
    "Attention multiplied through all blocks, half of every token staying.",
    lambda call: f"record.rollout({call.arguments(*ROLLOUT, start=True)})",
    of_class=False,
)
def rollout(
    subject: Subject,
    query: Query,
    direction: Direction,
    *,
    residual: float = DEFAULTS.residual,
    fusion: Fusion = DEFAULTS.fusion,
    discard: float = DEFAULTS.discard,
) -> Tensor:
    """Attention multiplied through all blocks, a share of every token staying what it is.

    Args:
        query: the token asked about; None for the class itself, which starts at what the head reads.
        direction: "from" is where the token's content came from, "to" which tokens it reached.
        residual: share of every token that stays what it is in each block, 0 to 1.
        fusion: how a block's heads become one.
        discard: share of each row's patches, the weakest, that is left out; at least 0 and under 1.

    Returns:
        (N,); sums to 1 for "from".

    Raises:
        ValueError: there is no such token, or `discard` is no share.

    Source: Abnar & Zuidema 2020, arXiv 2005.00928, eq. 1.
    """
    start = subject.record.read if query is None else query
    return subject.record.rollout(start, residual, direction, fusion, discard)


@method(
    "attention-gradient",
    "Attention × gradient",
    "Attention where more of it would raise the class, mean of all blocks and heads.",
    lambda call: f"record.attention_gradient({call.arguments('block', 'head')})",
)
def attention_gradient(
    subject: Subject,
    query: Query,
    direction: Direction,
    *,
    block: int | Fusion = "mean",
    head: int | Fusion = "mean",
) -> Tensor:
    """Attention times the positive part of its gradient, of one block and head or fused.

    Args:
        query: the token asked about; None for the class itself.
        direction: of a token, "from" is where it looks, "to" who looks at it; of the class itself, "from".
        block, head: an index, negative from the end, or how to fuse all of them: first heads, then blocks.

    Returns:
        (N,), at least 0, in units of the class's logit.

    Raises:
        ValueError: there is no such token, block or head.

    Source: Chefer et al. 2021, arXiv 2103.15679, eq. 5, of one block.
    """
    return subject.record.attention_gradient(query, block, head, direction)


@method(
    "attention-gradient-last",
    "Attention × gradient, last block",
    "Attention where more of it would raise the class, last block, mean of heads.",
    lambda call: "record.attention_gradient(block=-1)",
    of_tokens=False,  # where the head reads the class token alone, no other row of the last block plays a part
)
def attention_gradient_last(subject: Subject, query: Query, direction: Direction) -> Tensor:
    """Attention of the last block, times the positive part of its gradient, mean of heads.

    Args:
        query, direction: play no part; the method is of the class itself.

    Returns:
        (N,), at least 0, in units of the class's logit.
    """
    return subject.record.attention_gradient(None, -1)


@method(
    "input-gradient",
    "Attention × input gradient",
    "Raw attention, times how strongly each patch's pixels move the class.",
    lambda call: f"record.last_attention({call.arguments()}) * record.input_gradient",
)
def input_gradient(subject: Subject, query: Query, direction: Direction) -> Tensor:
    """Raw attention of the last block, times the length of the gradient of the class's logit by each patch's pixels.

    Args:
        query: the token asked about; None for the class itself.
        direction: of a token, "from" is where it looks, "to" who looks at it; of the class itself, "from".

    Returns:
        (N,), at least 0; 0 for prefix tokens.

    Raises:
        ValueError: there is no such token.
    """
    return subject.record.last_attention(query, direction) * subject.record.input_gradient


@method(
    "gradient-rollout",
    "Gradient rollout",
    "Rollout of attention times its gradient.",
    lambda call: f"record.gradient_rollout({call.arguments('discard', 'start_block')})",
)
def gradient_rollout(
    subject: Subject,
    query: Query,
    direction: Direction,
    *,
    discard: float = DEFAULTS.discard,
    start_block: int = DEFAULTS.start_block,
) -> Tensor:
    """Rollout of the mean over heads of attention times its gradient, half of every token staying what it is.

    Args:
        query: the token asked about; None for the class itself, which starts at what the head reads.
        direction: "from" is where the token's content came from, "to" which tokens it reached.
        discard: share of each row's patches, the weakest, that is left out; at least 0 and under 1.
        start_block: blocks before this one, an index that may be negative from the end, are left out.

    Returns:
        (N,), at least 0; sums to 1 for "from".

    Raises:
        ValueError: there is no such token or block, or `discard` is no share.

    Source: jacobgil/vit-explain, see `GradientRecord.gradient_rollout`.
    """
    return subject.record.gradient_rollout(query, direction, discard, start_block)


@method(
    "relevance",
    "Relevance",
    "Attention times the positive part of its gradient, added up through all blocks (Chefer et al. 2021).",
    lambda call: f"record.relevance({call.arguments('start_block', more='own=False')})",
)
def relevance(
    subject: Subject, query: Query, direction: Direction, *, start_block: int = DEFAULTS.start_block
) -> Tensor:
    """Attention times the positive part of its gradient, through all blocks.

    What a token begins with is left out: it would hide the rest of its map.

    Args:
        query: the token asked about; None for the class itself, which starts at what the head reads.
        direction: "from" is the token's row of the relevance matrix, "to" its column.
        start_block: blocks before this one, an index that may be negative from the end, are left out.

    Returns:
        (N,), at least 0, not normalised.

    Raises:
        ValueError: there is no such token or block.

    Source: Chefer et al. 2021, arXiv 2103.15679, eq. 5 and 6, see `GradientRecord.relevance`.
    """
    return subject.record.relevance(query, direction, start_block, own=False)


@method(
    "relevance-rollout",
    "Relevance and rollout",
    "What both maps agree on: their geometric mean.",
    lambda call: f"geometric_mean({METHODS['relevance'].code(call)}, {METHODS['rollout'].code(call)})",
    imports=("from vit.explain import geometric_mean",),
)
def relevance_rollout(
    subject: Subject,
    query: Query,
    direction: Direction,
    *,
    start_block: int = DEFAULTS.start_block,
    residual: float = DEFAULTS.residual,
    fusion: Fusion = DEFAULTS.fusion,
    discard: float = DEFAULTS.discard,
) -> Tensor:
    """The geometric mean of `relevance` and `rollout`: where either has nothing, both have nothing.

    Args:
        query: the token asked about; None for the class itself, which starts at what the head reads.
        direction: "from" is where the token's content came from, "to" which tokens it reached.
        start_block: of `relevance`: blocks before this one are left out.
        residual, fusion, discard: of `rollout`.

    Returns:
        (N,), at least 0, not normalised.

    Raises:
        ValueError: there is no such token or block, or `discard` is no share.
    """
    return maps.geometric_mean(
        relevance(subject, query, direction, start_block=start_block),
        rollout(subject, query, direction, residual=residual, fusion=fusion, discard=discard),
    )


@method(
    "legrad",
    "LeGrad",
    "What the class would gain by more attention, mean of all blocks (Bousselham et al. 2024).",
    lambda call: (
        "vit.legrad("
        + ", ".join(filter(None, ("checkpoint.model, pixels", f"target={call.target}", call.arguments("start_block"))))
        + ")"
    ),
    of_tokens=False,
)
def legrad(subject: Subject, query: Query, direction: Direction, *, start_block: int = DEFAULTS.start_block) -> Tensor:
    """What the class would gain by more attention, mean of all blocks; takes passes of its own.

    Args:
        query, direction: play no part; the method is of the class itself.
        start_block: blocks before this one, an index that may be negative from the end, are left out.

    Returns:
        (N,), at least 0, not normalised.

    Raises:
        ValueError: there is no such block.

    Source: Bousselham et al. 2024, arXiv 2404.03214, see `vit.explain.relevance.legrad`.
    """
    return explain.legrad(subject.model, subject.pixels, subject.record.target, start_block, subject.hook)


@method(
    "gradcam",
    "Grad-CAM",
    "Channels of the last block's tokens, weighed by what the class gains by them (Selvaraju et al. 2017).",
    lambda call: f"record.gradcam({call.arguments('block')})",
    of_tokens=False,
)
def gradcam(subject: Subject, query: Query, direction: Direction, *, block: int | Fusion = -1) -> Tensor:
    """Grad-CAM of the tokens that a block's attention reads.

    Args:
        query, direction: play no part; the method is of the class itself.
        block: an index, negative from the end, or how to fuse all of them.

    Returns:
        (N,), at least 0, not normalised.

    Raises:
        ValueError: there is no such block.

    Source: Selvaraju et al. 2017, arXiv 1610.02391, see `GradientRecord.gradcam`.
    """
    return subject.record.gradcam(block)


@method(
    "removal",
    "Removal",
    "What taking random parts of the picture away says of each patch: the most faithful map of sums, and a slow one.",
    lambda call: f"vit.removal_map(checkpoint.model, pixels, target={call.target})",
    of_tokens=False,
    passes=256,
)
def removal(subject: Subject, query: Query, direction: Direction) -> Tensor:
    """Ridge regression of how far the class drops on the patches that were taken away; takes 256 passes of its own.

    Args:
        query, direction: play no part; the method is of the class itself.

    Returns:
        (N,), at least 0, in units of the class's log-probability; 0 for prefix tokens.

    Source: see `vit.explain.sensitivity.removal_map`.
    """
    return explain.removal_map(subject.model, subject.pixels, subject.record.target, subject.hook, subject.progress)
