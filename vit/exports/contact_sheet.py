"""Contact sheets: predictions, confidence, map thumbnails and faithfulness for many pictures."""

import hashlib
import math
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vit.checkpoints.abstention import is_sure
from vit.checkpoints.checkpoint import Checkpoint
from vit.data.datasets import load_dataset
from vit.explain import faithfulness_correlation
from vit.explain.faithfulness_correlation import HELD_OUT, Verdict, random_masks, score_drops
from vit.explain.maps import entropy
from vit.explain.methods import METHODS, heatmap_of
from vit.explain.recorded_pass import RecordedPass
from vit.explain.regions import RegionScore, region_of, region_score
from vit.images.encode import encode_image
from vit.images.files.decode import decode_image
from vit.images.preprocess import Normalise
from vit.model.cost import pass_seconds
from vit.view.overlay import overlay

SHEET_PICTURES = 500  # maximum number of pictures
FEW_PICTURES = 60  # default number of pictures of a dataset
THUMBNAIL_SIDE = 192  # longer side of a thumbnail [px]
WITHOUT_CLASSES = tuple(name for name, method in METHODS.items() if not method.of_class)
MASKS = 128  # masks per picture for its faithfulness
_PASSES = 4  # passes per picture; a backward pass counts as two

Order = Literal["confidence", "entropy", "faithfulness"]


class Picture(NamedTuple):
    """A picture to explain.

    Attributes:
        name: display name; may be "".
        content: contents of a file; or uint8 (channels, height, width) of the model's input size.
        truth: true class; "" if unknown.
        region: bool (height, width) of the model's input, or the file of a mask, see `region_of`; None for none.
    """

    name: str
    content: bytes | Tensor
    truth: str = ""
    region: bytes | Tensor | None = None

    @property
    def digest(self) -> str:
        """SHA-256 of the content."""
        content = self.content if isinstance(self.content, bytes) else self.content.numpy().tobytes()
        return hashlib.sha256(content).hexdigest()


class PictureResult(NamedTuple):
    """Prediction and map of a picture.

    Attributes:
        label: the most probable class, or the first of a model's estimated numbers; "" without classes.
        confidence: its probability, 0 to 1, or the number; None without classes.
        entropy: normalised entropy of the output's attention in the last block, averaged over heads: 0 for one token,
            1 for uniform.
        thumbnail: JPEG of the model's input with the map.
        sure: whether the answer is sure; None if the checkpoint has no threshold, see `vit.checkpoints.abstention`.
        region: the map in the picture's region; None without one.
    """

    label: str
    confidence: float | None
    entropy: float
    thumbnail: bytes
    sure: bool | None = None
    region: RegionScore | None = None


class EvaluatedPicture(NamedTuple):
    """A picture with its prediction and evaluation.

    Attributes:
        correct: whether the prediction is correct; None if the true class is unknown, or not a class of the model.
        verdict: faithfulness of the map; None if not measured.
    """

    picture: Picture
    result: PictureResult
    correct: bool | None
    verdict: Verdict | None = None

    def figure(self, name: Order) -> float | None:
        """Return the value to sort by; None if it was not measured."""
        if name == "faithfulness":
            return self.verdict and self.verdict.correlation
        return self.result.confidence if name == "confidence" else self.result.entropy


def classify_and_explain(checkpoint: Checkpoint, picture: Picture, method: str, **settings: Any) -> PictureResult:
    """Classify a picture and explain the predicted class.

    Args:
        method: in `METHODS`; for a model without classes, in `WITHOUT_CLASSES`.
        settings: of the method, such as block and head; defaults apply to those left out.

    Raises:
        InvalidImage: the file is not a picture, or its mask does not fit.
    """
    pixels, image, region = _open_picture(checkpoint, picture)
    label, confidence, sure = "", None, None
    if checkpoint.labels:
        recorded = RecordedPass.of_class(checkpoint.model, pixels)
        target, logits = recorded.record.target, recorded.record.logits[0]
        label, confidence = checkpoint.labels[target], float(checkpoint.model.probabilities(logits)[target])
        sure = is_sure(float(logits.max()), checkpoint.facts)
    else:
        recorded = RecordedPass.without_class(checkpoint.model, pixels)
    heatmap, attention = heatmap_of(recorded, method, **settings), recorded.record.last_attention()
    thumbnail = _thumbnail(image, heatmap, checkpoint, METHODS[method].signed)
    score = None if region is None else region_score(heatmap, region)
    return PictureResult(label, confidence, float(entropy(attention / attention.sum())), thumbnail, sure, score)


