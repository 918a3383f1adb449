"""How often is a model right, on pictures it was not trained on."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn import functional as F

from vit.bar import tqdm
from vit.checkpoints.checkpoint import Checkpoint
from vit.data.datasets import load_dataset
from vit.data.pictures import Pictures
from vit.errors import InvalidDataset
from vit.images.preprocess import Preprocess
from vit.model.transformer import VisionTransformer


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


class Normalise:
    """From uint8 pictures to a model's input: the arithmetic of `Preprocess`, for whole batches on any device."""

    def __init__(self, preprocess: Preprocess, device: torch.device):
        self.mean = torch.tensor(preprocess.mean, device=device).view(1, -1, 1, 1) * 255
        self.std = torch.tensor(preprocess.std, device=device).view(1, -1, 1, 1) * 255

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        """(B, channels, height, width), 0 to 255, to the same shape, normalised."""
        return (images - self.mean) / self.std


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
    pictures = test_pictures(checkpoint, data, root)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return evaluate(
        checkpoint.model.to(device), pictures, Normalise(checkpoint.preprocess, device), device=device, bar=bar
    )


def test_pictures(checkpoint: Checkpoint, data: str, root: Path) -> Pictures:
    """A dataset's test pictures at a checkpoint's input size, with the labels of the checkpoint.

    Raises:
        InvalidDataset: the dataset cannot be read, or has a class that the checkpoint does not know.
    """
    dataset = load_dataset(data, checkpoint.preprocess, root=root, only_test=True)
    return dataset.test.relabelled(labels_of(checkpoint, dataset.classes))


def labels_of(checkpoint: Checkpoint, classes: Sequence[str]) -> torch.Tensor:
    """The checkpoint's label of each of a dataset's classes, matched by name: (number of classes,).

    Raises:
        InvalidDataset: the checkpoint does not know a class.
    """
    strangers = [name for name in classes if name not in checkpoint.labels]
    if strangers:
        raise InvalidDataset(
            f"{checkpoint.name} does not know the class {strangers[0]!r} of this dataset. "
            f"Its classes: {', '.join(checkpoint.labels[:20])}."
        )
    return torch.tensor([checkpoint.labels.index(name) for name in classes])
