"""Accuracy and loss of a model on pictures it was not trained on."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn import functional as F

from vit.checkpoints.checkpoint import Checkpoint
from vit.data.labels import test_pictures
from vit.data.partitioned import Part, PartitionedComputation, pictures_bar
from vit.data.pictures import Pictures
from vit.devices import restored_device
from vit.errors import UserError
from vit.explain.cost import images_in_memory
from vit.images.preprocess import Normalise
from vit.model.transformer import VisionTransformer

_BATCH_PICTURES = 500  # per batch, at most


class Evaluation(NamedTuple):
    """Result over a split.

    Attributes:
        accuracy: share of pictures whose most probable class is correct, 0 to 1.
        loss: mean cross-entropy [nats]; for a multi-label model binary cross-entropy, summed over the classes.
        pictures: number of pictures.
        remark: how the classes of the data were matched with the model's, for people; "" if their names are equal.
    """

    accuracy: float
    loss: float
    pictures: int
    remark: str = ""


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
) -> Evaluation:
    """Classify every picture of a split; the model is left in evaluation mode.

    With several processes it is a collective call: they share the batches, and each returns the result of a single
    process, bit by bit.

    Args:
        batch_size: pictures per forward pass; None for as many as fit into memory.
        tick: called after every batch with the share of this process's batches that are done, 0 to 1.
        rank, world: rank of this process, and number of processes.
        arithmetic: returns the autocast context for forward passes; none by default.

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
        sums[i, 0] = (logits.argmax(1) == labels).sum()
        sums[i, 1] = F.cross_entropy(logits, labels, reduction="sum")
        tick((i + 1) / len(parts))
    if world > 1:
        dist.all_reduce(sums)  # each row is computed by one process and zero in the others, so this adds no rounding
    right, loss = np.add.accumulate(sums.cpu().numpy())[-1]  # in order, where `sum` would add pairwise
    return Evaluation(float(right) / count, float(loss) / count, count)


def evaluate_checkpoint(
    checkpoint: Checkpoint, data: str, *, root: Path = Path("data"), bar: bool = False
) -> Evaluation:
    """Evaluate a checkpoint on a dataset's test pictures, in float32, with classes matched by name.

    Raises:
        InvalidDataset: the dataset cannot be read, or its classes do not match, see `vit.data.labels.match_classes`.
    """
    with restored_device(checkpoint.model):
        return combined(partitioned(checkpoint, data, root=root).all(pictures_bar(bar)))


def partitioned(
    checkpoint: Checkpoint, data: str, *, root: Path = Path("data"), **reading: int
) -> PartitionedComputation:
    """Divide the evaluation of a checkpoint on a dataset's test pictures into parts.

    Args:
        reading: options of `load_dataset`.

    Raises:
        InvalidDataset: as `evaluate_checkpoint`.
        UserError: the checkpoint has a single output.
    """
    check_choice(checkpoint)
    pictures, remark = test_pictures(checkpoint.labels, checkpoint.preprocess, data, root, checkpoint.name, **reading)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, normalise = checkpoint.model.to(device).eval(), Normalise(checkpoint.preprocess, device)

    @torch.inference_mode()
    def compute(images: Tensor, labels: Tensor, _: int) -> Part:
        return part_of(model(normalise(images)).logits, labels, checkpoint.config.multi_label, remark)

    batch = images_in_memory(checkpoint.config, checkpoint.preprocess.size, _BATCH_PICTURES)
    return PartitionedComputation(pictures, len(pictures.labels), batch, compute, device)


def part_of(logits: Tensor, labels: Tensor, multi_label: bool, remark: str) -> Part:
    """Return what `combined` needs of one batch.

    Args:
        logits: (B, classes).
        labels: (B,).
        remark: see `Evaluation`.
    """
    if multi_label:
        right = F.one_hot(labels, logits.shape[1]).to(logits.dtype)  # multi-hot target with one class
        loss = F.binary_cross_entropy_with_logits(logits, right, reduction="sum")
    else:
        loss = F.cross_entropy(logits, labels, reduction="sum")
    facts = {"right": (logits.argmax(1) == labels).sum(), "loss": loss, "pictures": torch.tensor(len(labels))}
    return {name: value.cpu().numpy() for name, value in facts.items()} | {"remark": np.array(remark)}


def check_choice(checkpoint: Checkpoint) -> None:
    """Reject checkpoints with a single class, which cannot choose among classes.

    Raises:
        UserError: it has one output.
    """
    if len(checkpoint.labels) == 1:
        raise UserError(
            f"{checkpoint.name} has one output, a binary classification, so it cannot choose among the classes of a "
            "dataset. Evaluate a checkpoint with two classes or more."
        )


def combined(parts: Iterable[Part]) -> Evaluation:
    """Combine the results of all parts, in order."""
    right, loss, pictures, remark = 0, np.zeros((), np.float32), 0, ""
    for part in parts:
        right, loss, pictures = right + int(part["right"]), loss + part["loss"], pictures + int(part["pictures"])
        remark = str(part["remark"])
    return Evaluation(right / pictures, float(loss) / pictures, pictures, remark)
