"""Controls bound to the URL's query parameters; invalid parameters are ignored.

A browser sends the values of all its controls with every click, including stale values of controls that it has not
redrawn since the last rerun. If these counted as selections, the link would change without a user action. So a control
gets a new key when its options change or when the link sets a value other than the user's last selection, and only a
value that differs from the one that the server set counts as a selection.

Streamlit's own `bind="query-params"` (tried with 1.67) replaces the history entry, so the browser's Back leaves the
page instead of undoing the last selection. It also passes a range with its ends reversed to the app.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import streamlit as st

from pages.links import address, session

REMEMBERED = 8  # replaced controls of one name whose values may still arrive


class _Drawn(NamedTuple):
    """A control as last drawn.

    Attributes:
        number: number of controls of this name that it replaced.
        offers: its options; if they change, the control is replaced.
    """

    number: int
    offers: Any


@dataclass
class _Controls:
    """A session's controls.

    Attributes:
        drawn: controls by name.
        values: last value of each control by key, set by the server or selected by the user.
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
    omit: bool = True,
    **more: Any,
) -> Any:
    """Draw a control with one option selected, bound to a query parameter.

    Args:
        name: query parameter, and prefix of the control's key.
        default: option without the parameter; the first one if None.
        format_func: returns an option's label.
        kind: `st.selectbox`, `st.select_slider` or `st.segmented_control`.
        link: returns an option's text in links.
        along: further query parameters that a selection changes; None removes one.
        omit: leave the default out of links.
    """
    default = options[0] if default is None else default

    def choose(option: Any) -> None:
        if option not in options:  # sent by a client other than the app's page
            return
        address.rewrite({**along, name: None if omit and option == default else link(option)})

    linked = {link(option): option for option in options}.get(address.text(name), default)
    labels = distinct([str(format_func(option)) for option in options])
    if kind is st.segmented_control:
        more |= {"required": True, "default": linked}
    elif kind is st.select_slider:
        more["value"] = linked
    else:
        more["index"] = list(options).index(linked)
    format_func = dict(zip(options, labels, strict=True)).get
    return kind(label, options, format_func=format_func, **bound(name, linked, choose, labels), **more)


def toggle(label: str, name: str, link: str = "1", **more: Any) -> bool:
    """Draw a toggle bound to a query parameter.

    Args:
        name: query parameter, and prefix of the toggle's key.
        link: value of the parameter while on; off removes the parameter.
    """

    def choose(on: bool) -> None:
        address.rewrite({name: link if on else None})

    linked = address.text(name) == link
    return st.toggle(label, linked, **bound(name, linked, choose), **more)


def bound(name: str, value: Any, choose: Callable[[Any], None], offers: Any = None) -> dict[str, Any]:
    """Return the key and callback of a control that shows `value`; a new key if the control must be replaced.

    Args:
        name: key of the first control.
        choose: called with each value that the user selects.
        offers: the control's options; if they change, it is replaced.
    """
    # A control is reused if it has the same options and already shows the link's value: then nothing is redrawn. Else
    # its key gets the next number, for which the browser holds no value, so it draws the link's. A click on the
    # replaced control can still arrive; its key stays in `values` for a while, so `_on_change` can tell a selection
    # from an echo.
    controls = session.of(_Controls)
    drawn, values = controls.drawn, controls.values
    before = drawn.get(name, _Drawn(0, offers))
    reusable = before.offers == offers and st.session_state.get(numbered(name, before.number), value) == value
    drawn[name] = _Drawn(before.number + (not reusable), offers)
    key = numbered(name, drawn[name].number)
    values[key] = value
    values.pop(numbered(name, drawn[name].number - REMEMBERED), None)
    return {"key": key, "on_change": _on_change, "args": (key, choose)}


def _on_change(key: str, choose: Callable[[Any], None]) -> None:
    """Pass a control's value to `choose` if it differs from the last known value; a widget callback."""
    value, values = st.session_state[key], session.of(_Controls).values
    if key in values and value is not None and value != values[key]:
        values[key] = value
        choose(value)


def link_of(names: Sequence[str]) -> dict[str, str]:
    """Return the link's values for some controls, for `redraw_if_changed`."""
    link = address.understood()
    return {name: "\n".join(link.get(name, [])) for name in names}


def redraw_if_changed(before: Mapping[str, str]) -> None:
    """In a fragment, rerun the whole page if values of controls outside of it have changed since `before`.

    If the browser sends a click inside and one outside of a fragment together, Streamlit reruns only the fragment.
    """
    if link_of(list(before)) != before:
        st.rerun()


def numbered(name: str, number: int) -> str:
    """Return the key of the control that replaced `number` earlier ones of its name."""
    return f"{name} {number}" if number else name


def distinct(labels: Sequence[str]) -> list[str]:
    """Number repeated labels, because the browser identifies a control's options by label.

    >>> distinct(["crane", "maillot", "crane"])
    ['crane', 'maillot', 'crane (2)']
    """
    count: dict[str, int] = {}
    distinct = []
    for label in labels:
        count[label] = count.get(label, 0) + 1
        distinct.append(f"{label} ({count[label]})" if count[label] > 1 else label)
    return distinct
