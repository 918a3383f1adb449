"""Many pictures at once: what a model makes of each, how sure it is, where it looks, and whether that map is true."""

import hashlib
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vit.checkpoints.checkpoint import Checkpoint
from vit.data.datasets import load_dataset
from vit.explain import sensitivity
from vit.explain.maps import entropy
from vit.explain.methods import METHODS, Subject, heatmap_of
from vit.explain.sensitivity import HELD_OUT, Verdict, random_masks, score_drops
from vit.explain.timing import Kind, doing, expected
from vit.images.decode import decode_image
from vit.images.preprocess import Normalise
from vit.view.overlay import overlay

SHEET_PICTURES = 500  # at most
FEW_PICTURES = 60  # of a dataset, unless more are wanted
THUMBNAIL_SIDE = 192  # longer side of a thumbnail [px]
WITHOUT_CLASSES = tuple(name for name, method in METHODS.items() if not method.of_class)
MASKS = 128  # of each picture, that say whether its map is true
_PASSES = 4  # through the model for each picture, the one back counted as two
_KIND = "sheet"

Order = Literal["confidence", "entropy", "faithfulness"]


class Picture(NamedTuple):
    """A picture that is not looked at yet.

    Attributes:
        name: for people, "" for none.
        content: bytes of a file; or uint8 (channels, height, width) of the model's input size.
        truth: its class, "" where nobody knows.
    """

    name: str
    content: bytes | Tensor
    truth: str = ""

    @property
    def digest(self) -> str:
        """Tells it from all others."""
        content = self.content if isinstance(self.content, bytes) else self.content.numpy().tobytes()
        return hashlib.sha256(content).hexdigest()


class Look(NamedTuple):
    """What a model makes of a picture.

    Attributes:
        label: the most probable class, "" for a model without classes.
        confidence: its probability, 0 to 1; None without classes.
        entropy: spread of the answer's attention in the last block, mean of heads: 0 for one token, 1 for uniform.
        thumbnail: JPEG of what the model saw, under the map.
    """

    label: str
    confidence: float | None
    entropy: float
    thumbnail: bytes


class Judged(NamedTuple):
    """A picture and its look.

    Attributes:
        right: whether the class was found; None where the truth is unknown to us or to the model.
        verdict: whether the map is true of the class; None where that was not measured.
    """

    picture: Picture
    look: Look
    right: bool | None
    verdict: Verdict | None = None

    def figure(self, name: Order) -> float | None:
        """What pictures are ordered by; None where this one has no such figure."""
        if name == "faithfulness":
            return self.verdict and self.verdict.correlation
        return self.look.confidence if name == "confidence" else self.look.entropy


def look(checkpoint: Checkpoint, picture: Picture, method: str, **settings: Any) -> Look:
    """Classify a picture and explain the predicted class.

    Args:
        method: in `METHODS`; of a model without classes, one of `WITHOUT_CLASSES`.
        settings: the method's own, such as block and head of attention; its usual ones where they are left out.

    Raises:
        InvalidImage: the file is no picture.
    """
    with doing(checkpoint.model, Kind(_KIND, checkpoint.preprocess.size), _PASSES):
        return _explain_picture(checkpoint, picture, method, settings)


def _explain_picture(checkpoint: Checkpoint, picture: Picture, method: str, settings: dict[str, Any]) -> Look:
    pixels, image = _open_picture(checkpoint, picture)
    if not checkpoint.labels:
        subject = Subject.without_class(checkpoint.model, pixels)
        attention = subject.record.last_attention()
        heatmap = heatmap_of(subject, method, **settings)
        return Look("", None, _spread(attention), _thumbnail(image, heatmap, checkpoint))
    subject = Subject.of(checkpoint.model, pixels)
    target = subject.record.target
    return Look(
        checkpoint.labels[target],
        float(checkpoint.model.probabilities(subject.record.logits[0])[target]),
        _spread(subject.record.last_attention()),
        _thumbnail(image, heatmap_of(subject, method, **settings), checkpoint),
    )


