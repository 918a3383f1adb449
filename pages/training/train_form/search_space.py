"""Controls for the space of a search; form and link store it as text."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import streamlit as st

from pages.training import setting_names
from pages.training.train_form import form_state, settings
from pages.training.train_form.form import TrainForm
from vit.errors import InvalidConfig
from vit.training.loop.config import TrainConfig
from vit.training.search import space

_NAMES = "space_names"  # key of the control that selects the settings
_VALUES = "values"
_SCALES = {"log": "log scale", "linear": "linear", _VALUES: "values"}
_VALUE_TITLES = {"true": "on", "false": "off", '""': "nothing", "null": "by size"}

_Change = Callable[[str, Callable[[str], str]], None]  # applies a function to the text of a setting


class _Ends(NamedTuple):
    """A range with unvalidated ends, as typed."""

    low: str
    high: str
    log: bool

    def __str__(self) -> str:
        return f"{self.low}:{self.high}{':log' if self.log else ''}"


def texts_of(form: TrainForm, config: TrainConfig) -> dict[str, str]:
    """Return the space by setting, as text; the default space if the form has none.

    Settings that a search cannot vary or that the recipe does not use are left out. In a grid, ranges become values.
    """
    chosen = read(form.space)
    if not chosen:
        usual = space.default_space(config).items()
        chosen = {name: str(one) for name, one in list(usual)[: 1 if form.grid else None]}
    if form.grid:
        chosen = {
            name: _rescaled(config, name, text, _VALUES) if space.is_range(name, text) else text
            for name, text in chosen.items()
        }
    return {name: chosen[name] for name in chosen if name in _offered(config, chosen)}


def read(written: str) -> dict[str, str]:
    """Split the space of a form by setting; settings that a search cannot vary are left out.

    >>> read("lr=1e-4:1e-2:log device=cpu,cuda depth=2,4")
    {'lr': '1e-4:1e-2:log', 'depth': '2,4'}
    """
    pairs = (pair.partition("=") for pair in written.split())
    return {name: text for name, _, text in pairs if name in setting_names.NAMES and name not in space.NEVER}


def _write(texts: Mapping[str, str]) -> str:
    return " ".join(f"{name}={''.join(text.split())}" for name, text in texts.items())


def _offered(config: TrainConfig, texts: Mapping[str, str]) -> list[str]:
    readable = {}
    for name, text in texts.items():
        try:
            readable[name] = space.parse(name, text)
        except InvalidConfig:
            continue
    return space.searchable_settings(config.model_dump(), readable)


def problem(name: str, text: str) -> str:
    """Return what is wrong with a setting's range or values and how to fix it, as a sentence; "" if it is valid.

    >>> problem("lr", "0.01:0.001")
    'Learning rate, AdamW: a range from 0.01 to 0.001 is empty. Type the lower number first.'
    >>> problem("dropout", "0:2")
    'Dropout: 2 is not possible. From 0 to 1.'
    """
    title = setting_names.title(name)
    try:
        dimension = space.parse(name, text)
    except InvalidConfig as error:
        return f"{title}: {_unreadable(name, text) or error}"
    ends = dimension.values if isinstance(dimension, space.Choices) else (dimension.low, dimension.high)
    for value in ends:
        try:
            settings.parse(name, setting_names.write(value))
        except ValueError:
            number = f"{value:g}" if isinstance(value, float) else repr(value)
            return f"{title}: {number} is not possible. {settings.limits(name)}".rstrip()
    return ""


def _unreadable(name: str, text: str) -> str:
    """Return why the text cannot be parsed; "" if it can."""
    if not space.is_range(name, text):
        return "choose at least two values."
    ends = _ends(text)
    low, high = _number(name, ends.low), _number(name, ends.high)
    if low is None or high is None:
        kind, example = ("whole numbers", "2 and 8") if _is_whole(name) else ("numbers", "0.001 and 0.1")
        wrong = ends.low if low is None else ends.high
        reason = f"{wrong!r} is not one" if wrong else "one of them is empty"
        return f"a range has two {kind}, and {reason}. Type them as in {example}, the lower one first."
    if low >= high:
        return f"a range from {low:g} to {high:g} is empty. Type the lower number first."
    if ends.log and low <= 0:
        return f"a logarithmic scale begins above 0, not at {low:g}. Raise the lower number, or choose linear."
    return ""


# --- Controls -------------------------------------------------------------------------------------------------------


def pick(config: TrainConfig, texts: Mapping[str, str], grid: bool) -> None:
    """Draw the controls for the space; changes are written to the form.

    Args:
        texts: the space by setting.
        grid: offer values only, no ranges.
    """

    def choose() -> None:
        names = form_state.control_value(_NAMES)
        _change(config, lambda old: {name: old.get(name) or _proposed(config, name) for name in names})

    def change(name: str, step: Callable[[str], str]) -> None:
        _change(config, lambda old: old | {name: step(old[name])} if name in old else old)

    form_state.show(_NAMES, list(texts))
    st.multiselect(
        "Settings that are varied",
        _offered(config, texts),
        format_func=setting_names.title,
        **form_state.handler(_NAMES, choose),
        placeholder="the usual ones",
    )
    for name, text in texts.items():
        _pick_dimension(config, name, text, change, grid)


def _proposed(config: TrainConfig, name: str) -> str:
    """Return the initial range or values of a setting; "" if there is no sensible default."""
    choices = settings.kind(name)[1] if name != "size" else ()
    return str(space.default_dimension(config, name) or space.Choices(choices))


def _change(config: TrainConfig, step: Callable[[dict[str, str]], Mapping[str, str]]) -> None:
    """Change the form's space, in a callback.

    One message of the browser may contain several changes, so each is applied to the current form.
    """
    form_state.change(lambda form: replace(form, space=_write(step(texts_of(form, config)))))


def _pick_dimension(config: TrainConfig, name: str, text: str, change: _Change, grid: bool) -> None:
    """Draw the controls of a setting: ends and scale of a range, or values."""
    if grid or settings.kind(name)[0] not in (int, float):
        _pick_values(config, name, text, change, titled=True)
        return
    ends = _ends(text) if space.is_range(name, text) else None
    with st.container(gap="xsmall"):
        _pick_scale(config, name, text, change)
        if ends:
            _pick_ends(name, ends, change)
        else:
            _pick_values(config, name, text, change, titled=False)


def _pick_scale(config: TrainConfig, name: str, text: str, change: _Change) -> None:
    """Draw the name of a numeric setting, and the control for its scale."""
    key = _key(name, "scale")

    def rescale() -> None:
        scale = form_state.control_value(key)
        change(name, lambda old: _rescaled(config, name, old, scale))

    log = _ends(text).log
    form_state.show(key, _VALUES if not space.is_range(name, text) else "log" if log else "linear")
    with st.container(
        horizontal=True, horizontal_alignment="distribute", vertical_alignment="center", gap="xsmall", wrap=False
    ):
        title = setting_names.title(name).replace("[", "\\[")
        explained = settings.explain(name, TrainConfig.model_fields[name])
        st.markdown(f":small[{title}]", width="content", help=explained)
        st.selectbox(
            f"{setting_names.title(name)}, scale",
            list(_SCALES),
            format_func=_SCALES.__getitem__,
            **form_state.handler(key, rescale),
            label_visibility="collapsed",
            width=125,
        )


def _pick_ends(name: str, ends: _Ends, change: _Change) -> None:
    low_key, high_key = _key(name, "low"), _key(name, "high")

    def retype() -> None:
        low, high = map(form_state.control_value, (low_key, high_key))
        change(name, lambda old: str(_Ends(low, high, _ends(old).log)))

    with st.container(horizontal=True, vertical_alignment="center", gap="xsmall", wrap=False):
        for key, end, word in ((low_key, ends.low, "from"), (high_key, ends.high, "to")):
            form_state.show(key, end)
            st.markdown(f":small[:gray[{word}]]", width="content")
            st.text_input(  # the buttons of a number input leave no room for 0.0002 on a phone
                f"{setting_names.title(name)}, {word}",
                **form_state.handler(key, retype),
                max_chars=30,
                label_visibility="collapsed",
            )


def _pick_values(config: TrainConfig, name: str, text: str, change: _Change, titled: bool) -> None:
    type_, choices, _ = settings.kind(name)
    number = type_ in (int, float)
    key = _key(name, "values")
    chosen = _values(text)
    proposed = space.default_dimension(config, name)
    options = [str(choice) for choice in choices] or (["true", "false"] if type_ is bool else [])
    if not options and isinstance(proposed, space.Choices):
        options = str(proposed).split(",")

    def choose() -> None:
        values = form_state.control_value(key)
        change(name, lambda _: ",".join(values))

    form_state.show(key, chosen)
    st.multiselect(
        setting_names.title(name) if titled else f"{setting_names.title(name)}, values",
        list(dict.fromkeys((*options, *chosen))),
        format_func=lambda value: _VALUE_TITLES.get(value, value),
        **form_state.handler(key, choose),
        accept_new_options=number or (type_ is str and not choices),
        placeholder="type values",
        label_visibility="visible" if titled else "collapsed",
        help=settings.explain(name, TrainConfig.model_fields[name]) if titled else None,
    )


def _key(name: str, part: str) -> str:
    return f"space_{name}_{part}"


def _ends(text: str) -> _Ends:
    low, _, rest = text.partition(":")
    high, _, scale = rest.partition(":")
    return _Ends(low.strip(), high.strip(), scale.strip() == "log")


def _is_whole(name: str) -> bool:
    return settings.kind(name)[0] is int


def _number(name: str, text: str) -> float | None:
    """Parse an end of a range or a value; None if it is not a number."""
    try:
        number = int(text) if _is_whole(name) else float(text)
    except ValueError:
        return None
    return number if abs(number) <= settings.LARGEST else None


def _rescaled(config: TrainConfig, name: str, text: str, scale: str) -> str:
    """Convert between a range and values: a range from the smallest and largest value, or three values from a range.

    Args:
        scale: log, linear or values.
    """
    if space.is_range(name, text):
        ends = _ends(text)
        if scale != _VALUES:
            return str(ends._replace(log=scale == "log"))
        usual = getattr(config, name)
        between = () if usual is None else (f"{usual:g}",)
        return ",".join(dict.fromkeys(filter(None, (ends.low, *between, ends.high))))
    values = sorted((value for value in _values(text) if _number(name, value) is not None), key=float)
    proposed = space.default_dimension(config, name)
    if len(values) < 2 and isinstance(proposed, space.Range):
        values = [f"{proposed.low:g}", f"{proposed.high:g}"]
    low, high = (values[0], values[-1]) if values else ("", "")
    return str(_Ends(low, high, scale == "log"))


def _values(text: str) -> list[str]:
    return list(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
