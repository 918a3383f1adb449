"""How often is a model right, on pictures it was not trained on."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from vit.checkpoints.checkpoint import Checkpoint
from vit.data.in_parts import InParts, Part, pictures_bar
from vit.data.labels import test_pictures
from vit.data.pictures import Pictures
from vit.images.preprocess import Normalise
from vit.model.transformer import VisionTransformer
from vit.progress import tqdm

_TOGETHER = 500  # pictures


class Evaluation(NamedTuple):
    """Result over a whole split.

    Attributes:
        accuracy: share of pictures whose most probable class is the right one, 0 to 1.
        loss: mean cross-entropy [nats].
        pictures: how many.
    """

    accuracy: float
    loss: float
    pictures: int


@torch.inference_mode()
def evaluate(
    model: VisionTransformer,
    pictures: Pictures,
    normalise: Normalise,
    *,
    device: torch.device,
    batch_size: int = _TOGETHER,
    bar: bool = False,
    tick: Callable[[float], None] = lambda share: None,
) -> Evaluation:
    """Classify every picture of a split, in the model's own precision; the model is left in evaluation mode.

    Args:
        tick: called after every batch with the share of the pictures that were seen, 0 to 1.

    Raises:
        ValueError: there are no pictures.
    """
    count = len(pictures.labels)
    if not count:
        raise ValueError("There are no pictures to evaluate on.")
    model.eval()
    right = torch.zeros((), device=device)
    loss = torch.zeros((), device=device)
    batches = pictures.batches(torch.arange(count), batch_size, device)
    seen = 0
    for images, labels in tqdm(batches, total=-(-count // batch_size), unit="batches", leave=False, disable=not bar):
        logits = model(normalise(images)).logits
        right += (logits.argmax(1) == labels).sum()
        loss += F.cross_entropy(logits, labels, reduction="sum")
        seen += len(labels)
        tick(seen / count)
    return Evaluation(right.item() / count, loss.item() / count, count)


def evaluate_checkpoint(
    checkpoint: Checkpoint, data: str, *, root: Path = Path("data"), bar: bool = False
) -> Evaluation:
    """Measure a checkpoint on a dataset's test pictures, in float32, classes matched by name.

    Raises:
        InvalidDataset: the dataset cannot be read, or has a class that the checkpoint does not know.
    """
    return combined(in_parts(checkpoint, data, root=root).all(pictures_bar(bar)))


def in_parts(checkpoint: Checkpoint, data: str, *, root: Path = Path("data"), **reading: int) -> InParts:
    """The same, to be done in parts.

    Args:
        reading: see `load_dataset`.
    """
    pictures = test_pictures(checkpoint.labels, checkpoint.preprocess, data, root, checkpoint.name, **reading)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, normalise = checkpoint.model.to(device).eval(), Normalise(checkpoint.preprocess, device)

    @torch.inference_mode()
    def compute(images: Tensor, labels: Tensor, _: int) -> Part:
        logits = model(normalise(images)).logits
        loss = F.cross_entropy(logits, labels, reduction="sum")
        facts = {"right": (logits.argmax(1) == labels).sum(), "loss": loss, "pictures": torch.tensor(len(labels))}
        return {name: value.cpu().numpy() for name, value in facts.items()}

    return InParts(pictures, len(pictures.labels), _TOGETHER, compute, device)


def combined(parts: Iterable[Part]) -> Evaluation:
    """What all parts say together, in their order."""
    right, loss, pictures = 0, np.zeros((), np.float32), 0
    for part in parts:
        right, loss, pictures = right + int(part["right"]), loss + part["loss"], pictures + int(part["pictures"])
    return Evaluation(right / pictures, float(loss) / pictures, pictures)
