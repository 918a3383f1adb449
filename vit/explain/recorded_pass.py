"""A model's pass over a picture with everything that explanation methods need. Does not import torch."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, cast

from vit import explain
from vit.explain import record as recording

if TYPE_CHECKING:
    from torch import Tensor

    from vit.explain.record import Precision
    from vit.explain.relevance import GradientRecord
    from vit.model.attention import Hook
    from vit.model.cost import Progress
    from vit.model.transformer import VisionTransformer


@dataclass(frozen=True)
class RecordedPass:
    """A picture to explain, with the record of its pass.

    Attributes:
        model: the model.
        pixels: (1, channels, height, width).
        given: the record, if it exists already; see `record`.
        target: class to explain; None without one, or for the predicted one.
        hook: replaces head outputs, see `relevance_record`.
        progress: called with the fraction that is done, by methods that need many passes.
    """

    model: VisionTransformer
    pixels: Tensor
    given: GradientRecord | None
    target: int | None = None
    hook: Hook | None = None
    progress: Progress = field(default=lambda share: None, compare=False)

    @classmethod
    def of_class(
        cls, model: VisionTransformer, pixels: Tensor, target: int | None = None, hook: Hook | None = None
    ) -> RecordedPass:
        """Run a forward and a backward pass; see `relevance_record`."""
        record = explain.relevance_record(model, pixels, target, hook)
        return cls(model, pixels, record, record.target, hook)

    @classmethod
    def without_class(
        cls, model: VisionTransformer, pixels: Tensor, precision: Precision = "float32", hook: Hook | None = None
    ) -> RecordedPass:
        """Run only a forward pass, which is enough for class-independent methods."""
        record = recording.record(model, pixels, precision, hook)
        return cls(model, pixels, cast("GradientRecord", record), None, hook)

    @classmethod
    def forward_only(cls, model: VisionTransformer, pixels: Tensor, target: int | None = None) -> RecordedPass:
        """Return a pass for methods of a class that run their own; its forward pass runs when its record is read."""
        return cls(model, pixels, None, target)

    @cached_property
    def record(self) -> GradientRecord:
        """Record of the forward pass, and of the backward pass from the class if created by `of_class`."""
        return self.given or self.without_class(self.model, self.pixels, hook=self.hook).record

    @property
    def explained(self) -> int:
        """The class to explain: the target, or the predicted one."""
        return self.model.default_target(self.record.logits[0]) if self.target is None else self.target

    def heatmap(self, numbers: Tensor) -> Tensor:
        """Return the numbers of the patches (rows, cols) among those of the tokens (N,)."""
        config = self.model.config
        return numbers[len(config.prefix) :].unflatten(0, (-1, self.pixels.shape[3] // config.patch_size))
