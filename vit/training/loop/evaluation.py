"""Accuracy and loss of a model on pictures it was not trained on."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from vit.checkpoints.checkpoint import Checkpoint
from vit.data.layouts.labels import test_pictures
from vit.data.pictures import Pictures, first_batches
from vit.devices import restored_device
from vit.errors import UserError
from vit.images.preprocess import Normalise
from vit.model.cost import images_in_memory
from vit.model.transformer import VisionTransformer
from vit.progress import pictures_bar

_BATCH_PICTURES = 500  # per batch, at most


class Evaluation(NamedTuple):
    """Result over a split.

    Attributes:
        accuracy: share of pictures whose most probable class is correct, 0 to 1.
        loss: mean cross-entropy [nats]; for a multi-label model binary cross-entropy, summed over the classes.
        pictures: number of pictures.
        remark: how the classes of the data were matched with the model's, for people; "" if their names are equal.
        balanced: mean over the classes of the share of right answers; None if it was not computed.
    """

    accuracy: float
    loss: float
    pictures: int
    remark: str = ""
    balanced: float | None = None


class ClassCounts:
    """Right answers and pictures of each class, added up over batches.

    Args:
        classes: number of classes.

    Attributes:
        bits: "1" for each picture that is right, "0" for the others.
    """

    def __init__(self, classes: int):
        self._right, self._all, self.bits = torch.zeros(classes), torch.zeros(classes), ""

    def add(self, labels: Tensor, logits: Tensor) -> None:
        """Add a batch: labels (B,) and logits (B, C)."""
        labels = labels.cpu()
        right = logits.argmax(1).cpu() == labels
        self._all += labels.bincount(minlength=len(self._all))
        self._right += labels[right].bincount(minlength=len(self._all))
        self.bits += "".join(map(str, right.int().tolist()))

    def balanced(self) -> float:
        """Return the mean, over the classes that have pictures, of the share of right answers."""
        some = self._all > 0
        return float((self._right[some] / self._all[some]).mean())


@torch.inference_mode()
def evaluate(
    model: VisionTransformer,
    pictures: Pictures,
    normalise: Normalise,
    *,
    device: torch.device,
    batch_size: int | None = None,
    tick: Callable[[float], None] = lambda share: None,
    rank: int = 0,
    world: int = 1,
    arithmetic: Callable[[], AbstractContextManager[object]] = nullcontext,
    observe: Callable[[Tensor, Tensor], None] = lambda labels, logits: None,
) -> Evaluation:
    """Classify every picture of a split; the model is left in evaluation mode.

    With several processes it is a collective call: they share the batches, and each returns the result of a single
    process, bit by bit.

    Args:
        batch_size: pictures per forward pass; None for as many as fit into memory.
        tick: called after every batch with the share of this process's batches that are done, 0 to 1.
        rank, world: rank of this process, and number of processes.
        arithmetic: returns the autocast context for forward passes; none by default.
        observe: called with each batch: labels (B,) and logits (B, C).

    Raises:
        ValueError: there are no pictures.
    """
    count = len(pictures.labels)
    if not count:
        raise ValueError("There are no pictures to evaluate on.")
    model.eval()
    batch_size = batch_size or images_in_memory(model.config, model.config.image_size, _BATCH_PICTURES)
    parts = torch.arange(count).split(batch_size)
    sums = torch.zeros(len(parts), 2, device=device)  # correct predictions and loss per batch
    own = range(rank, len(parts), world)
    batches = pictures.batches(torch.cat(parts[rank::world]), batch_size, device) if own else ()
    for i, (images, labels) in zip(own, batches, strict=True):
        with arithmetic():
            logits = model(normalise(images)).logits.float()
        observe(labels, logits)
        sums[i, 0] = (logits.argmax(1) == labels).sum()
        sums[i, 1] = F.cross_entropy(logits, labels, reduction="sum")
        tick((i + 1) / len(parts))
    if world > 1:
        dist.all_reduce(sums)  # each row is computed by one process and zero in the others, so this adds no rounding
    right, loss = np.add.accumulate(sums.cpu().numpy())[-1]  # in order, where `sum` would add pairwise
    return Evaluation(float(right) / count, float(loss) / count, count)


def evaluate_checkpoint(
    checkpoint: Checkpoint,
    data: str,
    *,
    root: Path = Path("data"),
    bar: bool = False,
    observe: Callable[[Tensor, Tensor, Tensor], None] = lambda images, labels, logits: None,
    opened: Callable[[Pictures], object] = lambda pictures: None,
) -> Evaluation:
    """Evaluate a checkpoint on a dataset's test pictures, in float32, with classes matched by name.

    Args:
        opened: called with the pictures before the first batch.
        observe: called with each batch: uint8 (B, channels, height, width), labels (B,), and logits (B, C).

    Raises:
        InvalidDataset: the dataset cannot be read, or its classes do not match, see
            `vit.data.layouts.labels.match_classes`.
        UserError: the checkpoint has a single output, or no classes.
    """
    if checkpoint.estimates:
        raise UserError(f"{checkpoint.name} estimates numbers, not classes, so there are no right answers to count.")
    if len(checkpoint.labels) == 1:
        raise UserError(
            f"{checkpoint.name} has one output, a binary classification, so it cannot choose among the classes of a "
            "dataset. Evaluate a checkpoint with two classes or more."
        )
    pictures, remark = test_pictures(checkpoint.labels, checkpoint.preprocess, data, root, checkpoint.name)
    opened(pictures)
    count, right, loss = len(pictures.labels), 0, torch.zeros(())
    by_class = ClassCounts(len(checkpoint.labels))
    batch_size = images_in_memory(checkpoint.config, checkpoint.preprocess.size, _BATCH_PICTURES)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    with restored_device(checkpoint.model), torch.inference_mode():
        model, normalise = checkpoint.model.to(device).eval(), Normalise(checkpoint.preprocess, device)
        for images, labels in first_batches(pictures, count, batch_size, device, pictures_bar(bar)):
            logits = model(normalise(images)).logits
            right += int((logits.argmax(1) == labels).sum())
            loss += _summed_loss(logits, labels, checkpoint.config.multi_label).cpu()
            by_class.add(labels, logits)
            observe(images, labels, logits)
    return Evaluation(right / count, float(loss) / count, count, remark, by_class.balanced())


def _summed_loss(logits: Tensor, labels: Tensor, multi_label: bool) -> Tensor:
    """Return the loss of `Evaluation`, summed over the pictures; logits are (B, C), labels (B,)."""
    if multi_label:
        right = F.one_hot(labels, logits.shape[1]).to(logits.dtype)  # multi-hot target with one class
        return F.binary_cross_entropy_with_logits(logits, right, reduction="sum")
    return F.cross_entropy(logits, labels, reduction="sum")