def measure(checkpoint: Checkpoint, picture: Picture, method: str, **settings: Any) -> Verdict:
    """Measure the faithfulness of the predicted class's map with `MASKS` masks.

    Args:
        checkpoint: with classes.
        method: in `METHODS`.
        settings: of the method.

    Raises:
        InvalidImage: the file is not a picture.
    """
    pixels, *_ = _open_picture(checkpoint, picture)
    recorded = RecordedPass.of_class(checkpoint.model, pixels)
    masks = random_masks(math.prod(recorded.record.grid), MASKS, HELD_OUT)
    drops = score_drops(checkpoint.model, pixels, recorded.record.target, masks)
    return faithfulness_correlation.faithfulness_verdict(heatmap_of(recorded, method, **settings), masks, drops)


def evaluate(checkpoint: Checkpoint, picture: Picture, observed: PictureResult) -> EvaluatedPicture:
    """Compare a prediction with the true class."""
    has_truth = picture.truth in checkpoint.labels
    return EvaluatedPicture(picture, observed, observed.label == picture.truth if has_truth else None)


def sort_pictures(judged: Sequence[EvaluatedPicture], by: Order, lowest_first: bool = False) -> list[EvaluatedPicture]:
    """Sort pictures by a measured value; those without a value come last."""

    def key(one: EvaluatedPicture) -> tuple[bool, float]:
        value = one.figure(by)
        return value is None, 0.0 if value is None else value if lowest_first else -value

    return sorted(judged, key=key)


class Means(NamedTuple):
    """Mean values over several pictures.

    Attributes:
        pictures: number of pictures.
        faithfulness: None unless it was measured for all of them.
    """

    pictures: int
    confidence: float
    entropy: float
    faithfulness: float | None


def means(judged: Sequence[EvaluatedPicture]) -> Means | None:
    """Average over pictures with classes; None if there are none."""
    if not judged:
        return None
    confidence, spread = np.array([[one.result.confidence, one.result.entropy] for one in judged], np.float64).mean(0)
    verdicts = [one.verdict.correlation for one in judged if one.verdict]
    faithful = sum(verdicts) / len(verdicts) if len(verdicts) == len(judged) else None
    return Means(len(judged), float(confidence), float(spread), faithful)


def pictures_of(
    checkpoint: Checkpoint, spec: str, root: Path = Path("data"), count: int = FEW_PICTURES
) -> list[Picture]:
    """Load test pictures of a dataset, taken evenly from its classes.

    Raises:
        InvalidDataset: the dataset cannot be read at this model's input size.
    """
    dataset = load_dataset(spec, checkpoint.preprocess, root=root, only="test", at_most=count)
    batches = dataset.test.batches(torch.arange(len(dataset.test.labels)), 1, torch.device("cpu"))
    objects = repeat(None) if dataset.masks is None else dataset.masks
    return [
        Picture(dataset.test.name(place), images[0], dataset.classes[int(labels[0])], region)
        for place, ((images, labels), region) in enumerate(zip(batches, objects, strict=False))
    ]


def seconds(checkpoint: Checkpoint, count: int) -> float:
    """Estimate the duration of `classify_and_explain` for `count` pictures [s]."""
    return pass_seconds(checkpoint.model, checkpoint.preprocess.size, _PASSES * count)


def measuring_seconds(checkpoint: Checkpoint, count: int) -> float:
    """Estimate the duration of `measure` for `count` pictures [s]."""
    each = faithfulness_correlation.seconds(checkpoint.model, checkpoint.preprocess.size, MASKS)
    return seconds(checkpoint, count) + count * each


def _open_picture(checkpoint: Checkpoint, picture: Picture) -> tuple[Tensor, Image.Image, Tensor | None]:
    """Return the model's input, the part of the picture that it shows, at the original resolution, and the region."""
    preprocess = checkpoint.preprocess
    region = picture.region
    if isinstance(picture.content, bytes):
        original = decode_image(picture.content)
        edges = tuple(map(round, preprocess.geometry(original).box))
        if isinstance(region, bytes):
            region = region_of(decode_image(region, stretch=True), original, preprocess)
        return preprocess(original), original.crop((edges[0], edges[1], edges[2], edges[3])), region
    bands = picture.content.permute(1, 2, 0).numpy()
    image = Image.fromarray(bands if bands.shape[2] == 3 else bands[..., 0]).convert("RGB")
    return Normalise(preprocess, picture.content.device)(picture.content[None]), image, cast(Tensor | None, region)


def _thumbnail(image: Image.Image, heatmap: Tensor, checkpoint: Checkpoint, signed: bool) -> bytes:
    height, width = (
        max(1, round(THUMBNAIL_SIDE * side / max(checkpoint.preprocess.size))) for side in checkpoint.preprocess.size
    )
    how = Image.Resampling.NEAREST if max(image.size) < THUMBNAIL_SIDE else Image.Resampling.BICUBIC
    small = image.resize((width, height), how)
    return encode_image(overlay(small, heatmap.numpy(), signed=signed), "JPEG", quality=85)
