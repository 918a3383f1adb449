"""The ladder: ways to adapt a checkpoint to new classes, from the cheapest to the most expensive, with their accuracy.

    nearest neighbours  ->  linear probe  ->  LoRA  ->  last blocks  ->  everything

The first two need one forward pass over the pictures and no training, see `vit.training.loop.probe`. The others are
ordinary runs whose head starts at the probe's, so that none ends below it. They are compared on validation pictures;
test pictures are not used here.
"""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple

from vit.confidence import wilson
from vit.training.loop.config import BACKBONE, TrainConfig


class Rung(NamedTuple):
    """A way to adapt a checkpoint to other classes.

    Attributes:
        name: identifier in links and on the command line.
        title, sentence: display texts.
        settings: settings of its run, apart from those of the data; None if nothing is trained.
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
            "Trains a new head on frozen features.",
            {"freeze": BACKBONE, "probe_first": True, "epochs": 1},
        ),
        Rung(
            "lora",
            "LoRA",
            "Trains small adapters in attention; everything else is frozen.",
            {"lora_rank": 8, "probe_first": True, "warmup_epochs": 2.0, "lr": 1e-3},
        ),
        Rung(
            "last",
            "Last two blocks",
            "Trains the last two blocks; those below are frozen.",
            {"freeze": "last:2", "lr": 5e-4, **_BLOCKS},
        ),
        Rung("all", "Everything", "Trains all blocks, the lower ones more slowly.", {"lr": 5e-4, **_BLOCKS}),
    )
}


class RungResult(NamedTuple):
    """Result of a rung on the validation pictures.

    Attributes:
        accuracy: 0 to 1.
        pictures: number of pictures.
        loss: mean cross-entropy [nats]; None if the predictions are no probabilities.
    """

    accuracy: float
    pictures: int
    loss: float | None = None

    @property
    def interval(self) -> tuple[float, float]:
        """95% confidence interval of the accuracy."""
        return wilson(self.correct, self.pictures)

    @property
    def correct(self) -> int:
        """Number of pictures classified correctly."""
        return round(self.accuracy * self.pictures)


def rung_config(config: TrainConfig, rung: str) -> TrainConfig:
    """Return the configuration of a rung's run, based on `config`.

    Raises:
        ValueError: the rung trains nothing.
    """
    settings = RUNGS[rung].settings
    if settings is None:
        raise ValueError(f"{RUNGS[rung].title}: nothing is trained.")
    kept = config.model_dump(exclude={"freeze", "lora_rank", "layer_decay", "probe_first"})
    return TrainConfig(**kept | settings)


def recommended(results: Iterable[tuple[str, RungResult]]) -> str:
    """Return the rung to choose, given results on the same validation pictures.

    Among rungs within one standard error of the highest accuracy (the rule of Breiman et al. 1984 for trees), the one
    with the lowest cross-entropy is chosen, because it still differs where accuracy on a few hundred pictures is equal.
    If that is equal too, the cheapest is chosen.

    >>> recommended([("probe", RungResult(0.90, 100)), ("lora", RungResult(0.92, 100)), ("all", RungResult(0.92, 100))])
    'lora'
    >>> recommended([("lora", RungResult(0.494, 500, 1.42)), ("all", RungResult(0.49, 500, 1.40))])
    'all'
    """
    rungs, costs = list(results), list(RUNGS)
    share, pictures = max((one.accuracy, one.pictures) for _, one in rungs)
    least = share - math.sqrt(share * (1 - share) / pictures)

    def order(rung: tuple[str, RungResult]) -> tuple[float, int, int]:
        name, one = rung
        return math.inf if one.loss is None else one.loss, -one.correct, costs.index(name)

    return min((rung for rung in rungs if rung[1].accuracy >= least), key=order)[0]
