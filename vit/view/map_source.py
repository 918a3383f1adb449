"""Compute the maps that the viewer cannot: class-specific methods, and rollout of large inputs.

docs/viewer.md describes `computed` and `method`.
"""

from typing import NamedTuple

from torch import Tensor

from vit.errors import InvalidCheckpoint, UserError
from vit.explain import methods
from vit.explain.heatmap import find_class
from vit.explain.methods import METHODS
from vit.explain.record import AttentionRecord
from vit.explain.recorded_pass import RecordedPass
from vit.model.transformer import VisionTransformer
from vit.view import map_view
from vit.view.method_choice import ComputedMap, Method, MethodChoice, computed_map, describe
from vit.view.payload import MAPS_UP_TO, chain_fits, relevance_chain
from vit.view.selection import Selection


class RequiredData(NamedTuple):
    """Data that the viewer needs in addition to the payload.

    Attributes:
        method: description of the method; None for a model without classes.
        chain: matrices from which the viewer computes the method's maps.
        computed: the map of the selection.
    """

    method: Method | None
    chain: bytes | None = None
    computed: ComputedMap | None = None


class MapSource:
    """Computes and caches the maps of one picture.

    Attributes:
        record: of the picture.
        labels: class names; empty for a model without classes, and for attention without a model.
        recommended: the class-specific method to begin with.
    """

    def __init__(
        self,
        record: AttentionRecord,
        model: VisionTransformer | None = None,
        pixels: Tensor | None = None,
        labels: tuple[str, ...] = (),
        recommended: str = "",
    ):
        self.record, self.labels, self.recommended = record, labels, recommended
        self._model, self._pixels = model, pixels
        self._recorded_passes: dict[int, RecordedPass] = {}
        self._chains: dict[int, bytes] = {}
        self._last: tuple[object, Tensor] | None = None  # key and weights; some methods take hundreds of passes

    def choose(self, method: str, target: str | int | None) -> MethodChoice:
        """Validate a method name and a class, given by label or index; None for the predicted class.

        Raises:
            UserError: unknown method or class, or the model has no classes.
        """
        if method not in METHODS or not METHODS[method].of_class:
            raise UserError(f"{method!r} is not a class-specific method.")
        if not self.labels:
            raise InvalidCheckpoint(f"There are no classes here, so {method} has nothing to explain.")
        assert self._model is not None, "a model with classes"
        index = self._model.default_target(self.record.logits[0]) if target is None else target
        index = find_class(index, self.labels) if isinstance(index, str) else index
        if not 0 <= index < len(self.labels):
            raise UserError(f"There is no class {index}: they run from 0 to {len(self.labels) - 1}.")
        return MethodChoice(index, method)

    def required_data(self, selection: Selection, choice: MethodChoice | None) -> RequiredData:
        """Return what the viewer needs to show a selection."""
        described = describe(selection, choice, self.labels[choice.target_index]) if choice else None
        if selection.view == "relevance" and choice:
            if choice.method == "relevance" and chain_fits(self.record):
                return RequiredData(described, self._chain(choice.target_index))
            token = choice.token(selection)
        elif selection.view == "rollout" and self.record.tokens > MAPS_UP_TO:
            token = selection.token
        else:
            return RequiredData(described)
        return RequiredData(described, None, computed_map(selection, token, self.weights(selection, choice).tolist()))

    def weights(self, selection: Selection, choice: MethodChoice | None) -> Tensor:
        """Compute the numbers that the viewer shows for a selection: (N,)."""
        if selection.view != "relevance" or choice is None:
            return map_view.weights(self.record, selection)
        settings = selection.settings(METHODS[choice.method].settings)
        key = (choice, choice.token(selection), selection.direction, settings)
        if self._last is None or self._last[0] != key:
            self._last = key, method_weights(self._recorded(choice.target_index), selection, choice)
        return self._last[1]

    def _chain(self, target: int) -> bytes:
        if target not in self._chains:
            self._chains[target] = relevance_chain(self._recorded(target).record)
        return self._chains[target]

    def _recorded(self, target: int) -> RecordedPass:
        assert self._model is not None and self._pixels is not None, "a model with classes"
        if target not in self._recorded_passes:
            self._recorded_passes.clear()  # keep one class only: gradients of all attention are large
            self._recorded_passes[target] = RecordedPass.of_class(self._model, self._pixels, target)
        return self._recorded_passes[target]


def method_weights(recorded: RecordedPass, selection: Selection, choice: MethodChoice) -> Tensor:
    """Compute the map of a method with the settings of a selection: (N,)."""
    settings = selection.settings(METHODS[choice.method].settings)
    return methods.weights(recorded, choice.method, choice.token(selection), selection.direction, **settings)
