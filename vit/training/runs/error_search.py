"""Find what a checkpoint gets wrong: classify every test image once."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vit.checkpoints.checkpoint import Checkpoint
from vit.data.pictures import Pictures
from vit.explain.record import record
from vit.images.preprocess import Normalise
from vit.model.transformer import VisionTransformer
from vit.training.loop.evaluation import Evaluation, evaluate_checkpoint
from vit.training.runs.error_report import FILE, Report, save
from vit.view.overlay import overlay

WORST_MISTAKES = 24  # pictures of mistakes in a report, most confident first
_OVERLAY_SIDE = 160  # shorter side of an attention overlay, at least [px]


def write(
    checkpoint: Checkpoint, data: str, root: Path = Path("data"), file: Path = Path(FILE), bar: bool = False
) -> tuple[Report, Evaluation]:
    """Classify every test image and write the error report; return it, and the evaluation over the same images.

    Args:
        root: folder of torchvision's downloads.
        file: the report; replaced atomically.
        bar: show progress on stderr.

    Raises:
        InvalidDataset: the dataset cannot be read, or its classes do not match, see `match_classes`.
        UserError: the checkpoint has a single output.
        OSError: the file cannot be written.
    """
    classes, start = len(checkpoint.labels), 0
    confusion = torch.zeros(classes * classes, dtype=torch.int64)
    worst, every, opened = _TopMistakes(torch.empty(0), torch.empty(0)), list[Tensor](), list[Pictures]()

    def observe(images: Tensor, labels: Tensor, logits: Tensor) -> None:
        nonlocal confusion, worst, start
        probability, predicted = checkpoint.model.probabilities(logits).max(1)
        confusion += torch.bincount(labels * classes + predicted, minlength=classes * classes).cpu()
        wrong = (predicted != labels).nonzero()[:, 0]
        every.append(torch.stack([start + wrong, labels[wrong], predicted[wrong], probability[wrong].double()]).cpu())
        worst = worst.merged(_TopMistakes(probability[wrong], images[wrong]))
        start += len(labels)

    evaluation = evaluate_checkpoint(checkpoint, data, root=root, bar=bar, observe=observe, opened=opened.append)
    indices, true, predicted, probability = torch.cat(every, 1)
    order = probability.argsort(descending=True, stable=True)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    model, normalise = checkpoint.model.to(device), Normalise(checkpoint.preprocess, device)
    with torch.inference_mode():
        overlays = [_attention_overlay(model, normalise(image[None].to(device)), image) for image in worst.images]
    report = Report(
        checkpoint.hash,
        checkpoint.labels,
        confusion.view(classes, classes).numpy(),
        indices[order].long().numpy(),
        _channels_last(worst.images),
        np.stack(overlays) if overlays else np.zeros((0, 1, 1, 3), np.uint8),
        true[order].long().numpy(),
        predicted[order].long().numpy(),
        probability[order].float().numpy(),
        tuple(map(opened[0].name, indices[order].int().tolist())),
    )
    save(report, file)
    return report, evaluation


class _TopMistakes(NamedTuple):
    """The most confident mistakes so far, most confident first; see `Report`."""

    probability: Tensor
    images: Tensor  # (V, channels, height, width)

    def merged(self, other: _TopMistakes) -> _TopMistakes:
        """Return the most confident mistakes of both, on the CPU."""
        both = [torch.cat([a, b.cpu()]) if len(a) else b.cpu() for a, b in zip(self, other, strict=True)]
        order = both[0].argsort(descending=True, stable=True)[:WORST_MISTAKES]
        return _TopMistakes(*(values[order] for values in both))


def _channels_last(images: Tensor) -> NDArray[np.uint8]:
    """Convert (W, channels, height, width) to (W, height, width, 3) uint8."""
    if images.ndim != 4:
        return np.zeros((0, 1, 1, 3), np.uint8)
    return images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).byte().contiguous().numpy()


def _attention_overlay(model: VisionTransformer, pixels: Tensor, image: Tensor) -> NDArray[np.uint8]:
    """Overlay the last block's attention, from the class token if there is one, else from all patches."""
    attention = record(model, pixels)
    weights = attention.weights(0) if attention.prefix else attention.full(attention.blocks - 1).mean((0, 1))
    picture = Image.fromarray(_channels_last(image[None])[0])
    scale = -(-_OVERLAY_SIDE // min(picture.size))
    picture = picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)
    return np.asarray(overlay(picture, attention.heatmap(weights.float().cpu()).numpy()))
