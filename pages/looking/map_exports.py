"""What downloads of the displayed map need: the map, data for the saved viewer, and arguments of the code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from pages.looking import token_features
from pages.looking.controls import method_choice
from vit.explain.methods import METHODS
from vit.view import map_view
from vit.view.method_choice import computed_map

if TYPE_CHECKING:
    from pages.components import viewer
    from pages.looking.controls.method_choice import Example, MethodChoice
    from pages.looking.token_features import OpenPicture
    from vit.view.selection import Selection


def for_export(
    example: Example,
    selection: Selection,
    choice: MethodChoice | None,
    computed: viewer.ComputedMap | None,
    method: viewer.Method | None,
    pictures: Sequence[OpenPicture],
) -> tuple[Callable[[], map_view.MapView] | None, dict[str, Any], dict[str, Any] | None]:
    """Return the arguments of `downloads.show`.

    Args:
        computed, method: from `method_choice.computed_map`.
        pictures: see `token_features.feed`.

    Returns:
        A function that computes the map of a method or of components, None for other views; data for the saved viewer;
        arguments for the generated code.
    """
    extended = token_features.with_features(example, selection)
    server_map: Callable[[], map_view.MapView] | None = None
    needed: dict[str, Any] = {"computed": computed, "features": token_features.pack(example, selection, pictures)}
    code: dict[str, Any] | None = None
    if selection.view == "relevance" and choice is not None:
        server_map, code = partial(_method_map, extended, selection, choice), _method_code(example, selection, choice)
        if choice.method == method_choice.GROWING and method:  # as it is now; the saved viewer has no server
            values = method_choice.weights(example, selection, choice).tolist()
            needed["computed"], method = computed_map(selection, None, values), {**method, "chain": ""}
        chain = method_choice.chain(extended, choice.target_index) if method and method["chain"] else None
        needed |= {"method": method, "chain": chain}
    elif choice and computed is None and not example.stored:
        needed["others"] = partial(method_choice.for_saved_page, extended, selection, choice)
    if selection.view == "components" and token_features.readable(example):
        server_map = partial(_components_map, example, extended, selection.after_block, pictures)
        code = {"method": "components", "block": selection.after_block}
    return server_map, needed, code


def _method_map(example: Example, selection: Selection, choice: MethodChoice) -> map_view.MapView:
    own_passes = METHODS[choice.method].own_passes  # their map is known, and they need no backward pass
    recorded = method_choice.recorded_pass(example, None if own_passes else choice.explained_class)
    recorded = replace(recorded, target=choice.explained_class)
    label, token = method_choice.class_label(example, choice), choice.token(selection)
    numbers = method_choice.weights(example, selection, choice) if own_passes else None
    return map_view.MapView.of_method(recorded, choice.method, label, token, selection.direction, selection, numbers)


def _method_code(example: Example, selection: Selection, choice: MethodChoice) -> dict[str, Any]:
    token = choice.token(selection)
    code = {"method": choice.method, "precision": "float32"} | selection.changed(METHODS[choice.method].settings)
    if choice.explained_class is not None:
        custom = example.checkpoint.custom_classes
        code |= dict(custom.facts) if custom and "against" in custom.facts else {"target": choice.target}
    if choice.method == method_choice.GROWING:
        code["masks"] = method_choice.masks_of_best_map(example, choice)
    return code | ({"query": token, "direction": selection.direction} if token is not None else {})


def _components_map(
    example: Example, extended: Example, block: int, pictures: Sequence[OpenPicture]
) -> map_view.MapView:
    joint = token_features.basis(example, block, pictures)
    return map_view.MapView.of_components(extended.explanation.record, block, *joint)
