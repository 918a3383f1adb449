"""Class-specific explanations: selection of class and method, and cached inputs of the methods."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import streamlit as st

from pages.components import viewer
from pages.links import address, link_controls
from pages.server import pass_queue
from pages.server.result_cache import cached, with_bar
from pages.shared.escape import visible
from vit.explain.methods import METHODS
from vit.explain.recorded_pass import RecordedPass
from vit.explain.recorded_ranking import recommended, recorded_results
from vit.view import first_view, map_source, map_view, method_choice, payload
from vit.view.first_view import FirstView
from vit.view.method_choice import MethodChoice, describe
from vit.view.prediction import written
from vit.view.selection import Selection

if TYPE_CHECKING:
    from torch import Tensor

MOST_CLASSES = 2000  # options of the class selector, the most probable ones
GROWING = "best"  # the method whose map improves while it is shown, see `pages.looking.panels.best_map`


@dataclass(frozen=True)
class Example:
    """A picture, explained by a checkpoint.

    Attributes:
        key: identifies checkpoint, picture, size and precision. The payload alone does not, since it is the same for
            two classifiers on one backbone.
        checkpoint: from `load_checkpoint`.
        explanation: from `explain`.
        masked: the model's input if parts of the picture are covered.
        hook: modifies the heads, see `VisionTransformer.forward`.
        stored: precomputed results while PyTorch is not imported; None afterwards.
    """

    key: str
    checkpoint: Any
    explanation: Any
    masked: Any = None
    hook: Any = None
    stored: FirstView | None = None

    @property
    def pixels(self) -> Tensor:
        """The model's input (1, channels, height, width)."""
        explanation = self.explanation
        return explanation.preprocess.normalised(explanation.input_image) if self.masked is None else self.masked


def example_key(payload: str, checkpoint: Any) -> str:
    """Return the key of an example from its payload's id."""
    return f"{payload} {checkpoint.identity}"


def recorded_pass(example: Example, target: int | None) -> RecordedPass:
    """Return the cached `RecordedPass` of a class, or of none."""

    def work() -> RecordedPass:
        with pass_of(example):
            if target is None:
                return RecordedPass.without_class(example.checkpoint.model, example.pixels, hook=example.hook)
            return RecordedPass.of_class(example.checkpoint.model, example.pixels, target, example.hook)

    return cached(("recorded", example.key, target), work)


def pass_of(example: Example) -> AbstractContextManager[None]:
    """Return a context that reserves memory for a pass with gradients; it waits in the queue of all visitors."""
    return pass_queue.reserved(example.checkpoint, example.explanation.preprocess.size, pass_queue.WITH_GRADIENTS)


def chain(example: Example, target: int) -> bytes:
    """Return the packed data from which the browser computes relevance for the token under the pointer."""
    return cached(
        ("chain", example.key, target), lambda: payload.relevance_chain(recorded_pass(example, target).record)
    )


def remember_map(explanation: Any, checkpoint: Any, stored: FirstView) -> None:
    """Cache the first view's map for `weights`: it saves the method's passes over the same picture."""
    from torch import tensor  # noqa: PLC0415 # the page imports this module before torch

    key = example_key(viewer.payload_id(explanation.payload), checkpoint)
    choice = MethodChoice(stored.target, first_view.METHOD)
    cached(_map_key(key, Selection(), choice), lambda: tensor(stored.weights))


def _map_key(key: str, selection: Selection, choice: MethodChoice) -> tuple[Any, ...]:
    return "map", key, choice, *selection.settings(METHODS[choice.method].settings).items()


def growing_name(example: Example, target: int) -> str:
    """Return the name under which the viewer finds the growing map. It does not depend on the number of masks."""
    return f"best map of {example.key} {target}"


def masks_name(example: Example, target: int) -> str:
    """Return the name under which the viewer finds the masks for judging maps. It does not depend on their content."""
    return f"masks of {example.key} {target}"


