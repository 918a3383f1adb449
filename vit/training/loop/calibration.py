"""Calibration: a temperature that makes probabilities honest, and a threshold below which an answer is not sure."""

import math
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from vit.checkpoints.abstention import NEVER
from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.data.pictures import Pictures
from vit.images.preprocess import Normalise
from vit.model.layers import Linear
from vit.training.loop.distributed import exact_products
from vit.training.loop.evaluation import evaluate

LEAST_PICTURES = 20  # with fewer pictures there is no threshold
RIGHT = 0.9  # share of right answers among those that are sure
KEPT = 0.95  # at most this share of the right answers is sure: a model that is nearly always right still needs a limit
_HALVINGS = 40  # of the interval that contains the temperature
_RANGE = 0.05, 20.0  # of temperatures


class Calibration(NamedTuple):
    """What a calibration found.

    Attributes:
        temperature: divides the logits.
        threshold: largest logit from which an answer is sure, see `vit.checkpoints.abstention`.
        sure: share of the pictures whose answer is sure.
        right: share of right answers among these.
        pictures: number of pictures.
    """

    temperature: float
    threshold: float
    sure: float
    right: float
    pictures: int

    def facts(self, kind: str) -> dict[str, Any]:
        """Return the facts for a checkpoint's card.

        Args:
            kind: the pictures, such as "validation".
        """
        sure = f"{self.sure:.0%} of {self.pictures:,} {kind} pictures have a sure answer"
        right = f"; {self.right:.0%} of these are right" if self.sure else ""
        return {"sure_from": math.floor(1e4 * self.threshold) / 1e4, "sure_on": sure + right}


def calibrate(logits: Tensor, labels: Tensor, temperature: float | None = None) -> Calibration | None:
    """Choose temperature and threshold on pictures that the model was not trained on; None for too few pictures.

    The threshold is the smallest at which `RIGHT` of the sure answers are right, and at which at most `KEPT` of the
    right answers are sure. The second limit stands in for pictures of unknown things, which a folder of classes lacks.

    Args:
        logits: (n, C).
        labels: (n,).
        temperature: None for the one with the lowest cross-entropy.

    Source of the temperature: Guo et al. 2017, arXiv 1706.04599, section 4.2.
    """
    if len(labels) < LEAST_PICTURES:
        return None
    logits, labels = logits.double().cpu(), labels.cpu()
    temperature = fit_temperature(logits, labels) if temperature is None else temperature
    scores, answers = (logits / temperature).max(1)
    order = scores.argsort(descending=True, stable=True)
    scores, right = scores[order], (answers == labels)[order]
    shares = right.cumsum(0) / torch.arange(1, len(right) + 1)  # right answers among the first 1, 2, ...
    enough = (shares >= RIGHT).nonzero()
    if not len(enough):
        return Calibration(temperature, NEVER, 0.0, 0.0, len(labels))
    of_right = scores[right]
    at_most = of_right[min(math.ceil(KEPT * len(of_right)), len(of_right)) - 1]
    threshold = float(max(scores[enough[-1, 0]], at_most))
    sure = scores >= threshold
    return Calibration(
        temperature, threshold, float(sure.double().mean()), float(right[sure].double().mean()), len(labels)
    )


def fit_temperature(logits: Tensor, labels: Tensor) -> float:
    """Return the temperature with the lowest mean cross-entropy, by bisection: its derivative has one zero.

    Smoothed labels keep it finite if all answers are right, as in Platt's scaling (1999, section 2.2).

    Args:
        logits: (n, C), float64.
        labels: (n,).
    """
    smoothing = 1 / (len(labels) + 2)
    low, high = map(math.log, _RANGE)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        scale = torch.tensor(math.exp(-middle), dtype=logits.dtype, requires_grad=True)
        [slope] = torch.autograd.grad(F.cross_entropy(logits * scale, labels, label_smoothing=smoothing), scale)
        low, high = (middle, high) if slope > 0 else (low, middle)  # a smaller scale is a higher temperature
    return math.exp((low + high) / 2)


def calibrated(checkpoint: Checkpoint, validation: Pictures, normalise: Normalise, device: torch.device) -> Checkpoint:
    """Divide a checkpoint's head by a temperature, record the threshold of sure answers, and save it.

    In the head, the temperature reaches every library that the checkpoint is converted for.

    Returns:
        the saved checkpoint; the same one if it has no softmax head, or if there are too few pictures.
    """
    model, head = checkpoint.model, checkpoint.model.head
    if model.activation != "softmax" or not isinstance(head, Linear):
        return checkpoint
    seen: list[tuple[Tensor, Tensor]] = []
    with exact_products():
        evaluate(
            model.to(device),
            validation,
            normalise,
            device=device,
            observe=lambda labels, logits: seen.append((logits.cpu(), labels.cpu())),
        )
    model.cpu()
    logits, labels = (torch.cat(each) for each in zip(*seen, strict=True))
    if (found := calibrate(logits, labels)) is None:
        return checkpoint
    temperature = round(found.temperature, 4)
    with torch.no_grad():
        for tensor in (head.weight, head.bias):
            if tensor is not None:
                tensor.div_(temperature)
    before = checkpoint.facts.get("temperature", 1.0)  # of a test that was interrupted
    facts = {**checkpoint.facts, "temperature": before * temperature, **found.facts("validation")}
    save_checkpoint(checkpoint.path, model, checkpoint.labels, checkpoint.preprocess, facts)
    return replace(checkpoint, facts=facts)
