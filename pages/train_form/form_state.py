"""The form of page Train in its controls and in the address: a reload keeps it, and Back undoes the last change.

Only this file knows under which keys the session keeps what the controls hold.
"""

from collections.abc import Callable, Collection
from typing import Any

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from pages.shared import setting_names
from pages.train_form import settings
from pages.train_form.form import PARTS, TrainForm


def key(part: str) -> str:
    """The key of the control for a part of the form."""
    return settings.key(part) if part in setting_names.NAMES else part


def read() -> TrainForm:
    """The form as the controls have it."""
    return TrainForm.of_parts({part: st.session_state[key(part)] for part in PARTS})


def write(form: TrainForm) -> None:
    """Put a form into the controls, which are not drawn yet."""
    for part, value in form.parts().items():
        st.session_state[key(part)] = value


def change(step: Callable[[TrainForm], TrainForm]) -> None:
    """Turn the form into another one, from a control's callback or before the controls are drawn."""
    before = read()
    after = step(before)
    if after != before:
        write(after)


def restrict(part: str, options: Collection[str | None]) -> None:
    """Where what was chosen is gone, choose the first of what is there, before the control is drawn."""
    if st.session_state[key(part)] not in options:
        st.session_state[key(part)] = next(iter(options))


def is_on(name: str) -> bool:
    """Whether a toggle that is not always drawn was switched on."""
    return bool(st.session_state.get(name))


def control_value(name: str) -> Any:
    """What a control holds that is no part of the form by itself; for its callback."""
    return st.session_state[name]


def set_control(name: str, value: Any) -> None:
    """Let such a control hold what the form says, before it is drawn."""
    st.session_state[name] = value


def is_news() -> bool:
    """Whether the address knows more than the session: at its start, and where the browser went back to a form."""
    context = get_script_run_ctx()
    if context is not None and context.is_history_navigation and set(PARTS) & st.query_params.keys():
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
