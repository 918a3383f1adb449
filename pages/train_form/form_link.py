"""The form of the page Train in the address: a reload keeps it, Back undoes the last change, and the link is a recipe.

Only what differs from the preset is written. The device is left out: it belongs to a machine.
"""

from collections.abc import Collection
from typing import Any

import streamlit as st
from streamlit.runtime.scriptrunner import get_script_run_ctx

from pages.train_form import data_picker
from pages.train_form import settings as fields
from vit.data import catalog
from vit.errors import UserError
from vit.training.presets import PRESETS

LONGEST = 300  # characters of a text


def blank(preset: str = "") -> dict[str, Any]:
    """Every part of the form by its name in a link, as it is where nothing but the preset was chosen."""
    first = next(iter(PRESETS))
    settings = PRESETS[preset or first].settings
    form = {name: fields.base_value(settings, name) for name in ("data", "init_from", *fields.NAMES)}
    if form["data"] not in data_picker.NAMED:
        form["data"] = next(iter(data_picker.NAMED))
    return {"preset": first, **form, "name": "", "sweep_1": None, "values_1": "", "sweep_2": None, "values_2": ""}


def state_key(name: str) -> str:
    """Where the session keeps a part of the form."""
    return fields.key(name) if name in fields.NAMES else name


def is_news() -> bool:
    """Whether the address knows more than the session: at its start, and where the browser went back to a form."""
    parts, context = blank(), get_script_run_ctx()
    if context is not None and context.is_history_navigation and parts.keys() & st.query_params.keys():
        return True
    return any(state_key(name) not in st.session_state for name in parts)


def adopt(starts: Collection[str]) -> list[str]:
    """Fill the form from the address, which anybody may have written; returns what it asks for in vain.

    Args:
        starts: what a run can start from.
    """
    requested: dict[str, Any] = {}
    refused = []
    for name in blank():
        if name in st.query_params:
            text = st.query_params[name]
            try:
                requested[name] = _accept(name, text, starts)
            except (UserError, ValueError):
                refused.append(f"{name}={text[:60]}")
    for name, value in (blank(requested.get("preset", "")) | requested).items():
        st.session_state[state_key(name)] = value
    return refused


def _accept(name: str, text: str, starts: Collection[str]) -> Any:
    """The value of a part of the form; UserError or ValueError where it has none such, or none that can be had here."""
    if name in fields.NAMES:
        return fields.parse(name, text)
    if name == "data":
        return catalog.check_spec(text)
    allowed = {"preset": PRESETS, "init_from": starts, "sweep_1": fields.NAMES, "sweep_2": fields.NAMES}
    if text not in allowed.get(name, (text,)) or len(text) > LONGEST:
        raise ValueError(f"{text[:LONGEST]!r} is not possible for {name}.")
    return text


def remember() -> None:
    """Write the form into the address."""
    state = st.session_state
    usual = blank(state.preset)
    form = {name: state[state_key(name)] for name in usual}
    written = {name: fields.write(value) for name, value in form.items() if value != usual[name]}
    if written != st.query_params.to_dict():
        st.query_params.from_dict(written)
