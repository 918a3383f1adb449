"""Explain one picture with one checkpoint, and estimate the cost of an input size beforehand."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from PIL import Image

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.input_sizes import FACTORS, SIDES, SMALL_SIDE, enlarged_size, resized, size_near
from vit.devices import memory
from vit.errors import InvalidImage
from vit.explain.record import AttentionRecord, Precision, record
from vit.explain.record import with_logits as record_answered
from vit.images.files.decode import decode_frames
from vit.images.geometry import Geometry
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.cost import Size, count_tokens, pass_memory, pass_seconds, products
from vit.view.overlay import COLORMAPS
from vit.view.payload import MAPS_UP_TO, pack
from vit.view.prediction import Prediction

MAX_TOKENS = 16_448  # a 128 x 128 grid with its prefix
MAX_PAYLOAD = 600_000_000  # [bytes]; the message size limit in .streamlit/config.toml
COPIES = 7  # observed simultaneous copies of the payload: one here, the others made by Streamlit


@dataclass(frozen=True)
class Explanation:
    """Predictions and attention of one picture.

    Attributes:
        picture: RGB, upright, original size.
        preprocess: with the requested input size.
        input_image: the model's input, not normalised.
        geometry: position of the input in the original picture.
        record: attention on demand.
        probabilities: of every output, in the model's order, also without labels; numbers if the model estimates some.
        predictions: every class, most probable first, or every number in the model's order; empty without labels.
        logit: the largest one, see `vit.checkpoints.abstention`.
        payload: data for the viewer, see `vit.view.payload`.
    """

    picture: Image.Image
    preprocess: Preprocess
    input_image: Image.Image
    geometry: Geometry
    record: AttentionRecord
    probabilities: tuple[float, ...]
    predictions: tuple[Prediction, ...]
    logit: float
    payload: bytes


class Cost(NamedTuple):
    """Estimated cost of explaining a picture at some input size.

    Attributes:
        tokens: N, prefix included.
        memory: peak memory without the model, including the transfer to the browser [bytes].
        payload: size of the payload [bytes].
        problem: why this size is not possible; "" if it is.
    """

    tokens: int
    memory: int
    payload: int
    problem: str = ""


def explain(
    checkpoint: Checkpoint,
    image: bytes,
    size: Size | None = None,
    precision: Precision = "float32",
    frame: int = 0,
    stretch: bool = False,
) -> Explanation:
    """Classify a picture and record its attention.

    Args:
        checkpoint: model to explain.
        image: contents of a file that `decode_frames` reads.
        size: (height, width) of the model's input in whole patches, see `sizes`; None for the checkpoint's own.
            Position embeddings are interpolated to other sizes.
        precision: see `record`.
        frame: index in an animation or a video, from 0.
        stretch: see `decode_image`.

    Raises:
        InvalidImage: the data is neither a picture nor a video, or the input is too large, see `cost`.
        ValueError: the size is not a multiple of the patch size.
    """
    return explain_picture(checkpoint, next(decode_frames(image, [frame], stretch)).picture, size, precision)


def explain_picture(
    checkpoint: Checkpoint, picture: Image.Image, size: Size | None = None, precision: Precision = "float32"
) -> Explanation:
    """Explain a decoded picture; see `explain`.

    Args:
        picture: RGB, upright.
    """
    preprocess = resized(checkpoint.preprocess, size or checkpoint.preprocess.size)
    if problem := _size_problem(checkpoint.config, preprocess.size, precision):
        raise InvalidImage(problem)
    input_image = preprocess.input_image(picture)
    recorded = record(checkpoint.model, preprocess.normalised(input_image), precision)
    answer = _answer(checkpoint, recorded)
    geometry = preprocess.geometry(picture)
    payload = pack(recorded, picture, geometry.box, COLORMAPS)
    return Explanation(picture, preprocess, input_image, geometry, recorded, *answer, payload)


def with_predictions(explanation: Explanation, checkpoint: Checkpoint) -> Explanation:
    """Replace the predictions by those of another head on the same `body`, without a new forward pass.

    Args:
        explanation: from any checkpoint with the same body.
        checkpoint: provides the head.
    """
    recorded = record_answered(explanation.record, checkpoint.model)
    shares, predictions, logit = _answer(checkpoint, recorded)
    return replace(explanation, record=recorded, probabilities=shares, predictions=predictions, logit=logit)


def _answer(
    checkpoint: Checkpoint, recorded: AttentionRecord
) -> tuple[tuple[float, ...], tuple[Prediction, ...], float]:
    """Return `Explanation.probabilities`, its `predictions`, and the largest logit."""
    logits = recorded.logits[0]
    probabilities = checkpoint.model.probabilities(logits)
    values, ranked = tuple(probabilities.tolist()), probabilities.argsort(descending=True).tolist()
    order = range(len(checkpoint.labels)) if checkpoint.estimates or not checkpoint.labels else ranked
    return values, tuple(Prediction(checkpoint.labels[i], values[i]) for i in order), float(logits.max())


# --- Sizes ----------------------------------------------------------------------------------------------------


def sizes(checkpoint: Checkpoint) -> list[Size]:
    """Return the possible input sizes: the checkpoint's own and larger ones."""
    own = checkpoint.preprocess.size
    larger = (
        [enlarged_size(checkpoint, factor) for factor in FACTORS]
        if min(own) <= SMALL_SIDE
        else [size_near(checkpoint, side) for side in SIDES]
    )
    every = sorted({own, *(size for size in larger if min(size) > min(own))})
    return [size for size in every if size == own or not _size_problem(checkpoint.config, size)]


