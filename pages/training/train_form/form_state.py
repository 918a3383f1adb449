"""State of the form on page Train, in controls and in the URL: reloads keep it, and Back undoes the last change.

Only this file uses the session keys of the form's controls.

A browser sends the values of all its controls with every click. After the server has set a control, the browser sends
the old value until it has redrawn the control, which Streamlit cannot distinguish from a new selection. So a control
gets a new key whenever the server sets it, and values under old keys are ignored.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import streamlit as st

from pages.links import link_controls, session
from pages.streamlit_internals import sessions
from pages.training import setting_names
from pages.training.train_form import settings
from pages.training.train_form.form import PARTS, TrainForm


@dataclass
class _Writes:
    """Number of times that the server has set each control, by name."""

    count: dict[str, int] = field(default_factory=dict)


def key(name: str) -> str:
    """Return the current key of a control, for a part of the form or a second control of the same part."""
    first = settings.first_key(name) if name in setting_names.NAMES else name
    return link_controls.numbered(first, session.of(_Writes).count.get(name, 0))


def show(name: str, value: Any) -> None:
    """Set the value of a control, before it is drawn in this run."""
    before = key(name)
    if before in st.session_state:
        if st.session_state[before] == value:
            return
        del st.session_state[before]
        count = session.of(_Writes).count
        count[name] = count.get(name, 0) + 1
    st.session_state[key(name)] = value


def handler(name: str, choose: Callable[[], None]) -> dict[str, Any]:
    """Return key and callback of a control as keyword arguments; `choose` is called when the visitor changes it."""
    return {"key": key(name), "on_change": _if_current, "args": (name, key(name), choose)}


def _if_current(name: str, drawn: str, choose: Callable[[], None]) -> None:
    if drawn == key(name):
        choose()


def read() -> TrainForm:
    """Read the form from the controls."""
    return TrainForm.of_parts({part: st.session_state[key(part)] for part in PARTS})


def write(form: TrainForm) -> None:
    """Set all controls to a form, before they are drawn in this run."""
    for part, value in form.parts().items():
        show(part, value)


def change(step: Callable[[TrainForm], TrainForm]) -> None:
    """Replace the form by `step(form)`, in a callback or before the controls are drawn."""
    before = read()
    after = step(before)
    if after != before:
        write(after)


def restrict(part: str, options: Collection[str | None]) -> None:
    """Select the first option if the selected one no longer exists, before the control is drawn."""
    if st.session_state[key(part)] not in options:
        show(part, next(iter(options)))


def shares() -> bool:
    """Whether runs share devices, even if the toggle is not drawn in every run."""
    return bool(st.session_state.get("share"))


def control_value(name: str) -> Any:
    """Return the value of a control, in its callback."""
    return st.session_state[key(name)]


def url_has_priority() -> bool:
    """Whether the URL has priority over the session: at the start, and after the browser's Back to a form."""
    if sessions.is_history_navigation() and set(PARTS) & st.query_params.keys():
        return True
    return any(key(part) not in st.session_state for part in PARTS)


def load_from_url(starts: Collection[str]) -> tuple[str, ...]:
    """Fill the form from the untrusted URL, and return invalid parameters.

    Args:
        starts: checkpoints that a run can start from.
    """
    form, refused = TrainForm.from_query(st.query_params, starts)
    write(form)
    return refused


def remember(form: TrainForm) -> None:
    """Write the form into the URL."""
    query = form.to_query()
    if query != st.query_params.to_dict():
        st.query_params.from_dict(query)
