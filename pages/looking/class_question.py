"""Why this class: the class and the method that the person chose, and what the methods need to know of the picture."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import streamlit as st

from pages.components import viewer
from pages.links import link_controls
from pages.server import pass_queue
from pages.server.result_cache import cached, with_bar
from pages.shared.escape import visible
from vit.explain import methods
from vit.explain.methods import METHODS, Subject
from vit.view import export, first_view, payload
from vit.view.first_view import FirstView
from vit.view.selection import Selection

if TYPE_CHECKING:
    from torch import Tensor

MOST_CLASSES = 2000  # classes to choose from, the most probable ones
DEFAULT = first_view.METHOD


@dataclass(frozen=True)
class Example:
    """What the page is about.

    Attributes:
        key: tells this checkpoint, picture, size and precision from all others; the payload alone does not, as it is
            the same for two answers read from one backbone.
        checkpoint: from `load_checkpoint`.
        explanation: from `explain`.
        covered: the model's input, where it is not the picture as it is.
        hook: on what the model's heads compute with, see `VisionTransformer.forward`.
        stored: all that is known while PyTorch is not there; None once it is.
    """

    key: str
    checkpoint: Any
    explanation: Any
    covered: Any = None
    hook: Any = None
    stored: FirstView | None = None

    @property
    def pixels(self) -> Tensor:
        """The model's input (1, channels, height, width)."""
        return self.explanation.preprocess(self.explanation.picture) if self.covered is None else self.covered


def subject(example: Example, target: int | None) -> Subject:
    """The picture asked about a class, or about none, once."""

    def work() -> Subject:
        with pass_of(example):
            if target is None:
                return Subject.without_class(example.checkpoint.model, example.pixels, hook=example.hook)
            return Subject.of(example.checkpoint.model, example.pixels, target, example.hook)

    return cached(("subject", example.key, target), work)


def pass_of(example: Example) -> AbstractContextManager[None]:
    """Room for a pass that keeps more than attention: see `pass_queue.reserved`."""
    return pass_queue.reserved(example.checkpoint, example.explanation.preprocess.size, pass_queue.KEPT)


def chain(example: Example, target: int) -> bytes:
    """What the browser needs to follow the pointer with relevance."""
    if example.stored:
        return example.stored.chain

    def packed() -> bytes:
        record = subject(example, target).record
        return payload.pack_chain([record.flow(block) for block in range(record.blocks)], record.read)

    return cached(("chain", example.key, target), packed)


def masks_name(example: Example, target: int) -> str:
    """By which the viewer finds the masks that judge its maps; known before PyTorch is there to measure them."""
    return f"masks of {example.key} {target}"


class Question(NamedTuple):
    """What the person wants to know.

    Attributes:
        target: index of the class; None for a model without classes.
        method: its name in `METHODS`.
    """

    target: int | None
    method: str

    @property
    def about(self) -> int:
        """The class, of a question to a model that has some."""
        assert self.target is not None, "the model has no classes"
        return self.target

    @property
    def explained(self) -> int | None:
        """The class that the method explains, if it is of one."""
        return self.target if METHODS[self.method].of_class else None


def computed_map(
    example: Example, selection: Selection, question: Question | None, prefix: str = ""
) -> tuple[viewer.ComputedMap | None, viewer.Method | None]:
    """The map that Python computes for the viewer, if it must, and what the viewer is to know of the method.

    Args:
        prefix: tells several viewers of a page apart.
    """
    record = example.explanation.record
    large = record.tokens > payload.MAPS_UP_TO
    chained = record.blocks * record.tokens**2 <= payload.CHAIN_UP_TO
    described = None
    token = -1
    values: Any = None
    if question:
        described = _described(example, selection, question)
        if selection.view == "relevance" and question.method == "relevance" and chained:
            described["chain"] = viewer.feed(f"{prefix}chain feeder", chain(example, question.about))
        elif selection.view == "relevance" and example.stored:
            values = example.stored.map_of(selection, question.about, question.method)
        elif selection.view == "relevance":
            values = weights(example, selection, question)
            token = -1 if (asks := _token(selection, question)) is None else asks
    if selection.view == "rollout" and large and not example.stored:
        token, values = selection.token, weights(example, selection, None)
    return None if values is None else _computed(selection, token, values), described


def _described(example: Example, selection: Selection, question: Question) -> viewer.Method:
    """What the viewer is to know of the method."""
    method = METHODS[question.method]
    return viewer.Method(
        title=method.title,
        sentence=method.sentence,
        target=visible(_label(example, question)),
        chain="",
        tokens=method.of_tokens,
        settings=list(selection.settings(method.settings)),
    )


def _computed(selection: Selection, token: int, values: Tensor) -> viewer.ComputedMap:
    return viewer.ComputedMap(
        view=selection.view,
        token=token,
        direction=selection.direction,
        settings=selection.settings(),
        values=values.tolist(),
    )


