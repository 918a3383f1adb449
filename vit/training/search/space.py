"""The space of a search: parsing, defaults and drawing of a range or values per setting."""

import itertools
import json
import math
import random
from collections.abc import Mapping
from typing import Any, NamedTuple, get_args

from vit.errors import InvalidConfig
from vit.training.loop.config import TrainConfig, unused_settings

DIGITS = 3  # significant digits of drawn values, for readability
_DRAWS = 100  # attempts per trial to draw a new combination, before giving up
# Settings that choose data or machine, or when to validate: they do not change what a trial learns.
NEVER = {"data", "data_root", "init_from", "device", "workers", "compile", "precision", "track", "validate_every"}
_FIRST = ("lr", "muon_lr", "weight_decay", "layer_decay", "drop_path", "mixup")  # the default space


class Range(NamedTuple):
    """An interval, both ends included; `log`: drawn on a logarithmic scale; `whole`: integers."""

    low: float
    high: float
    log: bool = False
    whole: bool = False

    def __str__(self) -> str:
        return f"{self.low:.6g}:{self.high:.6g}{':log' if self.log else ''}"


class Choices(NamedTuple):
    """A list of values to draw from."""

    values: tuple[Any, ...]

    def __str__(self) -> str:
        return ",".join(map(_format_value, self.values))


Space = Mapping[str, Range | Choices]


# --- Parsing --------------------------------------------------------------------------------------------------------


def parse(name: str, text: str) -> Range | Choices:
    """Parse a dimension of the space: LOW:HIGH, LOW:HIGH:log, or values separated by commas.

    >>> parse("lr", "1e-4:1e-2:log"), parse("depth", "2:6"), parse("optimizer", "adamw, muon")
    (Range(low=0.0001, high=0.01, log=True, whole=False), Range(low=2, high=6, log=False, whole=True), \
Choices(values=('adamw', 'muon')))

    Raises:
        InvalidConfig: no such setting, one that must not vary, or a syntax error.
    """
    if name not in TrainConfig.model_fields:
        raise InvalidConfig(f"There is no setting {name!r}. Choose from: {', '.join(searchable_settings({}))}.")
    if name in NEVER:
        raise InvalidConfig(f"{name} is the same in all trials of a search. Set it, and leave it out of the space.")
    if is_range(name, text):
        return _parse_range(name, text)
    values = tuple(dict.fromkeys(map(_parse_value, filter(None, map(str.strip, text.split(","))))))
    if len(values) < 2:
        raise InvalidConfig(f"{name}: {text!r} leaves nothing to search. Write LOW:HIGH, LOW:HIGH:log, or VALUE,VALUE.")
    return Choices(values)


def is_range(name: str, text: str) -> bool:
    """Whether a text has the form of a range, not of a list of values."""
    return ":" in text and name != "freeze"  # values of freeze contain a colon, as in last:2


def _parse_range(name: str, text: str) -> Range:
    low, _, rest = text.partition(":")
    high, colon, scale = rest.partition(":")
    whole = int in _types(name)
    if not whole and float not in _types(name):
        raise InvalidConfig(f"{name} has no range. Write its values, separated by commas.")
    try:
        ends = [int(end) if whole else float(end) for end in (low, high)]
        finite = all(map(math.isfinite, ends))
    except (ValueError, OverflowError):
        kind = "whole numbers" if whole else "numbers"
        raise InvalidConfig(f"{name}: {text!r} is no range of {kind}. Write LOW:HIGH or LOW:HIGH:log.") from None
    if (colon and scale.strip() != "log") or not finite or ends[0] >= ends[1]:
        raise InvalidConfig(f"{name}: {text!r} is no range. Write LOW:HIGH or LOW:HIGH:log, the lower one first.")
    if colon and ends[0] <= 0:
        raise InvalidConfig(f"{name}: a range by the logarithm begins above 0, not at {low.strip()}.")
    return Range(ends[0], ends[1], bool(colon), whole)


def _types(name: str) -> tuple[Any, ...]:
    kind = TrainConfig.model_fields[name].annotation
    return get_args(kind) or (kind,)


def _format_value(value: Any) -> str:
    return value if isinstance(value, str) and value else json.dumps(value)


def _parse_value(text: str) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):  # RecursionError: a hostile link of brackets only
        return text
    return text if isinstance(value, list | dict) else value


# --- Defaults -------------------------------------------------------------------------------------------------------


def searchable_settings(settings: Mapping[str, Any], space: Space | None = None) -> list[str]:
    """Return the settings that a search may vary: those that have an effect, given the others.

    Args:
        settings: settings of all trials.
        space: dimensions chosen so far; a setting is also offered if one of their values gives it an effect.
    """
    beside = [dict(settings)]
    for name, dimension in (space or {}).items():
        values = dimension.values if isinstance(dimension, Choices) else (dimension.high,)
        beside += [{**settings, name: value} for value in values]
    unused = set.intersection(*map(unused_settings, beside))
    names = dict.fromkeys((*_FIRST, *TrainConfig.model_fields))
    return [name for name in names if name not in NEVER and name not in unused]


def default_dimension(config: TrainConfig, name: str) -> Range | Choices | None:
    """Return the default range or values for a setting; None if there is none.

    Learning rates range from a tenth to ten times the present value; sizes are halved and doubled if the model stays
    valid.
    """
    values = config.model_dump()
    if name in ("lr", "muon_lr"):
        return Range(float(f"{values[name] / 10:.2g}"), min(float(f"{values[name] * 10:.2g}"), 10.0), log=True)
    if name in ("batch_size", "epochs"):
        return _half_to_double(values[name])
    if name in _SIZES and not config.init_from:
        model = config.vit_config(num_classes=1)
        fits = {"heads": model.dim, "patch_size": min(model.image_size)}.get(name)
        return _half_to_double(getattr(model, name), fits)
    return _PROPOSED.get(name)


