"""Content of the form on page Train, and its link.

The link contains only values that differ from the preset. It excludes the compute target, which depends on the machine.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any, NamedTuple, Self

from pydantic import Field, TypeAdapter

from pages.training import setting_names
from pages.training.train_form import settings
from vit.data import catalog
from vit.errors import UserError
from vit.training.loop.config import TrainConfig
from vit.training.loop.presets import PRESETS
from vit.training.runs.registry import MOST_EPOCHS
from vit.training.search import plan

LONGEST = 300  # characters of a text
LONGEST_SPACE = 2000  # characters
FIRST = next(iter(PRESETS))  # the initial preset


@dataclass(frozen=True)
class TrainForm:
    """Content of the form.

    Attributes:
        preset: the recipe that the settings are based on.
        data: spec of the dataset.
        init_from: name or path of the initial checkpoint, "" for random weights.
        settings: values of `setting_names.NAMES`, unvalidated.
        name: name of the run, "" for the default name.
        space: space of a search, as SETTING=TEXT separated by blanks, see `vit.training.search.space.parse`; "" for
            the default space.
        grid, trials, min_epochs, reduction_factor, search_seed: see `vit.training.search.plan.SearchPlan`.
    """

    preset: str
    data: str
    init_from: str
    settings: Mapping[str, Any]
    name: str = ""
    space: str = ""
    grid: bool = False
    trials: int = 20
    min_epochs: int | None = None
    reduction_factor: int = plan.FACTOR
    search_seed: int = 0

    @classmethod
    def of_preset(cls, preset: str = FIRST) -> Self:
        """Return the form of an unchanged preset."""
        recipe = PRESETS[preset].settings
        data = settings.base_value(recipe, "data")
        if data.startswith("folder:"):  # a placeholder for a folder that the preset does not know
            data = TrainConfig.model_fields["data"].default
        return cls(preset, data, settings.base_value(recipe, "init_from"), settings.complete(recipe))

    @classmethod
    def of_parts(cls, parts: Mapping[str, Any]) -> Self:
        """Return the form with these `parts`."""
        rest = {name: value for name, value in parts.items() if name not in setting_names.NAMES}
        return cls(settings={name: parts[name] for name in setting_names.NAMES}, **rest)

    def parts(self) -> dict[str, Any]:
        """Return all values by query parameter."""
        parts: dict[str, Any] = {}
        for field in fields(self):
            parts |= self.settings if field.name == "settings" else {field.name: getattr(self, field.name)}
        return parts

    def to_query(self) -> dict[str, str]:
        """Return the query parameters that differ from the preset.

        >>> replace(TrainForm.of_preset("mnist"), name="Digits").to_query()
        {'preset': 'mnist', 'name': 'Digits'}
        """
        defaults = replace(self.of_preset(self.preset), preset=FIRST).parts()
        return {name: setting_names.write(value) for name, value in self.parts().items() if value != defaults[name]}

    @classmethod
    def from_query(cls, query: Mapping[str, str], starts: Collection[str]) -> "FromLink":
        """Parse an untrusted link.

        Args:
            query: the link's parameters.
            starts: checkpoints that a run can start from.
        """
        accepted: dict[str, Any] = {}
        refused = []
        for name in PARTS:
            if name in query:
                try:
                    accepted[name] = _accept(name, query[name], starts)
                except (UserError, ValueError):
                    refused.append(f"{name}={query[name][:60]}")
        defaults = cls.of_preset(accepted.get("preset", FIRST))
        return FromLink(cls.of_parts(defaults.parts() | accepted), tuple(refused))


class FromLink(NamedTuple):
    """A form from a link.

    Attributes:
        refused: invalid parameters of the link.
    """

    form: TrainForm
    refused: tuple[str, ...]


_TYPES: dict[str, Any] = {
    "grid": bool,
    "trials": Annotated[int, Field(ge=1, le=plan.MOST_TRIALS)],
    "min_epochs": Annotated[int, Field(ge=1, le=MOST_EPOCHS)],
    "reduction_factor": Annotated[int, Field(ge=2, le=100)],
    "search_seed": Annotated[int, Field(ge=0, lt=2**31)],
}
PARTS = tuple(TrainForm.of_preset().parts())


def _accept(name: str, text: str, starts: Collection[str]) -> Any:
    """Parse a value of the form; UserError or ValueError if it is invalid or not available on this server."""
    if name in setting_names.NAMES:
        return settings.parse(name, text)
    if name == "data":
        return catalog.check_spec(text)
    if name in _TYPES:
        return TypeAdapter(_TYPES[name]).validate_strings(text)
    allowed = {"preset": PRESETS, "init_from": starts}
    if text not in allowed.get(name, (text,)) or len(text) > (LONGEST_SPACE if name == "space" else LONGEST):
        raise ValueError(f"{text[:LONGEST]!r} is not possible for {name}.")
    return text
