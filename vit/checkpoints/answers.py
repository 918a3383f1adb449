"""Classes from outside a checkpoint: their names, and a head that turns its pooled features into logits."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from torch import nn

from vit.model.heads import Activation
from vit.model.layers import Linear


@dataclass(frozen=True, eq=False)
class Answers:
    """What a model is asked to choose from, in place of the classes that it was trained with, or of none.

    Attributes:
        names: one per class.
        head: from pooled features (B, D) to logits (B, C), in evaluation mode.
        source: where the classes come from, as a sentence.
        activation: "softmax" where the probabilities of all sum to 1, "sigmoid" where each class has one of its own
            (SigLIP), "none" where logits are similarities, -1 to 1.
        accuracy: share of the known pictures that are recognised by what the others say; None where none are known.
        interval: in which that share lies with 95 % confidence.
        facts: how they were made, for a card.
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
        """Tells these answers from all others: names, numbers and kind of the head."""
        digest = hashlib.sha256(repr((self.names, self.activation, type(self.head).__name__)).encode())
        for name, tensor in sorted(self.head.state_dict().items()):
            digest.update(repr((name, tuple(tensor.shape))).encode())
            digest.update(tensor.float().contiguous().numpy().tobytes())
        return digest.hexdigest()[:16]

    @property
    def linear(self) -> bool:
        """Whether they are one linear map, which every file of a checkpoint can hold."""
        return isinstance(self.head, Linear) and self.activation == "softmax"
