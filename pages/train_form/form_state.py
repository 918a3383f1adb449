"""The form of page Train in its controls and in the address: a reload keeps it, and Back undoes the last change.

Only this file knows under which keys the session keeps what the controls hold.

A browser sends the values of all its controls with every click. Until it has drawn what the server wrote into a
control, it sends the old value, which Streamlit cannot tell from a new choice. So a control into which the server
writes gets a new key, and values under an old key count for nothing.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

from pages.links import link_controls, session
from pages.shared import setting_names
from pages.streamlit_internals import sessions
from pages.train_form import settings
from pages.train_form.form import PARTS, TrainForm


@dataclass
class _Writes:
    """How often the server wrote into a control since it was drawn first, by the control's name."""

    count: dict[str, int] = field(default_factory=dict)


def key(name: str) -> str:
    """The current key of a control: of a part of the form, or of one that shows a part in another way."""
    first = settings.first_key(name) if name in setting_names.NAMES else name
    return link_controls.numbered(first, session.of(_Writes).count.get(name, 0))


def show(name: str, value: Any) -> None:
    """Write a value into a control that is not drawn yet."""
    before = key(name)
    if before in st.session_state:
        if st.session_state[before] == value:
            return
        del st.session_state[before]
        count = session.of(_Writes).count
        count[name] = count.get(name, 0) + 1
    st.session_state[key(name)] = value


def handler(name: str, choose: Callable[[], None]) -> dict[str, Any]:
    """A control's key and callback, as arguments: `choose` runs when a person changes it."""
    return {"key": key(name), "on_change": _if_current, "args": (name, key(name), choose)}


def _if_current(name: str, drawn: str, choose: Callable[[], None]) -> None:
    if drawn == key(name):
        choose()


def read() -> TrainForm:
    """The form as the controls have it."""
    return TrainForm.of_parts({part: st.session_state[key(part)] for part in PARTS})


def write(form: TrainForm) -> None:
    """Put a form into the controls, which are not drawn yet."""
    for part, value in form.parts().items():
        show(part, value)


def change(step: Callable[[TrainForm], TrainForm]) -> None:
    """Turn the form into another one, from a control's callback or before the controls are drawn."""
    before = read()
    after = step(before)
    if after != before:
        write(after)


def restrict(part: str, options: Collection[str | None]) -> None:
    """Where what was chosen is gone, choose the first of what is there, before the control is drawn."""
    if st.session_state[key(part)] not in options:
        show(part, next(iter(options)))


def is_on(name: str) -> bool:
    """Whether a toggle that is not always drawn was switched on."""
    return bool(st.session_state.get(name))


def control_value(name: str) -> Any:
    """What a control holds, for its callback."""
    return st.session_state[key(name)]


def is_news() -> bool:
    """Whether the address knows more than the session: at its start, and where the browser went back to a form."""
    if sessions.came_by_history() and set(PARTS) & st.query_params.keys():
        return True
    return any(key(part) not in st.session_state for part in PARTS)


def adopt(starts: Collection[str]) -> tuple[str, ...]:
    """Fill the form from the address, which anybody may have written; returns what it asks for in vain.

    Args:
        starts: what a run can start from.
    """
    form, refused = TrainForm.from_query(st.query_params, starts)
    write(form)
    return refused


def remember(form: TrainForm) -> None:
    """Write the form into the address."""
    query = form.to_query()
    if query != st.query_params.to_dict():
        st.query_params.from_dict(query)
