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
from vit.view import first_view, map_source, map_view, method_choice, payload
from vit.view.first_view import FirstView
from vit.view.method_choice import MethodChoice, describe
from vit.view.selection import Selection

if TYPE_CHECKING:
    from torch import Tensor

MOST_CLASSES = 2000  # options of the class selector, the most probable ones
DEFAULT = first_view.METHOD
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
    if example.stored:
        return example.stored.chain
    return cached(
        ("chain", example.key, target), lambda: payload.relevance_chain(recorded_pass(example, target).record)
    )


def remember_chain(explanation: Any, checkpoint: Any, stored: FirstView) -> None:
    """Store the chain of the first view for `chain`: it saves a forward and a backward pass of the same picture."""
    key = example_key(viewer.payload_id(explanation.payload), checkpoint)
    cached(("chain", key, stored.target), lambda: stored.chain)


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
    return method_choice.computed_map(selection, token, weights(example, selection, choice)), described


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
    return needed | {"computed": method_choice.computed_map(of_class, None, weights(example, of_class, choice))}


def weights(example: Example, selection: Selection, choice: MethodChoice | None) -> Tensor:
    """Compute the numbers that the viewer shows for a selection: (N,)."""
    if selection.view != "relevance" or choice is None:
        return map_view.weights(example.explanation.record, selection)
    if choice.method == GROWING:
        return _mask_drops().best_map(example, choice.target_index)
    explained, method = recorded_pass(example, choice.explained_class), METHODS[choice.method]
    if not method.passes:
        return map_source.method_weights(explained, selection, choice)

    def work(progress: Callable[[float], object]) -> Tensor:
        with pass_of(example):
            return map_source.method_weights(replace(explained, progress=progress), selection, choice)

    key = "map", example.key, choice.target, choice.method, choice.token(selection)
    return with_bar(key, f"{method.title}: many passes…", work)


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


def pick_folded(example: Example, prefix: str = "", side: str = "") -> MethodChoice | None:
    """Draw `pick` in a popover; draw nothing if there is no choice."""
    if not methods_for(example.checkpoint):
        return None
    words = "class and method" if example.checkpoint.labels else "method"
    with st.popover(f"{side} {words}".strip().capitalize(), width="content"):
        return pick(example, prefix, side)


def missing_class(example: Example, prefix: str = "") -> str:
    """Return a sentence if the link's class is none of the model's, such as a class of an earlier version; else ""."""
    labels, linked = example.checkpoint.labels, address.text(f"{prefix}target")
    if not linked or not labels or linked in link_controls.distinct(labels):
        return ""
    return f"{example.checkpoint.name} has no class “{linked}”, which the link names. The most probable class is shown."


def pick(example: Example, prefix: str = "", side: str = "") -> MethodChoice | None:
    """Draw the controls for a class and a method; None if the model supports no method.

    Args:
        prefix, side: prefixes of query parameters and of labels, for a page with two such controls.
    """
    labels, methods, target = example.checkpoint.labels, methods_for(example.checkpoint), None
    view: dict[str, str | None] = {} if prefix else {"view": "relevance"}  # switch to the view that shows the change
    if not methods:
        return None
    one, other = st.columns(2)
    if labels:
        probabilities = example.explanation.probabilities
        names = link_controls.distinct(labels)
        order = sorted(range(len(labels)), key=lambda index: -probabilities[index])[:MOST_CLASSES]
        with one:
            target = link_controls.select(
                f"{side} class".strip().capitalize(),
                f"{prefix}target",
                order,
                format_func=lambda index: f"{visible(labels[index])} · {probabilities[index]:.1%}",
                link=names.__getitem__,
                along=view,
                help="The class to explain. Type to search. The most probable classes come first.",
            )
    with other if labels else one:
        method = link_controls.select(
            f"{side} method for the {'class' if labels else 'answer'}".strip().capitalize(),
            f"{prefix}method",
            methods,
            DEFAULT if labels else methods[0],
            format_func=lambda name: METHODS[name].title,
            along=view,
            help="\n\n".join(f"**{METHODS[name].title}**: {METHODS[name].sentence}" for name in methods),
        )
    return MethodChoice(target, method)
