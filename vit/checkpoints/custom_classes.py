"""Classes from outside a checkpoint: names, and a head that maps pooled features to logits."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import nn

from vit.model.classification_heads import Activation
from vit.model.layers import Linear


@dataclass(frozen=True, eq=False)
class CustomClasses:
    """Classes that replace those that a model was trained with, if any.

    Attributes:
        names: one per class.
        head: maps pooled features (B, D) to logits (B, C); in evaluation mode.
        source: where the classes come from, as a sentence.
        activation: "softmax" if the probabilities of all classes sum to 1, "sigmoid" if each class has an independent
            probability (SigLIP), "cosine" if logits are similarities, -1 to 1, "none" if they are other numbers.
        accuracy: cross-validated share of the labelled examples that are classified correctly; None without examples.
        interval: 95% confidence interval of the accuracy.
        facts: how the classes were made, for the model card.
    """

    names: tuple[str, ...]
    head: nn.Module
    source: str
    activation: Activation = "softmax"
    accuracy: float | None = None
    interval: tuple[float, float] | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def digest(self) -> str:
        """Return a hash of the names, the activation and the head's weights."""
        digest = hashlib.sha256(repr((self.names, self.activation, type(self.head).__name__)).encode())
        for name, tensor in sorted(self.head.state_dict().items()):
            digest.update(repr((name, tuple(tensor.shape))).encode())
            digest.update(tensor.float().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    @property
    def linear(self) -> bool:
        """Whether the head is a linear layer with softmax, which every checkpoint format can store."""
        return isinstance(self.head, Linear) and self.activation == "softmax"