_SIZES = ("dim", "depth", "mlp_dim", "heads", "patch_size")


def _half_to_double(value: int, whole: int | None = None) -> Choices | None:
    """Return half the value, the value and its double, without those that do not divide `whole`."""
    values = dict.fromkeys(one for one in (value // 2, value, value * 2) if one and not (whole and whole % one))
    return Choices(tuple(values)) if len(values) > 1 else None


_PROPOSED: dict[str, Range | Choices] = {
    "weight_decay": Range(1e-3, 0.3, log=True),
    "layer_decay": Range(0.6, 1.0),
    "lora_rank": Choices((4, 8, 16, 32)),
    "freeze": Choices(("", "last:2", "last:4")),
    "probe_first": Choices((False, True)),
    "dropout": Range(0.0, 0.3),
    "drop_path": Range(0.0, 0.3),
    "mixup": Range(0.0, 0.8),
    "cutmix": Range(0.0, 1.0),
    "label_smoothing": Range(0.0, 0.2),
    "warmup_epochs": Choices((0, 1, 3, 5)),
    "grad_clip": Choices((0, 0.5, 1, 5)),
    "ema": Choices((0, 0.99, 0.999)),
    "crop_padding": Choices((0, 2, 4)),
    "crop_scale": Range(0.2, 1.0),
    "zoom_out": Choices((1, 2, 4)),
    "flip": Choices((False, True)),
    "operations": Choices((0, 1, 2)),
    "magnitude": Range(0.1, 0.6),
    "erase": Range(0.0, 0.3),
    "registers": Choices((0, 4)),
    "pool": Choices(("cls", "mean")),
    "optimizer": Choices(("adamw", "muon")),
    "schedule": Choices(("cosine", "constant")),
    "balance": Choices(("none", "prior", "loss", "sampling")),
    "start": Choices(("paper", "mimetic")),
    "seed": Choices((0, 1, 2)),
}


def default_space(config: TrainConfig) -> dict[str, Range | Choices]:
    """Return the default space: learning rates, decays and regularisation, as far as the run uses them."""
    names = [name for name in searchable_settings(config.model_dump()) if name in _FIRST]
    if config.lora_rank:
        names.append("lora_rank")
    return {name: dimension for name in names if (dimension := default_dimension(config, name))}


# --- Drawing --------------------------------------------------------------------------------------------------------


def draw(space: Space, seed: int, trials: int) -> list[dict[str, Any]]:
    """Draw distinct settings for each trial; they depend on space and seed, and more trials only append.

    Raises:
        InvalidConfig: the space is empty, or has fewer combinations than there are trials.
    """
    if not space:
        raise InvalidConfig("The search has no space. Name what to vary, as in lr=1e-4:1e-2:log.")
    generator = random.Random(seed)
    drawn: list[dict[str, Any]] = []
    for _ in range(_DRAWS * trials):
        settings = {name: _draw_value(generator, dimension) for name, dimension in space.items()}
        if settings not in drawn:
            drawn.append(settings)
        if len(drawn) == trials:
            return drawn
    raise InvalidConfig(
        f"The space has hardly more than {len(drawn)} combinations, and {trials} trials were asked for. "
        "Widen it, or ask for fewer trials."
    )


def combinations(space: Space, most: int) -> list[dict[str, Any]]:
    """Return every combination of the values, the last setting varying fastest.

    Raises:
        InvalidConfig: the space is empty, a setting has a range, or there are more than `most` combinations.
    """
    if not space:
        raise InvalidConfig("The search has no space. Name what to vary, as in depth=2,4,8.")
    values = {}
    for name, dimension in space.items():
        if isinstance(dimension, Range):
            raise InvalidConfig(f"{name}: a range has no combinations. Write its values, separated by commas.")
        values[name] = dimension.values
    number = math.prod(map(len, values.values()))
    if number > most:
        raise InvalidConfig(f"These are {number:,} combinations; a search has at most {most:,}. Choose fewer values.")
    return [dict(zip(values, one, strict=True)) for one in itertools.product(*values.values())]


def _draw_value(generator: random.Random, dimension: Range | Choices) -> Any:
    """Draw one value. A whole number has the same chance as the interval of half a unit around it."""
    if isinstance(dimension, Choices):
        return generator.choice(dimension.values)
    low, high, log, whole = dimension
    if whole:
        low, high = low - 0.5, high + 0.5
    value = math.exp(generator.uniform(math.log(low), math.log(high))) if log else generator.uniform(low, high)
    value = round(value) if whole else float(f"{value:.{DIGITS}g}")
    return min(max(value, dimension.low), dimension.high)


def check_space(space: Space, config: TrainConfig) -> None:
    """Reject settings without an effect.

    Raises:
        InvalidConfig: a setting of the space has no effect.
    """
    possible = searchable_settings(config.model_dump(), space)
    for name in space:
        if name not in possible:
            raise InvalidConfig(f"{name} changes nothing in this recipe. Leave it out of the space.")


def format_settings(settings: Mapping[str, Any]) -> str:
    """Format a trial's settings in one line.

    >>> format_settings({"lr": 0.002, "flip": True})
    'lr 0.002, flip true'
    """
    return ", ".join(f"{name} {_format_value(value)}" for name, value in settings.items())