def computed_map(
    example: Example, selection: Selection, choice: MethodChoice | None, prefix: str = "", growing: bool = False
) -> tuple[viewer.ComputedMap | None, viewer.Method | None]:
    """Return the map that the server must compute for the viewer, if any, and the description of the method.

    Args:
        prefix: distinguishes several viewers of a page.
        growing: the page improves the best map while it is shown; if False, all of its masks are measured first.
    """
    record = example.explanation.record
    described = describe(selection, choice, visible(class_label(example, choice))) if choice else None
    if selection.view == "relevance" and choice and described:
        if example.stored:  # while another class or method is chosen, PyTorch is still being imported
            same = choice == (example.stored.target, first_view.METHOD)
            stored = method_choice.computed_map(selection, None, example.stored.weights) if same else None
            return stored, described
        if choice.method == GROWING:
            if growing:
                described["chain"] = growing_name(example, choice.target_index)
                return None, described
            _mask_drops().measure_for_best_map(example, choice.target_index)
        if choice.method == "relevance" and payload.chain_fits(record):
            described["chain"] = viewer.feed(f"{prefix}chain feeder", chain(example, choice.target_index))
            return None, described
        token = choice.token(selection)
    elif selection.view == "rollout" and record.tokens > payload.MAPS_UP_TO and not example.stored:
        token = selection.token
    else:
        return None, described
    return method_choice.computed_map(selection, token, weights(example, selection, choice).tolist()), described


def for_saved_page(example: Example, selection: Selection, choice: MethodChoice) -> dict[str, Any]:
    """Return what a saved page needs to show the method of a class when its reader switches to it.

    Returns:
        `computed`, `method` and `chain` as in `map_exports.for_export`; empty for a method with many passes, which
        would delay the export.
    """
    method, record = METHODS[choice.method], example.explanation.record
    of_class = replace(selection, view="relevance", pinned=False)
    needed: dict[str, Any] = {"method": describe(of_class, choice, visible(class_label(example, choice)))}
    if choice.method == "relevance" and payload.chain_fits(record):
        return needed | {"chain": chain(example, choice.target_index)}
    if method.passes:
        return {}
    return needed | {
        "computed": method_choice.computed_map(of_class, None, weights(example, of_class, choice).tolist())
    }


def weights(example: Example, selection: Selection, choice: MethodChoice | None) -> Tensor:
    """Compute the numbers that the viewer shows for a selection: (N,)."""
    if selection.view != "relevance" or choice is None:
        return map_view.weights(example.explanation.record, selection)
    if choice.method == GROWING:
        return _mask_drops().best_map(example, choice.target_index)
    method = METHODS[choice.method]
    if not method.own_passes:
        return map_source.method_weights(recorded_pass(example, choice.explained_class), selection, choice)
    model, record = example.checkpoint.model, example.explanation.record

    def work(progress: Callable[[float], object] = lambda share: None) -> Tensor:
        with pass_of(example):
            inputs = RecordedPass(model, example.pixels, record, choice.target, example.hook, progress)
            return map_source.method_weights(inputs, selection, choice)

    key = _map_key(example.key, selection, choice)
    return with_bar(key, f"{method.title}: many passes…", work) if method.passes else cached(key, work)


def masks_of_best_map(example: Example, choice: MethodChoice) -> int:
    """Return the number of masks that were measured for the best map so far."""
    return int(_mask_drops().fitted(example, choice.target_index).masks)


def _mask_drops() -> Any:
    from pages.looking import mask_drops  # noqa: PLC0415 # it imports torch, and this module

    return mask_drops


def class_label(example: Example, choice: MethodChoice) -> str:
    """Return the label of the class that the method explains, "" for a method without a class."""
    return "" if choice.explained_class is None else example.checkpoint.labels[choice.explained_class]


def methods_for(checkpoint: Any) -> list[str]:
    """Return the methods that a model supports beyond the viewer's own views.

    Class-specific methods require classes. The others require a head that does not read the class token: otherwise
    they equal attention and rollout of that token, which the viewer shows.
    """
    others = checkpoint.config.pool != "cls"
    return [name for name, method in METHODS.items() if (checkpoint.labels if method.of_class else others)]


def linked_method(checkpoint: Any, prefix: str = "") -> str:
    """Return the method that the link names, or the one to begin with.

    Links of earlier versions named no method where they showed relevance. On page Compare it is relevance, whose maps
    follow the pointer on both sides.
    """
    methods, linked = methods_for(checkpoint), address.text(f"{prefix}method")
    if linked in methods or not checkpoint.labels:
        return linked if linked in methods else methods[0]
    return "relevance" if prefix or address.text("view") == "relevance" else recommended(checkpoint.facts)


