"""Controls whose choice stands in the link; what a link says in vain is left aside.

A browser sends the values of all its controls with every click, so also those that it holds because it has not drawn
yet what the server made of the click before. Taken for choices, they would put into the link what nobody chose.
Therefore a control is another one, with a key of its own, as soon as it offers something else or is told something
else than what was chosen in it; and only a value that differs from what it was told is a choice.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import streamlit as st

from pages.links import address, session

REMEMBERED = 8  # controls of one name whose values may still arrive


class _Drawn(NamedTuple):
    """A control as it was drawn last.

    Attributes:
        number: how many of its name there were before it.
        offers: what makes it another one when it changes.
    """

    number: int
    offers: Any


@dataclass
class _Controls:
    """A session's controls.

    Attributes:
        drawn: by name.
        values: by key, what a control was to show, or was set to since.
    """

    drawn: dict[str, _Drawn] = field(default_factory=dict)
    values: dict[str, Any] = field(default_factory=dict)


def select(
    label: str,
    name: str,
    options: Sequence[Any],
    default: Any = None,
    format_func: Callable[[Any], Any] = str,
    kind: Callable[..., Any] = st.selectbox,
    link: Callable[[Any], str] = str,
    along: Mapping[str, str | None] = MappingProxyType({}),
    **more: Any,
) -> Any:
    """Let the person choose one of several.

    Args:
        name: in links, and where its key begins.
        default: that links leave out; the first option if it is None.
        format_func: an option as the page shows it.
        kind: `st.selectbox`, `st.select_slider` or `st.segmented_control`.
        link: an option as links hold it.
        along: what a new choice also changes in the link; None is taken out of it.
    """
    default = options[0] if default is None else default

    def choose(option: Any) -> None:
        if option not in options:  # no browser of ours sends that
            return
        address.rewrite({**along, name: link(option) if option != default else None})

    linked = {link(option): option for option in options}.get(address.text(name), default)
    labels = distinct([str(format_func(option)) for option in options])
    if kind is st.segmented_control:
        more |= {"required": True, "default": linked}
    elif kind is st.select_slider:
        more["value"] = linked
    else:
        more["index"] = list(options).index(linked)
    key = key_of(name, linked, labels)
    return kind(
        label,
        options,
        format_func=dict(zip(options, labels, strict=True)).get,
        key=key,
        on_change=on_change,
        args=(key, choose),
        **more,
    )


def toggle(label: str, name: str, link: str = "1", **more: Any) -> bool:
    """Let the person switch something on.

    Args:
        name: in links, and where its key begins.
        link: what links hold while it is on; off, they leave it out.
    """

    def choose(on: bool) -> None:
        address.rewrite({name: link if on else None})

    linked = address.text(name) == link
    key = key_of(name, linked)
    return st.toggle(label, linked, key=key, on_change=on_change, args=(key, choose), **more)


def key_of(name: str, value: Any, offers: Any = None) -> str:
    """The key of a control that is to show `value`: a new one where it must be told something; for `on_change`.

    Args:
        name: the key of the first one.
        offers: what makes it another control when it changes.
    """
    controls = session.of(_Controls)
    drawn, values = controls.drawn, controls.values
    before = drawn.get(name, _Drawn(0, offers))
    now = before.offers == offers and st.session_state.get(numbered(name, before.number), value) == value
    drawn[name] = _Drawn(before.number + (not now), offers)
    key = numbered(name, drawn[name].number)
    values[key] = value
    values.pop(numbered(name, drawn[name].number - REMEMBERED), None)
    return key


def on_change(key: str, choose: Callable[[Any], None]) -> None:
    """From a control: `choose` its value, unless it is what the control was told or said before."""
    value, values = st.session_state[key], session.of(_Controls).values
    if key in values and value is not None and value != values[key]:
        values[key] = value
        choose(value)


def link_of(names: Sequence[str]) -> dict[str, str]:
    """What the link says of some controls, for `redraw_if_changed`."""
    link = address.understood()
    return {name: "\n".join(link.get(name, [])) for name in names}


def redraw_if_changed(before: Mapping[str, str]) -> None:
    """For a fragment: run the whole page if the link says something else of controls outside than when it was drawn.

    What a browser sends together, a click in a fragment and one outside of it, reruns the fragment alone.
    """
    if link_of(list(before)) != before:
        st.rerun()


def numbered(name: str, number: int) -> str:
    """The key of the control that replaced `number` earlier ones of its name."""
    return f"{name} {number}" if number else name


def distinct(labels: Sequence[str]) -> list[str]:
    """The same labels; those that came before with a number, as the browser tells a control's options apart by them.

    >>> distinct(["crane", "maillot", "crane"])
    ['crane', 'maillot', 'crane (2)']
    """
    count: dict[str, int] = {}
    distinct = []
    for label in labels:
        count[label] = count.get(label, 0) + 1
        distinct.append(f"{label} ({count[label]})" if count[label] > 1 else label)
    return distinct
