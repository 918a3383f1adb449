"""Why this class: the class and the method that the person chose, and what the methods need to know of the picture."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import streamlit as st

from vit.text import plain
from vit.viewer.selection import Selection

MOST = 2000  # classes to choose from, the most probable ones
DEFAULT = "relevance"


@dataclass(frozen=True)
class Asked:
    """What the page is about.

    Attributes:
        key: tells this checkpoint, picture, size and precision from all others.
        checkpoint: from `load_checkpoint`.
        explanation: from `explain`.
    """

    key: str
    checkpoint: Any
    explanation: Any

    @property
    def pixels(self):
        """The model's input (1, channels, height, width)."""
        return self.explanation.preprocess(self.explanation.picture)


@st.cache_resource(show_spinner=False, max_entries=8)
def subject(key: str, target: int, _asked: Asked):
    """The picture asked about a class, once."""
    from vit.methods import Subject

    return Subject.of(_asked.checkpoint.model, _asked.pixels, target)


@st.cache_resource(show_spinner=False, max_entries=8)
def chain(key: str, target: int, _asked: Asked) -> bytes:
    """What the browser needs to follow the pointer with relevance."""
    from vit.viewer.payload import pack_chain

    kept = subject(key, target, _asked).kept
    return pack_chain([kept.flow(block) for block in range(kept.blocks)], kept.read)


class Question(NamedTuple):
    """What the person wants to know.

    Attributes:
        target: index of the class.
        method: its name in `METHODS`.
    """

    target: int
    method: str


def given(asked: Asked, selection: Selection, question: Question | None, prefix: str = ""):
    """The map that Python computes for the viewer, if it must, and what the viewer is to know of the method.

    Args:
        prefix: tells several viewers of a page apart.
    """
    from vit.export import traced
    from vit.methods import METHODS
    from vit.viewer import component
    from vit.viewer.payload import MAPS_UP_TO

    record = asked.explanation.record
    large = record.tokens > MAPS_UP_TO
    told = None
    token, values = -1, None
    if question:
        method = METHODS[question.method]
        label = plain(asked.checkpoint.labels[question.target])
        told = component.Method(title=method.title, target=label, chain="", tokens=method.of_tokens)
        if selection.view == "relevance" and traced(question.method, record.tokens):
            told["chain"] = component.feed(f"{prefix}chain feeder", chain(asked.key, question.target, asked))
        elif selection.view == "relevance":
            values = weights(asked, selection, question)
            values = values / values.sum().clamp_min(1e-30)
            token = selection.token if selection.pinned and method.of_tokens else -1
    if selection.view == "rollout" and large:
        token, values = selection.token, record.rollout(selection.token, direction=selection.direction)
    if values is None:
        return None, told
    view, direction = selection.view, selection.direction
    return component.Given(view=view, token=token, direction=direction, values=values.tolist()), told


def weights(asked: Asked, selection: Selection, question: Question | None):
    """What the viewer shows for a selection: (N,)."""
    from vit import export
    from vit.methods import METHODS

    if selection.view != "relevance" or question is None:
        return export.weights(asked.explanation.record, selection)
    chosen, token = METHODS[question.method], _token(selection, question)
    return chosen.weights(subject(asked.key, question.target, asked), token, selection.direction)


def drawn(asked: Asked, selection: Selection, question: Question | None):
    """The same as the viewer draws it: of relevance that follows the pointer, without what it begins with."""
    from vit.export import class_weights

    if selection.view != "relevance" or question is None:
        return weights(asked, selection, question)
    token = _token(selection, question)
    return class_weights(subject(asked.key, question.target, asked), question.method, token, selection.direction)


def _token(selection: Selection, question: Question) -> int | None:
    """What the method is asked about: the pinned token, or None for the class itself."""
    from vit.methods import METHODS

    return selection.token if selection.pinned and METHODS[question.method].of_tokens else None


def taken(asked: Asked, selection: Selection, question: Question | None, given, method):
    """For `take.show`: what gives the map of a class, None for other views; what its viewer needs; what its code needs.

    Args:
        given, method: from `given`.
    """
    from vit.export import Shown

    if selection.view != "relevance" or question is None:
        return None, {"given": given}, None
    token = _token(selection, question)
    code = {"method": question.method, "target": question.target}
    code |= {"query": token, "direction": selection.direction} if token is not None else {}
    linked = method and method["chain"]

    def shown() -> Shown:
        label = asked.checkpoint.labels[question.target]
        found = subject(asked.key, question.target, asked)
        return Shown.of_class(found, question.method, label, token, selection.direction)

    needed = {
        "given": given,
        "method": method,
        "chain": chain(asked.key, question.target, asked) if linked else None,
    }
    return shown, needed, code


def pick(asked: Asked, prefix: str = "", side: str = "") -> Question | None:
    """Let the person choose a class and a method; None for a model without classes.

    Args:
        prefix, side: of their names in links and on the page, where it asks twice.
    """
    from vit.methods import METHODS

    labels = asked.checkpoint.labels
    if not labels:
        return None
    probabilities = asked.explanation.record.logits[0].softmax(0)
    order = probabilities.argsort(descending=True)[:MOST].tolist()
    methods = [name for name, method in METHODS.items() if method.of_class]

    def remember(name: str, default: Any, choices: list) -> None:
        chosen = st.session_state[name]
        if chosen not in choices:  # words of another picture, where the class had another probability
            return
        st.query_params.pop(name, None)
        if chosen != default:
            st.query_params[name] = str(chosen)

    wanted = st.query_params.get(f"{prefix}target", "")
    target = int(wanted) if wanted.isdecimal() and int(wanted) in order else order[0]
    if st.session_state.get(f"{prefix}target") != target:  # with the next picture the class stays, its words change
        st.session_state[f"{prefix}target"] = target
    method = st.query_params.get(f"{prefix}method", DEFAULT)
    one, other = st.columns(2)
    with one:
        target = st.selectbox(
            f"{side} class".strip().capitalize(),
            order,
            format_func=lambda index: f"{plain(labels[index])} · {float(probabilities[index]):.1%}",
            key=f"{prefix}target",
            on_change=remember,
            args=(f"{prefix}target", order[0], order),
            help="What should the picture speak for? Type to search. The most probable classes come first.",
        )
    with other:
        method = st.selectbox(
            f"{side} method for the class".strip().capitalize(),
            methods,
            methods.index(method) if method in methods else methods.index(DEFAULT),
            format_func=lambda name: METHODS[name].title,
            key=f"{prefix}method",
            on_change=remember,
            args=(f"{prefix}method", DEFAULT, methods),
            help="\n\n".join(f"**{METHODS[name].title}**: {METHODS[name].words}" for name in methods),
        )
    return Question(target, method)
