"""One picture through one checkpoint, with everything a page shows of it, at a size whose cost is known before."""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from PIL import Image

from vit.checkpoints.checkpoint import Checkpoint
from vit.devices import memory
from vit.errors import InvalidImage
from vit.explain.cost import Size, count_tokens, pass_memory
from vit.explain.input_sizes import FACTORS, SIDES, SMALL_SIDE, enlarged_size, resized, size_near
from vit.explain.record import AttentionRecord, Precision, record
from vit.explain.record import answered as record_answered
from vit.explain.timing import Kind, doing, expected, products
from vit.images.decode import decode_frames
from vit.images.geometry import Geometry
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.view.overlay import COLORMAPS
from vit.view.payload import MAPS_UP_TO, pack

MAX_TOKENS = 16_448  # of one picture; a 128 x 128 grid and its prefix
MAX_PAYLOAD = 600_000_000  # [bytes] to the browser; .streamlit/config.toml lets messages of that size pass
COPIES = 7  # of the payload, as they were seen at once: one is made here, Streamlit makes the others on the way


class Prediction(NamedTuple):
    """A class and how probable the model finds it, 0 to 1."""

    label: str
    probability: float


@dataclass(frozen=True)
class Explanation:
    """What the explorer knows about one picture.

    Attributes:
        picture: RGB, upright, original size.
        preprocess: as it was for this picture, of the size that was asked for.
        input_image: what the model saw of it.
        geometry: where that lies in the original.
        record: attention on demand.
        probabilities: of every class, in the model's order; of a model without labels too.
        predictions: every class, most probable first; none of a model whose outputs are no classes.
        payload: the bytes that the viewer draws from, see `vit.view.payload`.
    """

    picture: Image.Image
    preprocess: Preprocess
    input_image: Image.Image
    geometry: Geometry
    record: AttentionRecord
    probabilities: tuple[float, ...]
    predictions: tuple[Prediction, ...]
    payload: bytes


class Cost(NamedTuple):
    """What a picture costs at some input size, estimated.

    Attributes:
        tokens: N, prefix included.
        memory: most that it takes beside the model, on the way to the browser included [bytes].
        payload: what the browser gets [bytes].
        problem: why this size is not possible, "" if it is.
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
    """Classify a picture and keep its attention.

    Args:
        checkpoint: what to ask.
        image: the bytes of a file that `decode_frames` reads.
        size: (height, width) of the model's input in whole patches, see `sizes`; None for the checkpoint's own.
            At others position embeddings are interpolated.
        precision: see `record`.
        frame: of an animation or a video, from 0.
        stretch: see `decode_image`.

    Raises:
        InvalidImage: the bytes are neither picture nor video, or the input is too large, see `cost`.
        ValueError: the size is not made of whole patches.
    """
    return explain_picture(checkpoint, next(decode_frames(image, [frame], stretch)).picture, size, precision)


def explain_picture(
    checkpoint: Checkpoint, picture: Image.Image, size: Size | None = None, precision: Precision = "float32"
) -> Explanation:
    """As `explain`, of a picture that is open.

    Args:
        picture: RGB, upright.
    """
    preprocess = resized(checkpoint.preprocess, size or checkpoint.preprocess.size)
    if problem := _size_problem(checkpoint.config, preprocess.size, precision):
        raise InvalidImage(problem)
    with _timing(checkpoint, preprocess.size, precision):
        recorded = record(checkpoint.model, preprocess(picture), precision)
        shares, predictions = _predictions(checkpoint, recorded)
        geometry = preprocess.geometry(picture)
        payload = pack(recorded, picture, geometry.box, COLORMAPS)
    input_image = preprocess.input_image(picture)
    return Explanation(picture, preprocess, input_image, geometry, recorded, shares, predictions, payload)


def answered(explanation: Explanation, checkpoint: Checkpoint) -> Explanation:
    """The same pass, with a checkpoint's answers: what differs between two checkpoints of one `body`.

    Args:
        explanation: by any checkpoint of the same body.
        checkpoint: whose head reads what came out of the pass.
    """
    recorded = record_answered(explanation.record, checkpoint.model)
    shares, predictions = _predictions(checkpoint, recorded)
    return replace(explanation, record=recorded, probabilities=shares, predictions=predictions)


def _predictions(checkpoint: Checkpoint, recorded: AttentionRecord) -> tuple[tuple[float, ...], tuple[Prediction, ...]]:
    """The probability of every class, and of a model with labels those by how probable they are."""
    probabilities = checkpoint.model.probabilities(recorded.logits[0])
    order = probabilities.sort(descending=True)
    ranked = zip(order.values.tolist(), order.indices.tolist(), strict=True) if checkpoint.labels else ()
    return tuple(probabilities.tolist()), tuple(Prediction(checkpoint.labels[i], p) for p, i in ranked)


# --- Sizes ----------------------------------------------------------------------------------------------------


def sizes(checkpoint: Checkpoint) -> list[Size]:
    """Input sizes to offer, the checkpoint's own and larger ones, as far as they are possible."""
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
    """Return what `explain` will need with these arguments.

    Raises:
        ValueError: the size is not made of whole patches.
    """
    config, tokens = checkpoint.config, count_tokens(checkpoint.config, size)
    needed = _memory_needed(config, tokens, precision)
    return Cost(tokens, needed, _payload_bytes(config, tokens), _size_problem(config, size, precision))


def expected_seconds(checkpoint: Checkpoint, size: Size) -> float:
    """Estimate how long `explain` will take [s]; the first call for a model runs a small picture through it.

    Returns 0 for a pass of up to `_NOT_TIMED` operations: measuring it would take longer than the pass itself.
    """
    if products(checkpoint.config, size) <= _NOT_TIMED:
        return 0.0
    return expected(checkpoint.model, Kind(_KIND, size), 1, lambda pixels: _time_one(checkpoint, pixels), per_batch=1)


_KIND = "picture"
_NOT_TIMED = 50e9  # multiplications and additions, about a second of a two-core CPU; ViT-B/16 at 224 px has 35e9


def _time_one(checkpoint: Checkpoint, pixels: torch.Tensor) -> None:
    """What takes long in `explain`."""
    recorded = record(checkpoint.model, pixels)
    height, width = pixels.shape[2:]
    pack(recorded, Image.new("RGB", (width, height)), (0, 0, width, height), COLORMAPS)


def _timing(checkpoint: Checkpoint, size: Size, precision: Precision) -> AbstractContextManager[None]:
    """Remember how long a picture took, in the precision that estimates are of."""
    return doing(checkpoint.model, Kind(_KIND, size), 1) if precision == "float32" else nullcontext()


def _payload_bytes(config: ViTConfig, tokens: int) -> int:
    """Bytes to the browser, but for the picture."""
    per_head = tokens**2 if tokens <= MAPS_UP_TO else 4 * tokens * (config.dim // config.heads)
    return config.depth * config.heads * (per_head + 4 * tokens) + tokens * config.dim


def _memory_needed(config: ViTConfig, tokens: int, precision: Precision) -> int:
    """The larger of what the pass and what the payload takes [bytes]; measured ones were up to 15 % larger."""
    number = 2 if precision == "bfloat16" else 4
    queries_keys = 2 * config.depth * tokens * config.dim * number
    return (
        int(1.15 * (queries_keys + max(pass_memory(config, tokens), COPIES * _payload_bytes(config, tokens))))
        + 50_000_000
    )


def _size_problem(config: ViTConfig, size: Size, precision: Precision = "float32") -> str:
    """Why an input of this size is not possible, "" if it is."""
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
