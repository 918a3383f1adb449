"""The selected class and method, and their description for the viewer; without torch, for the stored first view."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, NotRequired, TypedDict

from vit.explain.methods import METHODS
from vit.explain.settings import Direction
from vit.view.selection import Selection, View


class MethodChoice(NamedTuple):
    """A selected class and method.

    Attributes:
        target: index of the class; None for a model without classes.
        method: a key of `METHODS`.
    """

    target: int | None
    method: str

    @property
    def target_index(self) -> int:
        """Index of the class; the model must have classes."""
        assert self.target is not None, "the model has no classes"
        return self.target

    @property
    def explained_class(self) -> int | None:
        """Index of the class that the method explains; None for a method without a class."""
        return self.target if METHODS[self.method].of_class else None

    def token(self, selection: Selection) -> int | None:
        """Return the token that the method explains: the pinned one, or None for the model's output."""
        return selection.token if selection.pinned and METHODS[self.method].of_tokens else None


class ComputedMap(TypedDict):
    """A map that the server computes: rollout of large models, or a class-specific map.

    Attributes:
        view: "rollout" or "relevance".
        token: the explained token; -1 for the model's output.
        settings: settings of the method, see `vit.explain.settings.Settings.settings`.
        values: (N,), in the unit of the method.
    """

    view: View
    token: int
    direction: Direction
    settings: Mapping[str, Any]
    values: Sequence[float]


class Method(TypedDict):
    """The method of the view "relevance".

    Attributes:
        title: title of the method.
        sentence: description of the method.
        target: label of the class; "" for a method without one.
        chain: id of the data from which the browser computes maps; "" if the server computes them.
        tokens: whether the method can explain any token, not only the model's output.
        settings: names of the `vit.explain.settings.Settings` that the method uses.
        signed: whether values can be negative, for tokens that speak against the class.
    """

    title: str
    sentence: NotRequired[str]
    target: str
    chain: str
    tokens: bool
    settings: Sequence[str]
    signed: bool


def describe(selection: Selection, choice: MethodChoice, label: str) -> Method:
    """Return the description of the method for the viewer, without a chain.

    Args:
        label: of the explained class; "" for a method without one.
    """
    method = METHODS[choice.method]
    return Method(
        title=method.title,
        sentence=method.sentence,
        target=label,
        chain="",
        tokens=method.of_tokens,
        settings=list(selection.settings(method.settings)),
        signed=method.signed,
    )


def computed_map(selection: Selection, token: int | None, values: Sequence[float]) -> ComputedMap:
    """Return a map (N,) for the viewer; token None for the model's output."""
    return ComputedMap(
        view=selection.view,
        token=-1 if token is None else token,
        direction=selection.direction,
        settings=selection.settings(),
        values=values,
    )
