"""One picture through one checkpoint, with everything a page shows of it."""

from dataclasses import dataclass, replace
from typing import NamedTuple

from PIL import Image

from vit.attention import AttentionRecord, record
from vit.checkpoints import Checkpoint
from vit.errors import InvalidImage
from vit.images import Geometry, Preprocess, decode_image
from vit.overlay import COLORMAPS
from vit.viewer.payload import pack

MAX_TOKENS = 4200  # of one picture; a 64 x 64 grid and its prefix


class Prediction(NamedTuple):
    """A class and how probable the model finds it, 0 to 1."""

    label: str
    probability: float


@dataclass(frozen=True)
class Explanation:
    """What the explorer knows about one picture.

    Attributes:
        picture: RGB, upright, original size.
        seen: what the model saw of it.
        geometry: where that lies in the original.
        record: attention on demand.
        predictions: every class, most probable first; none of a model whose outputs are no classes.
        payload: for the viewer.
    """

    picture: Image.Image
    seen: Image.Image
    geometry: Geometry
    record: AttentionRecord
    predictions: tuple[Prediction, ...]
    payload: bytes


def explain(checkpoint: Checkpoint, image: bytes, factor: int = 1) -> Explanation:
    """Classify a picture and keep its attention.

    Args:
        checkpoint: what to ask.
        image: the bytes of a picture file.
        factor: enlarge the model's input so many times; position embeddings are interpolated.

    Raises:
        InvalidImage: the bytes are no picture, or the input would have more than `MAX_TOKENS` tokens.
    """
    picture = decode_image(image)
    preprocess = enlarged(checkpoint.preprocess, factor)
    tokens = count_tokens(checkpoint, factor)
    if tokens > MAX_TOKENS:
        raise InvalidImage(
            f"An input of {tokens:,} tokens is too large; {MAX_TOKENS:,} is the limit. Choose a smaller one."
        )
    kept = record(checkpoint.model, preprocess(picture))
    order = kept.logits[0].softmax(0).sort(descending=True)
    ranked = zip(order.values.tolist(), order.indices.tolist(), strict=True) if checkpoint.labels else ()
    predictions = tuple(Prediction(checkpoint.labels[i], p) for p, i in ranked)
    geometry = preprocess.geometry(picture)
    payload = pack(kept, picture, geometry.box, COLORMAPS)
    return Explanation(picture, preprocess.seen(picture), geometry, kept, predictions, payload)


def enlarged(preprocess: Preprocess, factor: int) -> Preprocess:
    """The same cut at `factor` times the input size."""
    height, width = preprocess.size
    assert preprocess.resize_to is not None  # Preprocess sets it
    return replace(preprocess, size=(height * factor, width * factor), resize_to=preprocess.resize_to * factor)


def count_tokens(checkpoint: Checkpoint, factor: int = 1) -> int:
    """N for an input `factor` times the checkpoint's own size."""
    rows, cols = checkpoint.config.grid
    return len(checkpoint.config.prefix) + rows * cols * factor**2
