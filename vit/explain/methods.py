"""Registry of explanation methods. Each method returns one number per token.

Pages, command line, ranking, model cards and exports read `METHODS`. A method is one function in this
file, and its keyword-only arguments are its settings. The module does not import torch, so that pages that list methods
load quickly.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from vit import explain
from vit.explain import maps
from vit.explain.settings import BEST_MAP_MASKS, DEFAULTS, Direction, Fusion

if TYPE_CHECKING:
    from torch import Tensor

    from vit.explain.recorded_pass import RecordedPass


Query = int | None  # token index, or None for the model's output
Unit = Literal["weight", "share"]  # attention weight, or share of the whole map


@dataclass(frozen=True)
class Method:
    """An explanation method.

    Attributes:
        title: display name.
        sentence: description in one sentence.
        compute: maps a recorded pass, a query, a direction and settings to (N,) numbers in any unit, at least 0 unless
            `signed`; `weights` normalises those of class-specific methods.
        of_class: whether the map depends on the class.
        of_tokens: whether single tokens can be explained.
        settings: names and default values.
        passes: approximate number of forward passes beyond those of the record.
        signed: whether numbers can be negative, for tokens that speak against the class.
        own_passes: whether it runs its own passes, and needs no backward pass in the record.
    """

    title: str
    sentence: str
    compute: Callable[..., Tensor]
    of_class: bool
    of_tokens: bool
    settings: Mapping[str, Any]
    passes: int = 0
    signed: bool = False
    own_passes: bool = False

    @property
    def unit(self) -> Unit:
        """Unit of the result of `weights`."""
        return "share" if self.of_class else "weight"


METHODS: dict[str, Method] = {}


def weights(
    recorded: RecordedPass, name: str, query: Query = None, direction: Direction = "from", **settings: Any
) -> Tensor:
    """Compute a method's number for each token: (N,).

    Class-specific methods sum gradients of a logit, whose scale is not comparable between pictures. Their results are
    normalised to shares of the whole map, prefix tokens included, whose absolute values sum to 1, or to 0 if no token
    matters for the class. Other results are attention weights: those of "from" sum to 1, those of "to" need not.

    Args:
        name: in `METHODS`.
        query: token to explain; None for the model's output.
        direction: of a query token; ignored for the model's output.
        settings: non-default settings, see `Method.settings`.

    Raises:
        KeyError: unknown method.
        ValueError: unknown token, block, head or setting; or a query for a method that explains the class only.
    """
    method = METHODS[name]
    if query is not None and not method.of_tokens:
        raise ValueError(f"{method.title} explains the class as a whole, not a token.")
    for setting in settings:
        if setting not in method.settings:
            raise ValueError(f"{method.title} has no setting {setting}.")
    numbers = method.compute(recorded, query, "from" if query is None else direction, **settings)
    return shares(numbers) if method.of_class else numbers


def shares(numbers: Tensor) -> Tensor:
    """Normalise numbers (N,) so that their absolute values sum to 1; zeros if all are 0."""
    return numbers / numbers.abs().sum().clamp_min(1e-30)


def heatmap_of(
    recorded: RecordedPass, name: str, query: Query = None, direction: Direction = "from", **settings: Any
) -> Tensor:
    """Compute the map of a method, (rows, cols), not scaled for display; see `weights`."""
    return recorded.heatmap(weights(recorded, name, query, direction, **settings))


def method(
    name: str,
    title: str,
    sentence: str,
    *,
    of_class: bool = True,
    of_tokens: bool = True,
    passes: int = 0,
    signed: bool = False,
    own_passes: bool = False,
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Register a function of recorded pass, query and direction in `METHODS`; keyword-only arguments are settings."""

    def register(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
        parameters = inspect.signature(compute).parameters.values()
        settings = {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}
        METHODS[name] = Method(title, sentence, compute, of_class, of_tokens, settings, passes, signed, own_passes)
        return compute

    return register


# --- Methods, in display order ----------------------------------------------------------------------------------


@method(
    "attention",
    "Raw attention",
    "Attention of the last block, mean of heads.",
    of_class=False,
)
def attention(
    recorded: RecordedPass,
    query: Query,
    direction: Direction,
    *,
    block: int | Fusion = -1,
    head: int | Fusion = "mean",
) -> Tensor:
    """Return raw attention of one token, or of the tokens that the head reads; of one block and head, or fused.

    Args:
        query: token to explain; None for the model's output.
        direction: "from" for attention from the token to others, "to" for attention from others to it.
        block, head: an index, negative from the end, or how to fuse all of them: first heads, then blocks.
            For the model's output, block -1 is the pooling query if the model has one.

    Returns:
        (N,) weights; those of "from" sum to 1 unless maps were fused by "max" or "min".

    Raises:
        ValueError: unknown token, block or head.
    """
    record = recorded.record
    if query is None and block == -1 and record.pool_attention is not None:
        return maps.select_head(record.pool_attention, head)
    return record.weights(record.read if query is None else query, block, head, direction)


@method(
    "rollout",
    "Rollout",
    "Attention multiplied through all blocks; every token keeps half of itself in each.",
    of_class=False,
)
def rollout(
    recorded: RecordedPass,
    query: Query,
    direction: Direction,
    *,
    residual: float = DEFAULTS.residual,
    fusion: Fusion = DEFAULTS.fusion,
    discard: float = DEFAULTS.discard,
) -> Tensor:
    """Multiply attention through all blocks; every token keeps a share of itself.

    Args:
        query: token to explain; None for the model's output, which starts at the tokens that the head reads.
        direction: "from" for the tokens that contributed to the query, "to" for the tokens that it contributed to.
        residual: share that every token keeps of itself in each block, 0 to 1.
        fusion: how a block's heads are fused.
        discard: share of each row's weakest patches that is discarded, in [0, 1).

    Returns:
        (N,); sums to 1 for "from".

    Raises:
        ValueError: unknown token, or `discard` is out of range.

    Source: Abnar & Zuidema 2020, arXiv 2005.00928, eq. 1.
    """
    start = recorded.record.read if query is None else query
    return recorded.record.rollout(start, residual, direction, fusion, discard)


@method(
    "attnlrp",
    "AttnLRP",
    "The output, traced back to the patches: what speaks for it and what against it (Achtibat et al. 2024).",
    of_tokens=False,
    signed=True,
    own_passes=True,
)
def attnlrp(
    recorded: RecordedPass, query: Query, direction: Direction, *, start_block: int = DEFAULTS.start_block
) -> Tensor:
    """Propagate the class's logit back to the tokens that enter a block, layer by layer. Runs its own passes.

    Args:
        query, direction: ignored; the method explains the class only.
        start_block: block whose input tokens are explained; negative from the end.

    Returns:
        (N,), in units of the class's logit; negative for tokens that speak against the class.

    Raises:
        ValueError: unknown block.

    Source: Achtibat et al. 2024, arXiv 2402.05602, see `vit.explain.lrp`.
    """
    inputs = recorded.model, recorded.pixels, recorded.target
    return explain.attnlrp(*inputs, start_block, recorded.hook)


@method(
    "attention-gradient",
    "Attention × gradient",
    "Attention where more of it would raise the output, mean of all blocks and heads.",
)
def attention_gradient(
    recorded: RecordedPass,
    query: Query,
    direction: Direction,
    *,
    block: int | Fusion = "mean",
    head: int | Fusion = "mean",
) -> Tensor:
    """Compute attention times the positive part of its gradient, of one block and head, or fused.

    Args:
        query: token to explain; None for the model's output.
        direction: "from" for attention from the token to others, "to" for attention from others to it.
        block, head: an index, negative from the end, or how to fuse all of them: first heads, then blocks.

    Returns:
        (N,), at least 0, in units of the class's logit.

    Raises:
        ValueError: unknown token, block or head.

    Source: Chefer et al. 2021, arXiv 2103.15679, eq. 5 for a single block.
    """
    return recorded.record.attention_gradient(query, block, head, direction)


@method(
    "attention-gradient-last",
    "Attention × gradient, last block",
    "Attention where more of it would raise the output, last block, mean of heads.",
    of_tokens=False,  # if the head reads only the class token, other rows of the last block have no gradient
)
def attention_gradient_last(recorded: RecordedPass, query: Query, direction: Direction) -> Tensor:
    """Compute attention of the last block times the positive part of its gradient, averaged over heads.

    Args:
        query, direction: ignored; the method explains the class only.

    Returns:
        (N,), at least 0, in units of the class's logit.
    """
    return recorded.record.attention_gradient(None, -1)


@method(
    "input-gradient",
    "Attention × input gradient",
    "Raw attention times the gradient of the output by each patch's pixels.",
)
def input_gradient(recorded: RecordedPass, query: Query, direction: Direction) -> Tensor:
    """Compute attention of the last block times the norm of the class logit's gradient by each patch's pixels.

    Args:
        query: token to explain; None for the model's output.
        direction: "from" for attention from the token to others, "to" for attention from others to it.

    Returns:
        (N,), at least 0; 0 for prefix tokens.

    Raises:
        ValueError: unknown token.
    """
    return recorded.record.last_attention(query, direction) * recorded.record.input_gradient


@method(
    "gradient-rollout",
    "Gradient rollout",
    "Rollout of attention times its gradient.",
)
def gradient_rollout(
    recorded: RecordedPass,
    query: Query,
    direction: Direction,
    *,
    discard: float = DEFAULTS.discard,
    start_block: int = DEFAULTS.start_block,
) -> Tensor:
    """Compute the rollout of attention times its gradient, averaged over heads; tokens keep half of themselves.

    Args:
        query: token to explain; None for the model's output, which starts at the tokens that the head reads.
        direction: "from" for the tokens that contributed to the query, "to" for the tokens that it contributed to.
        discard: share of each row's weakest patches that is discarded, in [0, 1).
        start_block: first block that is included; negative from the end.

    Returns:
        (N,), at least 0; sums to 1 for "from".

    Raises:
        ValueError: unknown token or block, or `discard` is out of range.

    Source: jacobgil/vit-explain, see `GradientRecord.gradient_rollout`.
    """
    return recorded.record.gradient_rollout(query, direction, discard, start_block)


@method(
    "relevance",
    "Relevance",
    "Attention times the positive part of its gradient, added up through all blocks (Chefer et al. 2021).",
)
def relevance(
    recorded: RecordedPass, query: Query, direction: Direction, *, start_block: int = DEFAULTS.start_block
) -> Tensor:
    """Accumulate attention times the positive part of its gradient through all blocks.

    The identity that the relevance matrix starts from is subtracted, because it would dominate the map of a token.

    Args:
        query: token to explain; None for the model's output, which starts at the tokens that the head reads.
        direction: "from" for the token's row of the relevance matrix, "to" for its column.
        start_block: first block that is included; negative from the end.

    Returns:
        (N,), at least 0, not normalised.

    Raises:
        ValueError: unknown token or block.

    Source: Chefer et al. 2021, arXiv 2103.15679, eq. 5 and 6, see `GradientRecord.relevance`.
    """
    return recorded.record.relevance(query, direction, start_block, own=False)


@method(
    "relevance-rollout",
    "Relevance and rollout",
    "What both maps agree on: their geometric mean.",
)
def relevance_rollout(
    recorded: RecordedPass,
    query: Query,
    direction: Direction,
    *,
    start_block: int = DEFAULTS.start_block,
    residual: float = DEFAULTS.residual,
    fusion: Fusion = DEFAULTS.fusion,
    discard: float = DEFAULTS.discard,
) -> Tensor:
    """Compute the geometric mean of `relevance` and `rollout`: 0 where either is 0.

    Args:
        query: token to explain; None for the model's output, which starts at the tokens that the head reads.
        direction: "from" for the tokens that contributed to the query, "to" for the tokens that it contributed to.
        start_block: see `relevance`.
        residual, fusion, discard: see `rollout`.

    Returns:
        (N,), at least 0, not normalised.

    Raises:
        ValueError: unknown token or block, or `discard` is out of range.
    """
    return maps.geometric_mean(
        relevance(recorded, query, direction, start_block=start_block),
        rollout(recorded, query, direction, residual=residual, fusion=fusion, discard=discard),
    )


@method(
    "legrad",
    "LeGrad",
    "Gradient of the output by attention, positive part, mean of all blocks (Bousselham et al. 2024).",
    of_tokens=False,
    own_passes=True,
)
def legrad(
    recorded: RecordedPass, query: Query, direction: Direction, *, start_block: int = DEFAULTS.start_block
) -> Tensor:
    """Average the positive gradients of the class by attention over all blocks. Runs its own passes.

    Args:
        query, direction: ignored; the method explains the class only.
        start_block: first block that is included; negative from the end.

    Returns:
        (N,), at least 0, not normalised.

    Raises:
        ValueError: unknown block.

    Source: Bousselham et al. 2024, arXiv 2404.03214, see `vit.explain.relevance.legrad`.
    """
    return explain.legrad(recorded.model, recorded.pixels, recorded.target, start_block, recorded.hook)


@method(
    "gradcam",
    "Grad-CAM",
    "Channels of the last block's tokens, weighted by the gradient of the output (Selvaraju et al. 2017).",
    of_tokens=False,
    own_passes=True,
)
def gradcam(recorded: RecordedPass, query: Query, direction: Direction, *, block: int | Fusion = -1) -> Tensor:
    """Compute Grad-CAM on the input tokens of a block's attention. Runs its own passes.

    Args:
        query, direction: ignored; the method explains the class only.
        block: an index, negative from the end, or how to fuse all of them.

    Returns:
        (N,), at least 0, not normalised.

    Raises:
        ValueError: unknown block.

    Source: Selvaraju et al. 2017, arXiv 1610.02391, see `vit.explain.gradcam`.
    """
    return explain.grad_cam(recorded.model, recorded.pixels, recorded.target, block, recorded.hook)


@method(
    "removal",
    "Removal",
    "How much each patch contributes when random parts of the picture are hidden: the most faithful method, but slow.",
    of_tokens=False,
    passes=256,
    signed=True,
    own_passes=True,
)
def removal(recorded: RecordedPass, query: Query, direction: Direction) -> Tensor:
    """Fit a ridge regression of the class's drop on the removed patches. Runs 256 passes.

    Args:
        query, direction: ignored; the method explains the class only.

    Returns:
        (N,), in units of the class's log-probability; negative for patches without which the class gains; 0 for prefix
        tokens.

    Source: see `vit.explain.faithfulness_correlation.removal_map`.
    """
    return explain.removal_map(recorded.model, recorded.pixels, recorded.explained, recorded.hook, recorded.progress)


@method(
    "best",
    "Best map",
    "AttnLRP, corrected by what happens when random parts of the picture are hidden.",
    of_tokens=False,
    passes=BEST_MAP_MASKS,
    signed=True,
    own_passes=True,
)
def best(recorded: RecordedPass, query: Query, direction: Direction, *, masks: int = BEST_MAP_MASKS) -> Tensor:
    """Correct the map of AttnLRP by the drops of the class under random masks.

    Args:
        query, direction: ignored; the method explains the class only.
        masks: number of masks, each a forward pass.

    Returns:
        (N,), in units of the class's log-probability; negative for patches that speak against the class; 0 for prefix
        tokens.

    Source: see `vit.explain.kriging`.
    """
    inputs = recorded.model, recorded.pixels, recorded.explained
    return explain.best_map(*inputs, masks, recorded.hook, recorded.progress)