def in_page(example: Example, selection: Selection, question: Question) -> dict[str, Any]:
    """For a saved page that shows something else at first: the method's maps, its view being a click away there.

    Returns:
        `computed`, `method` and `chain` as of `for_export`; none of a method that takes many passes, as nobody is to
        wait for it unbidden.
    """
    method, record = METHODS[question.method], example.explanation.record
    of_class = replace(selection, view="relevance", pinned=False)
    needed: dict[str, Any] = {"method": _described(example, of_class, question)}
    if question.method == "relevance" and record.blocks * record.tokens**2 <= payload.CHAIN_UP_TO:
        return needed | {"chain": chain(example, question.about)}
    return {} if method.passes else needed | {"computed": _computed(of_class, -1, weights(example, of_class, question))}


def weights(example: Example, selection: Selection, question: Question | None) -> Tensor:
    """What the viewer shows for a selection: (N,)."""
    if selection.view != "relevance" or question is None:
        return export.weights(example.explanation.record, selection)
    explained, token = subject(example, question.explained), _token(selection, question)
    method, name = METHODS[question.method], question.method
    settings = selection.settings(method.settings)
    if not method.passes:
        return methods.weights(explained, name, token, selection.direction, **settings)

    def work(progress: Callable[[float], object]) -> Tensor:
        with pass_of(example):
            return methods.weights(replace(explained, progress=progress), name, token, selection.direction, **settings)

    return with_bar(("map", example.key, question.target, name, token), f"{method.title}: many passes…", work)


def _token(selection: Selection, question: Question) -> int | None:
    """What the method is asked about: the pinned token, or None for the class itself."""
    return selection.token if selection.pinned and METHODS[question.method].of_tokens else None


def _label(example: Example, question: Question) -> str:
    """The name of the class that the method explains, "" for a method that is not of one."""
    return "" if question.explained is None else example.checkpoint.labels[question.explained]


def for_export(
    example: Example,
    selection: Selection,
    question: Question | None,
    computed: viewer.ComputedMap | None,
    method: viewer.Method | None,
) -> tuple[Callable[[], export.MapView] | None, dict[str, Any], dict[str, Any] | None]:
    """For `downloads.show`: what gives the map of a method, None for other views; what viewer and code need.

    Args:
        computed, method: from `computed_map`.
    """
    if selection.view != "relevance" or question is None:
        needed: dict[str, Any] = {"computed": computed}
        if question and computed is None and not example.stored:
            needed["others"] = partial(in_page, example, selection, question)
        return None, needed, None
    token, unusual = _token(selection, question), selection.changed(METHODS[question.method].settings)
    code = {"method": question.method} | unusual
    code |= {"target": question.target} if question.explained is not None else {}
    code |= {"query": token, "direction": selection.direction} if token is not None else {}
    linked = method and method["chain"]

    def map_view() -> export.MapView:
        explained, label = subject(example, question.explained), _label(example, question)
        return export.MapView.of_method(explained, question.method, label, token, selection.direction, selection)

    needed = {
        "computed": computed,
        "method": method,
        "chain": chain(example, question.about) if linked else None,
    }
    return map_view, needed, code


def methods_for(checkpoint: Any) -> list[str]:
    """The methods that show more than the viewer's own views: none for a model with neither classes nor such a head.

    Where the head reads the class token, attention and rollout of the answer are that token's, which the viewer shows.
    """
    others = checkpoint.config.pool != "cls"
    return [name for name, method in METHODS.items() if (checkpoint.labels if method.of_class else others)]


def pick_folded(example: Example, prefix: str = "", side: str = "") -> Question | None:
    """The same as `pick`, in a popover; nothing where there is nothing to choose from."""
    if not methods_for(example.checkpoint):
        return None
    words = "class and method" if example.checkpoint.labels else "method"
    with st.popover(f"{side} {words}".strip().capitalize(), width="content"):
        return pick(example, prefix, side)


def pick(example: Example, prefix: str = "", side: str = "") -> Question | None:
    """Let the person choose a class and a method; None where there is nothing to choose from.

    Args:
        prefix, side: of their names in links and on the page, where it asks twice.
    """
    labels, methods, target = example.checkpoint.labels, methods_for(example.checkpoint), None
    view: dict[str, str | None] = {} if prefix else {"view": "relevance"}  # or a choice would change nothing in sight
    if not methods:
        return None
    one, other = st.columns(2)
    if labels:
        probabilities = example.explanation.probabilities
        order = sorted(range(len(labels)), key=lambda index: -probabilities[index])[:MOST_CLASSES]
        with one:
            target = link_controls.select(
                f"{side} class".strip().capitalize(),
                f"{prefix}target",
                order,
                format_func=lambda index: f"{visible(labels[index])} · {probabilities[index]:.1%}",
                along=view,
                help="What should the picture speak for? Type to search. The most probable classes come first.",
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
    return Question(target, method)