def measure(checkpoint: Checkpoint, picture: Picture, method: str, **settings: Any) -> Verdict:
    """Whether the map of the predicted class is true of it, by `MASKS` masks.

    Args:
        checkpoint: with classes.
        method: in `METHODS`.
        settings: the method's own.

    Raises:
        InvalidImage: the file is no picture.
    """
    pixels, _ = _open_picture(checkpoint, picture)
    subject = Subject.of(checkpoint.model, pixels)
    masks = random_masks(math.prod(subject.record.grid), MASKS, HELD_OUT)
    drops = score_drops(checkpoint.model, pixels, subject.record.target, masks)
    return sensitivity.judge(heatmap_of(subject, method, **settings), masks, drops)


def judge(checkpoint: Checkpoint, picture: Picture, observed: Look, verdict: Verdict | None = None) -> Judged:
    """Put a look beside the truth."""
    has_truth = picture.truth in checkpoint.labels
    return Judged(picture, observed, observed.label == picture.truth if has_truth else None, verdict)


def arranged(judged: Sequence[Judged], by: Order, lowest_first: bool = False) -> list[Judged]:
    """Order pictures by a figure of what was seen of them; those without one come last."""

    def key(one: Judged) -> tuple[bool, float]:
        value = one.figure(by)
        return value is None, 0.0 if value is None else value if lowest_first else -value

    return sorted(judged, key=key)


class Means(NamedTuple):
    """Figures of several pictures, each the mean of those that have it.

    Attributes:
        pictures: how many.
        faithfulness: None where not all were measured.
    """

    pictures: int
    confidence: float
    entropy: float
    faithfulness: float | None


def means(judged: Sequence[Judged]) -> Means | None:
    """What pictures with classes have in common; None for no picture."""
    if not judged:
        return None
    confidence, spread = np.array([[one.look.confidence, one.look.entropy] for one in judged], np.float64).mean(0)
    verdicts = [one.verdict.correlation for one in judged if one.verdict]
    faithful = sum(verdicts) / len(verdicts) if len(verdicts) == len(judged) else None
    return Means(len(judged), float(confidence), float(spread), faithful)


def pictures_of(
    checkpoint: Checkpoint, spec: str, root: Path = Path("data"), count: int = FEW_PICTURES
) -> list[Picture]:
    """So many test pictures of a dataset, evenly from its classes.

    Raises:
        InvalidDataset: it cannot be read at this model's input size.
    """
    dataset = load_dataset(spec, checkpoint.preprocess, root=root, only="test", at_most=count)
    batches = dataset.test.batches(torch.arange(len(dataset.test.labels)), 1, torch.device("cpu"))
    return [Picture("", images[0], dataset.classes[int(labels[0])]) for images, labels in batches]


def seconds(checkpoint: Checkpoint, count: int) -> float:
    """How long so many pictures will take, estimated [s]."""
    return expected(checkpoint.model, Kind(_KIND, checkpoint.preprocess.size), _PASSES * count)


def measuring_seconds(checkpoint: Checkpoint, count: int) -> float:
    """How long `measure` will take for so many pictures, estimated [s]."""
    each = sensitivity.seconds(checkpoint.model, checkpoint.preprocess.size, MASKS)
    return seconds(checkpoint, count) + count * each


def _open_picture(checkpoint: Checkpoint, picture: Picture) -> tuple[Tensor, Image.Image]:
    """The model's input, and what it shows, in the original's own detail."""
    preprocess = checkpoint.preprocess
    if isinstance(picture.content, bytes):
        original = decode_image(picture.content)
        edges = tuple(map(round, preprocess.geometry(original).box))
        return preprocess(original), original.crop((edges[0], edges[1], edges[2], edges[3]))
    bands = picture.content.permute(1, 2, 0).numpy()
    image = Image.fromarray(bands if bands.shape[2] == 3 else bands[..., 0]).convert("RGB")
    return Normalise(preprocess, picture.content.device)(picture.content[None]), image


def _thumbnail(image: Image.Image, heatmap: Tensor, checkpoint: Checkpoint) -> bytes:
    height, width = (
        max(1, round(THUMBNAIL_SIDE * side / max(checkpoint.preprocess.size))) for side in checkpoint.preprocess.size
    )
    how = Image.Resampling.NEAREST if max(image.size) < THUMBNAIL_SIDE else Image.Resampling.BICUBIC
    small = image.resize((width, height), how)
    out = io.BytesIO()
    overlay(small, heatmap.numpy()).save(out, "JPEG", quality=85)
    return out.getvalue()


def _spread(weights: Tensor) -> float:
    return float(entropy(weights / weights.sum()))
