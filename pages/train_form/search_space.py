"""What a random search draws each setting from, as controls; form and link have it as text."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import streamlit as st

from pages.shared import setting_names
from pages.train_form import form_state, settings
from vit.errors import InvalidConfig
from vit.runs.search import space
from vit.training.config import TrainConfig

_NAMES = "space_names"  # the key of the control that chooses the settings
_VALUES = "values"
_SCALES = {"log": "log scale", "linear": "linear", _VALUES: "values"}
_VALUE_TITLES = {"true": "on", "false": "off", '""': "nothing", "null": "by size"}

_Change = Callable[[str, Callable[[str], str]], None]  # changes the text of one setting


class _Ends(NamedTuple):
    """A range as its controls have it, where its ends may be anything that was typed."""

    low: str
    high: str
    log: bool

    def __str__(self) -> str:
        return f"{self.low}:{self.high}{':log' if self.log else ''}"


def texts_of(written: str, config: TrainConfig) -> dict[str, str]:
    """What each setting is drawn from, as text: as the form has it, or the usual.

    Args:
        written: the space of a form; what no search varies and what this recipe does not use is left out of it.
    """
    chosen = read(written) or {name: str(one) for name, one in space.usual(config).items()}
    return {name: chosen[name] for name in chosen if name in _offered(config, chosen)}


def read(written: str) -> dict[str, str]:
    """The space of a form, by setting; what no search varies is left out.

    >>> read("lr=1e-4:1e-2:log epochs=1,2 depth=2,4")
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
    return space.offered(config.model_dump(), readable)


def problem(name: str, text: str) -> str:
    """What is wrong with what a setting is drawn from and how to mend it, in a sentence; "" where nothing is.

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
    """Why controls with this text make no sense; "" where nothing speaks against them."""
    if not space.is_range(name, text):
        return "choose at least two values."
    ends = _ends(text)
    low, high = _number(name, ends.low), _number(name, ends.high)
    if low is None or high is None:
        kind, example = ("whole numbers", "2 and 8") if _is_whole(name) else ("numbers", "0.001 and 0.1")
        wrong = ends.low if low is None else ends.high
        said = f"{wrong!r} is not one" if wrong else "one of them is empty"
        return f"a range has two {kind}, and {said}. Type them as in {example}, the lower one first."
    if low >= high:
        return f"a range from {low:g} to {high:g} is empty. Type the lower number first."
    if ends.log and low <= 0:
        return f"a logarithmic scale begins above 0, not at {low:g}. Raise the lower number, or choose linear."
    return ""


# --- Controls -------------------------------------------------------------------------------------------------------


def pick(config: TrainConfig, texts: Mapping[str, str]) -> None:
    """Which settings are drawn, and from what; the form hears of changes.

    Args:
        texts: what the controls show.
    """

    def choose() -> None:
        names = form_state.control_value(_NAMES)
        _change(config, lambda now: {name: now.get(name) or _proposed(config, name) for name in names})

    def change(name: str, step: Callable[[str], str]) -> None:
        _change(config, lambda now: now | {name: step(now[name])} if name in now else now)

    form_state.show(_NAMES, list(texts))
    st.multiselect(
        "Settings that are drawn",
        _offered(config, texts),
        format_func=setting_names.title,
        **form_state.handler(_NAMES, choose),
        placeholder="the usual ones",
    )
    for name, text in texts.items():
        _pick_dimension(config, name, text, change)


def _proposed(config: TrainConfig, name: str) -> str:
    """What a setting is drawn from as soon as it is chosen; "" where only a person can know."""
    choices = settings.kind(name)[1] if name != "size" else ()
    return str(space.proposed(config, name) or space.Choices(choices))


def _change(config: TrainConfig, step: Callable[[dict[str, str]], Mapping[str, str]]) -> None:
    """From a callback; one message may hold several changes, so each begins with what the form says by then."""
    form_state.change(lambda form: replace(form, space=_write(step(dict(texts_of(form.space, config))))))


def _pick_dimension(config: TrainConfig, name: str, text: str, change: _Change) -> None:
    """The controls of one setting: the ends of its range and its scale, or its values."""
    if settings.kind(name)[0] not in (int, float):
        _pick_values(config, name, text, change)
        return
    ends = _ends(text) if space.is_range(name, text) else None
    with st.container(gap="xsmall"):
        _pick_scale(config, name, text, change)
        if ends:
            _pick_ends(name, ends, change)
        else:
            _pick_values(config, name, text, change)


def _pick_scale(config: TrainConfig, name: str, text: str, change: _Change) -> None:
    """A number's name, and how it is drawn."""
    key = _key(name, "scale")

    def rescale() -> None:
        scale = form_state.control_value(key)
        change(name, lambda now: _rescaled(config, name, now, scale))

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
        change(name, lambda now: str(_Ends(low, high, _ends(now).log)))

    with st.container(horizontal=True, vertical_alignment="center", gap="xsmall", wrap=False):
        for key, end, word in ((low_key, ends.low, "from"), (high_key, ends.high, "to")):
            form_state.show(key, end)
            st.markdown(f":small[:gray[{word}]]", width="content")
            st.text_input(  # as the buttons of a number's control leave no room for 0.0002 on a phone
                f"{setting_names.title(name)}, {word}",
                **form_state.handler(key, retype),
                max_chars=30,
                label_visibility="collapsed",
            )


def _pick_values(config: TrainConfig, name: str, text: str, change: _Change) -> None:
    type_, choices, _ = settings.kind(name)
    number = type_ in (int, float)
    key = _key(name, "values")
    chosen = _values(text)
    proposed = space.proposed(config, name)
    options = [str(choice) for choice in choices] or (["true", "false"] if type_ is bool else [])
    if not options and isinstance(proposed, space.Choices):
        options = str(proposed).split(",")

    def choose() -> None:
        values = form_state.control_value(key)
        change(name, lambda _: ",".join(values))

    form_state.show(key, chosen)
    st.multiselect(
        f"{setting_names.title(name)}, values" if number else setting_names.title(name),
        list(dict.fromkeys((*options, *chosen))),
        format_func=lambda value: _VALUE_TITLES.get(value, value),
        **form_state.handler(key, choose),
        accept_new_options=number or (type_ is str and not choices),
        placeholder="type values",
        label_visibility="collapsed" if number else "visible",
        help=None if number else settings.explain(name, TrainConfig.model_fields[name]),
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
    """An end of a range, or a value; None where it is no number."""
    try:
        number = int(text) if _is_whole(name) else float(text)
    except ValueError:
        return None
    return number if abs(number) <= settings.LARGEST else None


def _rescaled(config: TrainConfig, name: str, text: str, scale: str) -> str:
    """The text of the same numbers by another scale: of values the smallest and the largest, of a range three values.

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
    proposed = space.proposed(config, name)
    if len(values) < 2 and isinstance(proposed, space.Range):
        values = [f"{proposed.low:g}", f"{proposed.high:g}"]
    low, high = (values[0], values[-1]) if values else ("", "")
    return str(_Ends(low, high, scale == "log"))


def _values(text: str) -> list[str]:
    return list(dict.fromkeys(filter(None, map(str.strip, text.split(",")))))
