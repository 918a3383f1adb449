"""Widgets for the settings of a run, generated from the fields of `TrainConfig`."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Literal, get_args, get_origin

import streamlit as st
from pydantic import ConfigDict, TypeAdapter, ValidationError
from pydantic.fields import FieldInfo

from pages.shared.escape import with_code
from pages.training.setting_names import GROUPS, NAMES, TITLES, title
from vit.model.config import preset_names
from vit.training.loop.config import TrainConfig
from vit.training.trackers import plugin
from vit.validation import broken_rule

ELSEWHERE = ("data", "data_root", "init_from", "device")
COLUMNS = 3
LARGEST = 2**53 - 1  # largest integer that JavaScript represents exactly

_STEPS = {"lr": 1e-4, "muon_lr": 1e-3, "layer_scale": 1e-5, "ema": 1e-4, "warmup_epochs": 1.0, "grad_clip": 0.5}
_IN_CODE = re.compile(r"\b(dim|mlp_dim|lr|muon_lr)\b")  # names in error messages that have other titles on the page


def bounds(field: FieldInfo) -> tuple[Any, Any]:
    """Return smallest and largest value, or None; open limits are returned like closed ones and checked later."""
    low = high = None
    for rule in field.metadata:
        low = next((v for v in (getattr(rule, "ge", None), getattr(rule, "gt", None)) if v is not None), low)
        high = next((v for v in (getattr(rule, "le", None), getattr(rule, "lt", None)) if v is not None), high)
    return low, high


def kind(name: str) -> tuple[type, tuple[str, ...], bool]:
    """Return a setting's type, its choices if any, and whether it is optional."""
    field = TrainConfig.model_fields[name]
    parts = get_args(field.annotation) if get_origin(field.annotation) not in (Literal, None) else (field.annotation,)
    optional = type(None) in parts
    main = next(part for part in parts if part is not type(None))
    if get_origin(main) is Literal:
        return str, get_args(main), optional
    if name == "track":
        return main, ("", *plugin.available()), optional
    return main, tuple(preset_names()) if name == "size" else (), optional


def explain(name: str, field: FieldInfo) -> str:
    """Return the help text of a setting: description, range, and name on the command line."""
    text = (field.description or "").replace("[", "\\[")
    text = f"{text[0].upper()}{text[1:]}." if text else ""
    return " ".join(filter(None, (text, limits(name), f"`{name}`")))


def limits(name: str) -> str:
    """Return the limits of a numeric setting as a sentence; "" if there are none.

    >>> limits("dropout"), limits("limit"), limits("flip")
    ('From 0 to 1.', 'At least 1.', '')
    """
    low, high = bounds(TrainConfig.model_fields[name])
    if high is not None:
        return f"From {_number(low)} to {_number(high)}."
    return f"At least {_number(low)}." if low is not None else ""


def _number(value: float) -> str:
    return f"{value:,}" if isinstance(value, int) else f"{value:g}"


def check(settings: Mapping[str, Any]) -> tuple[TrainConfig | None, dict[str, str]]:
    """Validate settings as the command line does.

    Returns:
        The `TrainConfig`, or None if invalid; and errors by setting, "" for errors that concern several.
    """
    try:
        return TrainConfig(**settings), {}
    except ValidationError as error:
        problems: dict[str, str] = {}
        for one in error.errors():
            ours = one["type"] == "value_error"
            text = one["msg"].removeprefix("Value error, ") if ours else f"It {broken_rule(one)}."
            name = text.split(maxsplit=1)[0] if ours else str(one["loc"][0])
            if name not in TrainConfig.model_fields:
                name = "init_from" if settings.get("init_from") else ""
            text = _IN_CODE.sub(lambda word: TITLES[word.group()].lower(), text)
            problems.setdefault(name, text)
        return None, problems


def show_problem(problems: Mapping[str, str], name: str) -> None:
    """Show the error of a setting, if any."""
    if name in problems:
        st.error(with_code(problems[name]))


def first_key(name: str) -> str:
    """Return the initial key of a setting's control."""
    return f"set_{name}"


def base_value(settings: Mapping[str, Any], name: str) -> Any:
    """Return the value of a setting, or its default."""
    return settings.get(name, TrainConfig.model_fields[name].default)


def complete(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return all settings that have a widget, with defaults for missing ones."""
    return {name: base_value(settings, name) for name in NAMES}


def changed(settings: Mapping[str, Any], base: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from a preset."""
    return {name: value for name, value in settings.items() if value != base_value(base, name)}


def parse(name: str, text: str) -> Any:
    """Parse a setting from an untrusted link.

    Raises:
        ValueError: the value is invalid.
    """
    type_, choices, optional = kind(name)
    if optional and not text:
        return None
    rule = TypeAdapter(TrainConfig.model_fields[name].rebuild_annotation(), config=ConfigDict(allow_inf_nan=False))
    value = rule.validate_strings(text)
    if (choices and value not in choices) or (type_ is int and abs(value) > LARGEST):
        raise ValueError(f"{text!r} is not a value of {name}.")
    return value


def show_group(
    group: str,
    settings: Mapping[str, Any],
    base: Mapping[str, Any],
    follows: Mapping[str, str],
    problems: Mapping[str, str],
    key_of: Callable[[str], str],
    disabled: tuple[str, ...],
) -> None:
    """Draw a group of settings in an expander.

    Args:
        settings: settings of the form.
        base: settings of the preset, to count changes.
        follows: placeholders of empty settings: the derived value and its origin.
        problems: errors by setting.
        key_of: returns the key of a setting's control.
        disabled: settings without effect.
    """
    names = [name for name in GROUPS[group] if name != "track" or plugin.available()]
    fields = TrainConfig.model_fields
    count = len(changed(settings, base).keys() & set(names))
    wrong = any(name in problems for name in names)
    label = f"{group} · {count} changed" if count else group
    with st.expander(label, expanded=wrong, icon="⚠️" if wrong else None, key=f"group_{group}"):
        for first in range(0, len(names), COLUMNS):
            for column, name in zip(st.columns(COLUMNS), names[first : first + COLUMNS], strict=False):
                with column:
                    show_field(name, fields[name], follows.get(name, ""), name in disabled, key_of(name))
                    show_problem(problems, name)


def show_field(name: str, field: FieldInfo, follows: str, disabled: bool, key: str) -> None:
    """Draw the widget of a setting.

    Number inputs have no limits: Streamlit would silently keep the last valid value. Instead, the typed value is used
    and validation reports its error.
    """
    type_, choices, optional = kind(name)
    common: dict[str, Any] = dict(
        label=title(name),
        key=key,
        help=explain(name, field),
        disabled=disabled,
        persist_state="session",
    )
    if choices:
        st.selectbox(
            options=choices,
            index=None if optional else 0,
            placeholder=follows or "none",
            format_func=lambda choice: choice or "none",
            **common,
        )
    elif type_ is bool:
        with st.container(height=66, border=False, vertical_alignment="bottom", gap=None):
            st.toggle(**common)
    elif type_ is str:
        st.text_input(max_chars=20, placeholder="nothing", **common)
    else:
        whole = type_ is int
        st.number_input(
            value=None if optional else "min",
            step=1 if whole else _STEPS.get(name, 0.05),
            format=None if whole else "%g",
            placeholder=follows or "none",
            **common,
        )
