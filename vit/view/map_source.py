"""Compute the maps that the viewer cannot: class-specific methods, and rollout of large inputs.

docs/viewer.md describes `computed` and `method`.
"""

from typing import Any, NamedTuple

from torch import Tensor

from vit.errors import InvalidCheckpoint, UserError
from vit.explain import methods
from vit.explain.heatmap import find_class
from vit.explain.methods import METHODS
from vit.explain.record import AttentionRecord
from vit.explain.recorded_pass import RecordedPass
from vit.model.transformer import VisionTransformer
from vit.view import export
from vit.view.payload import CHAIN_UP_TO, MAPS_UP_TO, pack_chain
from vit.view.selection import Selection


class MethodChoice(NamedTuple):
    """Method and class of the view "relevance".

    Attributes:
        method: name of a class-specific method in `METHODS`.
        target: index of the class.
    """

    method: str
    target: int


class RequiredData(NamedTuple):
    """Data that the viewer needs in addition to the payload.

    Attributes:
        method: description of the method; None for a model without classes.
        chain: matrices from which the viewer computes the method's maps.
        computed: the map of the selection.
    """

    method: dict[str, Any] | None
    chain: bytes | None = None
    computed: dict[str, Any] | None = None


class MapSource:
    """Computes and caches the maps of one picture.

    Attributes:
        record: of the picture.
        labels: class names; empty for a model without classes, and for attention without a model.
    """

    def __init__(
        self,
        record: AttentionRecord,
        model: VisionTransformer | None = None,
        pixels: Tensor | None = None,
        labels: tuple[str, ...] = (),
    ):
        self.record, self.labels = record, labels
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
        index = int(self.record.logits.argmax()) if target is None else target
        index = find_class(index, self.labels) if isinstance(index, str) else index
        if not 0 <= index < len(self.labels):
            raise UserError(f"There is no class {index}: they run from 0 to {len(self.labels) - 1}.")
        return MethodChoice(method, index)

    def required_data(self, selection: Selection, choice: MethodChoice | None) -> RequiredData:
        """Return what the viewer needs to show a selection."""
        described = self._described(selection, choice)
        if selection.view == "relevance" and choice:
            if choice.method == "relevance" and self.record.blocks * self.record.tokens**2 <= CHAIN_UP_TO:
                return RequiredData(described, self._chain(choice.target))
            token = _token(selection, choice)
            return RequiredData(described, None, self._computed(selection, choice, -1 if token is None else token))
        if selection.view == "rollout" and self.record.tokens > MAPS_UP_TO:
            return RequiredData(described, None, self._computed(selection, None, selection.token))
        return RequiredData(described)

    def weights(self, selection: Selection, choice: MethodChoice | None) -> Tensor:
        """Compute the numbers that the viewer shows for a selection: (N,)."""
        if selection.view != "relevance" or choice is None:
            return export.weights(self.record, selection)
        settings = selection.settings(METHODS[choice.method].settings)
        token = _token(selection, choice)
        key = (choice, token, selection.direction, settings)
        if self._last is None or self._last[0] != key:
            recorded = self._recorded(choice.target)
            self._last = key, methods.weights(recorded, choice.method, token, selection.direction, **settings)
        return self._last[1]

    def _described(self, selection: Selection, choice: MethodChoice | None) -> dict[str, Any] | None:
        if choice is None:
            return None
        method = METHODS[choice.method]
        return {
            "title": method.title,
            "sentence": method.sentence,
            "target": self.labels[choice.target],
            "chain": "",
            "tokens": method.of_tokens,
            "settings": list(selection.settings(method.settings)),
        }

    def _computed(self, selection: Selection, choice: MethodChoice | None, token: int) -> dict[str, Any]:
        return {
            "view": selection.view,
            "token": token,
            "direction": selection.direction,
            "settings": selection.settings(),
            "values": [float(f"{value:.6g}") for value in self.weights(selection, choice).tolist()],
        }

    def _chain(self, target: int) -> bytes:
        if target not in self._chains:
            record = self._recorded(target).record
            matrices = [record.flow(block) for block in range(record.blocks)]
            self._chains[target] = pack_chain(matrices, record.read)
        return self._chains[target]

    def _recorded(self, target: int) -> RecordedPass:
        assert self._model is not None and self._pixels is not None, "a model with classes"
        if target not in self._recorded_passes:
            self._recorded_passes.clear()  # keep one class only: gradients of all attention are large
            self._recorded_passes[target] = RecordedPass.of_class(self._model, self._pixels, target)
        return self._recorded_passes[target]


def _token(selection: Selection, choice: MethodChoice) -> int | None:
    """Return the token that the method explains: the pinned one, or None for the model's output."""
    return selection.token if selection.pinned and METHODS[choice.method].of_tokens else None