def pick_folded(example: Example, prefix: str = "", side: str = "") -> MethodChoice | None:
    """Draw `pick` in a popover; draw nothing if there is no choice."""
    if not methods_for(example.checkpoint):
        return None
    noun = "output" if example.checkpoint.estimates else "class"
    words = f"{noun} and method" if example.checkpoint.labels else "method"
    with st.popover(f"{side} {words}".strip().capitalize(), width="content"):
        return pick(example, prefix, side)


def contrastive(example: Example, choice: MethodChoice | None) -> tuple[Example, MethodChoice | None]:
    """Return the example and the choice that answer "why this class rather than that", if the link asks so."""
    labels, against = link_controls.distinct(example.checkpoint.labels), address.text("against")
    if example.stored or choice is None or against not in labels:
        return example, choice
    target, other = choice.target_index, labels.index(against)
    if target == other or not METHODS[choice.method].of_class:
        return example, choice

    def work() -> Any:
        from vit.explain.classes.difference import class_from_difference  # noqa: PLC0415 # it imports torch

        return example.checkpoint.with_classes(class_from_difference(example.checkpoint, target, other))

    checkpoint = cached(("difference", example.checkpoint.identity, target, other), work)
    key = f"{example.key} {target} rather than {other}"
    return replace(example, key=key, checkpoint=checkpoint), choice._replace(target=0)


def missing_class(example: Example, prefix: str = "") -> str:
    """Return a sentence if the link's class is none of the model's, such as a class of an earlier version; else ""."""
    labels, linked = example.checkpoint.labels, address.text(f"{prefix}target")
    if not linked or not labels or linked in link_controls.distinct(labels):
        return ""
    noun, shown = ("output", "first output") if example.checkpoint.estimates else ("class", "most probable class")
    return f"{example.checkpoint.name} has no {noun} “{linked}”, which the link names. The {shown} is shown."


def pick(example: Example, prefix: str = "", side: str = "") -> MethodChoice | None:
    """Draw the controls for a class and a method; None if the model supports no method.

    Args:
        prefix, side: prefixes of query parameters and of labels, for a page with two such controls.
    """
    checkpoint, labels, methods = example.checkpoint, example.checkpoint.labels, methods_for(example.checkpoint)
    noun, target = "output" if checkpoint.estimates else "class", None
    if not methods:
        return None
    current = linked_method(example.checkpoint, prefix)
    # Switch to the view that shows the change.
    view: dict[str, str | None] = {} if prefix else {"view": "relevance", "method": current}
    one, other = st.columns(2)
    if labels:
        probabilities = example.explanation.probabilities
        names = link_controls.distinct(labels)
        order = sorted(range(len(labels)), key=lambda index: 0 if checkpoint.estimates else -probabilities[index])
        order = order[:MOST_CLASSES]
        with one:
            target = link_controls.select(
                f"{side} {noun}".strip().capitalize(),
                f"{prefix}target",
                order,
                format_func=lambda index: f"{visible(labels[index])} · {written(checkpoint, probabilities[index])}",
                link=names.__getitem__,
                along=view,
                help=f"The {noun} to explain. Type to search. The most probable classes come first.",
            )
    with other if labels else one:
        method = link_controls.select(
            f"{side} method for the {noun if labels else 'answer'}".strip().capitalize(),
            f"{prefix}method",
            methods,
            current,
            format_func=lambda name: METHODS[name].title,
            along=view,
            omit=bool(prefix),
            help="\n\n".join(f"**{METHODS[name].title}**: {METHODS[name].sentence}" for name in methods),
        )
    if not prefix and len(labels) > 1 and not checkpoint.estimates:
        link_controls.select(
            "Rather than",
            "against",
            [None, *(index for index in order if index != target)],
            format_func=lambda index: "any other" if index is None else visible(labels[index]),
            link=lambda index: "" if index is None else names[index],
            along=view,
            help="Why the class on the left, and not this one: red speaks for the one, blue for the other.",
        )
    if labels and method == recommended(example.checkpoint.facts):
        st.caption(f"{METHODS[method].title} opens first: {_reason(method, example.checkpoint.facts)}.")
    return MethodChoice(target, method)


def _reason(method: str, facts: Any) -> str:
    """Return half a sentence on why the recommended method opens first."""
    pictures, every = recorded_results(facts)
    if method in every:
        return f"of the quick methods it told best what the model relies on, on {pictures:,} test pictures"
    return "of the quick methods it measured best with the models that come with this app"
