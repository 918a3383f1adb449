"""The ladder: from a checkpoint to one's own classes, the cheapest way first, each with what it reaches.

    nearest neighbours  ->  linear probe  ->  LoRA  ->  last blocks  ->  everything

The first two need one pass over the pictures and no training, see `vit.training.probe`. The others are runs like any
other, which begin with the probe's head, so that none ends below it. Validation pictures tell them apart; test pictures
are not looked at here.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from vit.explain.confidence import wilson
from vit.training.config import BACKBONE, TrainConfig


class Rung(NamedTuple):
    """One way from a checkpoint to other classes.

    Attributes:
        name: in links and on the command line.
        title, sentence: for people.
        settings: of a run that goes this way, beside those of the data; None where nothing is trained.
    """

    name: str
    title: str
    sentence: str
    settings: dict[str, Any] | None


_BLOCKS = {"probe_first": True, "layer_decay": 0.75, "warmup_epochs": 2.0}
RUNGS = {
    rung.name: rung
    for rung in (
        Rung("neighbours", "Nearest neighbours", "The 20 most similar training pictures vote.", None),
        Rung(
            "probe",
            "Linear probe",
            "A new head on features as they are.",
            {"freeze": BACKBONE, "probe_first": True, "epochs": 1},
        ),
        Rung(
            "lora",
            "LoRA",
            "Thin adapters to attention learn, all else stays.",
            {"lora_rank": 8, "probe_first": True, "warmup_epochs": 2.0, "lr": 1e-3},
        ),
        Rung("last", "Last two blocks", "They learn, those below stay.", {"freeze": "last:2", "lr": 5e-4, **_BLOCKS}),
        Rung("all", "Everything", "All blocks learn, the lower ones more slowly.", {"lr": 5e-4, **_BLOCKS}),
    )
}


class Reached(NamedTuple):
    """How good a rung is, on validation pictures.

    Attributes:
        accuracy: share of right answers.
        pictures: how many there were.
        loss: mean cross-entropy of the answers; None where they are no probabilities.
    """

    accuracy: float
    pictures: int
    loss: float | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """In which the accuracy lies with 95 % confidence."""
        return wilson(self.right, self.pictures)

    @property
    def right(self) -> int:
        """How many pictures were recognised."""
        return round(self.accuracy * self.pictures)


def rung_config(config: TrainConfig, rung: str) -> TrainConfig:
    """The run that goes a rung's way, with all else as `config` has it.

    Raises:
        ValueError: nothing is trained there.
    """
    settings = RUNGS[rung].settings
    if settings is None:
        raise ValueError(f"{RUNGS[rung].title}: nothing is trained.")
    kept = config.model_dump(exclude={"freeze", "lora_rank", "layer_decay", "probe_first"})
    return TrainConfig(**kept | settings)


def recommended(reached: Iterable[tuple[str, Reached]]) -> str:
    """The rung to take: the best on validation pictures. All were judged by the same ones.

    Of rungs that are within one standard error of the highest accuracy, as Breiman et al. 1984 choose trees, the one
    with the lowest cross-entropy, which tells apart what a few hundred right answers cannot; of equals the cheapest.

    >>> recommended([("probe", Reached(0.90, 100)), ("lora", Reached(0.92, 100)), ("all", Reached(0.92, 100))])
    'lora'
    >>> recommended([("lora", Reached(0.494, 500, 1.42)), ("all", Reached(0.49, 500, 1.40))])
    'all'
    """
    rungs, costs = list(reached), list(RUNGS)
    share, pictures = max((one.accuracy, one.pictures) for _, one in rungs)
    least = share - math.sqrt(share * (1 - share) / pictures)

    def order(rung: tuple[str, Reached]) -> tuple[float, int, int]:
        name, one = rung
        return math.inf if one.loss is None else one.loss, -one.right, costs.index(name)

    return min((rung for rung in rungs if rung[1].accuracy >= least), key=order)[0]
