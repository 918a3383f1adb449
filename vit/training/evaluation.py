"""How often is a model right, on pictures it was not trained on."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn import functional as F

from vit.checkpoints.checkpoint import Checkpoint
from vit.data.labels import test_pictures
from vit.data.pictures import Pictures
from vit.images.preprocess import Normalise
from vit.model.transformer import VisionTransformer
from vit.progress import tqdm


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
    batch_size: int = 500,
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
    pictures = test_pictures(checkpoint.labels, checkpoint.preprocess, data, root, checkpoint.name)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return evaluate(
        checkpoint.model.to(device), pictures, Normalise(checkpoint.preprocess, device), device=device, bar=bar
    )