# --- Costs ----------------------------------------------------------------------------------------------------


def cost(checkpoint: Checkpoint, size: Size, precision: Precision = "float32") -> Cost:
    """Estimate the cost of `explain` with these arguments.

    Raises:
        ValueError: the size is not a multiple of the patch size.
    """
    config, tokens = checkpoint.config, count_tokens(checkpoint.config, size)
    needed = _memory_needed(config, tokens, precision)
    return Cost(tokens, needed, _payload_bytes(config, tokens), _size_problem(config, size, precision))


def expected_seconds(checkpoint: Checkpoint, size: Size) -> float:
    """Estimate how long `explain` will take [s]; the first call for a model times a small picture.

    Returns 0 for a pass of up to `_NOT_TIMED` operations: measuring it would take longer than the pass itself.
    """
    if products(checkpoint.config, size) <= _NOT_TIMED:
        return 0.0
    return pass_seconds(checkpoint.model, size)


_NOT_TIMED = 50e9  # multiply-adds, about a second on a two-core CPU; ViT-B/16 at 224 px has 35e9


def _payload_bytes(config: ViTConfig, tokens: int) -> int:
    """Return the size of the payload without the picture [bytes]."""
    per_head = tokens**2 if tokens <= MAPS_UP_TO else 4 * tokens * (config.dim // config.heads)
    return config.depth * config.heads * (per_head + 4 * tokens) + tokens * config.dim


def _memory_needed(config: ViTConfig, tokens: int, precision: Precision) -> int:
    """Estimate the peak memory of the pass and of the payload [bytes]; adds 15%, the largest error measured."""
    number = 2 if precision == "bfloat16" else 4
    queries_keys = 2 * config.depth * tokens * config.dim * number
    return (
        int(1.15 * (queries_keys + max(pass_memory(config, tokens), COPIES * _payload_bytes(config, tokens))))
        + 50_000_000
    )


def _size_problem(config: ViTConfig, size: Size, precision: Precision = "float32") -> str:
    """Return why an input of this size is not possible; "" if it is."""
    tokens = count_tokens(config, size)
    if tokens > MAX_TOKENS:
        return f"An input of {tokens:,} tokens is too large; {MAX_TOKENS:,} is the limit. Choose a smaller one."
    payload, needed, (_, free) = _payload_bytes(config, tokens), _memory_needed(config, tokens, precision), memory()
    if payload > MAX_PAYLOAD:
        return (
            f"At {tokens:,} tokens this model's queries and keys have {payload / 1e6:,.0f} MB; "
            f"a browser gets at most {MAX_PAYLOAD / 1e6:,.0f}. Choose a smaller input."
        )
    if 0 < free < needed:
        return (
            f"An input of {tokens:,} tokens takes {needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are free. "
            "Choose a smaller one."
        )
    return ""
