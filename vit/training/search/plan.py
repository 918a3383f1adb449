"""The settings of a search as one validated document: base configuration, space, number of trials, pruning."""

import json
import math
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vit.errors import InvalidConfig, InvalidRun
from vit.training.engines.contract import HERE
from vit.training.loop.config import TrainConfig
from vit.training.loop.presets import run_name, train_config
from vit.training.loop.run_folder import read_document
from vit.training.loop.trial_pruning import Halving
from vit.training.runs.registry import shorten
from vit.training.search import space as spaces
from vit.training.search.space import Choices, Range
from vit.untrusted import Unreadable
from vit.validation import sentence

FILE = "search.json"
MOST_TRIALS = 200  # all of them wait at once, each in a process
_MOST_READ = 1000  # of earlier versions
FACTOR = 3  # default reduction factor of Hyperband: Li et al. 2018, arXiv 1603.06560, section 2.3
MOST_NAME = 40  # characters; leaves room for ", trial N" in a run's name


class SearchPlan(BaseModel):
    """Settings of a search.

    Attributes:
        name: display name.
        config: settings shared by all trials; `epochs` is the budget of each.
        space: range or values of each varied setting, in the syntax of `vit.training.search.space.parse`.
        grid: train every combination of the values, instead of random ones; `trials` is their number.
        seed: seed of the draws; the trials themselves use the seed of `config`.
        min_epochs: first epoch at which trials may be pruned; None for the default, see `first_comparison`.
        reduction_factor: at `min_epochs`, and whenever the epochs have grown by this factor again, one in this many
            trials continues.
        on, devices, nodes, minutes: where each trial runs, see `vit.training.runs.control.launch`.
        created: unix time [s].
    """

    model_config = ConfigDict(extra="ignore", frozen=True)  # earlier versions wrote more fields

    name: str = Field(max_length=MOST_NAME)
    config: TrainConfig
    space: dict[str, str]
    grid: bool = False
    trials: int = Field(20, ge=1, le=_MOST_READ)
    seed: int = Field(0, ge=0, lt=2**31)
    min_epochs: int | None = Field(None, ge=1)
    reduction_factor: int = Field(FACTOR, ge=2, le=100)
    on: str = HERE
    devices: tuple[str, ...] = ("cpu",)
    nodes: int = 1
    minutes: int | None = None
    owner: str = ""
    created: float = Field(default=0.0, ge=0, lt=2**32)  # until the year 2106
    nonce: str = ""

    @property
    def dimensions(self) -> dict[str, Range | Choices]:
        """The parsed space."""
        return {name: spaces.parse(name, text) for name, text in self.space.items()}

    @property
    def epochs(self) -> int:
        """Epochs of the longest trial."""
        dimension = self.dimensions.get("epochs")
        if dimension is None:
            return self.config.epochs
        return int(max(dimension.values) if isinstance(dimension, Choices) else dimension.high)

    @property
    def first_comparison(self) -> int:
        """First epoch at which trials may be pruned. By default those of a grid are trained to the end."""
        if self.min_epochs is not None:
            return self.min_epochs
        return self.epochs if self.grid else usual_min_epochs(self.config, self.reduction_factor)

    def draw(self) -> list[dict[str, Any]]:
        """Return the varied settings of each trial.

        Raises:
            InvalidConfig: see `combinations` and `draw` of `vit.training.search.space`.
        """
        if self.grid:
            return spaces.combinations(self.dimensions, max(MOST_TRIALS, self.trials))
        return spaces.draw(self.dimensions, self.seed, self.trials)

    def trial_config(self, drawn: dict[str, Any]) -> TrainConfig:
        """Return the configuration of a trial.

        Raises:
            InvalidConfig: the settings contradict each other.
        """
        return train_config(None, **self.config.model_dump() | drawn)

    @property
    def halving(self) -> Halving:
        """When trials are compared, and how many of them continue."""
        return Halving(self.first_comparison, self.reduction_factor)

    def rungs(self) -> list[int]:
        """Return the epochs after which trials are compared and may be pruned."""
        return self.halving.rungs(self.epochs)


def default_name(config: TrainConfig) -> str:
    """Return the name of a search that was given none."""
    return shorten(run_name(config), MOST_NAME)


def best_part(factor: int) -> str:
    """Describe the share of trials that continue after a comparison.

    >>> best_part(3), best_part(10)
    ('the best third', 'the best one in 10')
    """
    return f"the best {_PARTS.get(factor, f'one in {factor}')}"


_PARTS = {2: "half", 3: "third", 4: "quarter"}


def usual_min_epochs(config: TrainConfig, factor: int = FACTOR) -> int:
    """Return the epoch of the first comparison of random trials, by default.

    It leaves room for two reductions before the last epoch, and does not prune during warm-up.
    """
    warm_up = math.ceil(min(config.warmup_epochs, config.epochs / 2))
    return max(math.ceil(config.epochs / factor**2), warm_up, 1)


def make_plan(**values: Any) -> SearchPlan:
    """Build a plan and validate the settings of every trial.

    Raises:
        InvalidConfig: a value is invalid, the space is too small, or drawn settings contradict each other.
    """
    try:
        plan = SearchPlan(**values)
    except ValidationError as error:
        raise InvalidConfig(sentence(error)) from error
    spaces.check_space(plan.dimensions, plan.config)
    if plan.trials > MOST_TRIALS:
        raise InvalidConfig(f"A search has at most {MOST_TRIALS} trials, not {plan.trials:,}. Choose fewer.")
    trials = plan.draw()
    for drawn in trials:
        plan.trial_config(drawn)
    return plan.model_copy(update={"trials": len(trials)})


@lru_cache(256)  # pages list all searches in every run
def _plan_of(document: str) -> SearchPlan:
    """Parse a plan, and check each value of its space by itself; whether values fit together needs all draws.

    Raises:
        ValidationError, InvalidConfig: a value is none that its field can have.
    """
    plan = SearchPlan.model_validate_json(document)
    settings = plan.config.model_dump()
    for name, dimension in plan.dimensions.items():
        values = dimension.values if isinstance(dimension, Choices) else dimension[:2]
        if len(values) > _MOST_READ:
            raise InvalidConfig(f"{name} has more than {_MOST_READ:,} values.")
        for value in values:
            try:
                TrainConfig(**settings | {name: value})
            except ValidationError as error:
                if error.errors()[0]["loc"] == (name,):
                    raise
    spaces.check_space(plan.dimensions, plan.config)
    return plan


def read_plan(folder: Path) -> SearchPlan:
    """Read the plan of a search.

    Raises:
        InvalidRun: the file is missing, damaged, or of a later version.
    """
    try:
        return _plan_of(json.dumps(read_document(folder / FILE)))
    except (FileNotFoundError, Unreadable, ValidationError, InvalidConfig) as error:
        raise InvalidRun(
            f"The search {folder.name} cannot be read. It was damaged, or written by a later version."
        ) from error
