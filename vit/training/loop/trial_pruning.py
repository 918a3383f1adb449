"""Asynchronous successive halving: a trial of a search ends itself once it is behind the others.

No process watches the trials. After an epoch of comparison, a trial reads the accuracies that its siblings have
recorded, and continues only if it is among the best of those that reached this epoch.

Source: Li et al. 2020, arXiv 1810.05934, algorithm 2.
"""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from vit.confidence import figure
from vit.training.loop.metrics import MetricsReader, evaluations
from vit.training.loop.run_folder import RUN_ID, read_json, search_of
from vit.untrusted import counted, is_whole


class Halving(NamedTuple):
    """When the trials of a search are compared, and how many of them continue.

    Attributes:
        first: epoch of the first comparison, from 1; the next one comes whenever the epochs have grown by `factor`.
        factor: one in so many trials continues, from 2.
    """

    first: int
    factor: int

    def rungs(self, epochs: int) -> list[int]:
        """Return the epochs of comparison of a trial with so many epochs; the last epoch is none."""
        rungs, epoch = [], self.first
        while epoch < epochs:
            rungs.append(epoch)
            epoch *= self.factor
        return rungs


def reason_to_end(run: Path, epoch: int, before: int, accuracy: float, pictures: int) -> str:
    """Return why a trial is behind the others; "" if it continues, or is no trial.

    Siblings that are damaged, unreadable or have not reached the epoch of comparison do not count.

    Args:
        run: the trial's folder; those of its siblings are beside it.
        epoch: that was just validated, from 1.
        before: the epoch validated before it.
        accuracy: best one of the trial so far, 0 to 1.
        pictures: number of validation pictures.
    """
    about = read_json(run / "about.json")
    halving = _halving(about)
    rung = next((rung for rung in halving.rungs(epoch + 1)[-1:] if rung > before), None) if halving else None
    if halving is None or rung is None:
        return ""
    theirs = [_accuracy_at(sibling, rung) for sibling in _siblings(run, search_of(about))]
    ranked = sorted([accuracy, *(one for one in theirs if one is not None)], reverse=True)
    if accuracy >= ranked[max(len(ranked) // halving.factor, 1) - 1]:
        return ""
    after = counted(rung, "epoch")
    return (
        f"Ended early by its search: {figure(accuracy, pictures)} after {after} is not among the best "
        f"1/{halving.factor} of the trials at that epoch. Resume trains it to its end."
    )


def _halving(about: dict[str, Any]) -> Halving | None:
    values = about.get("halving")
    first, factor = map(values.get, Halving._fields) if isinstance(values, dict) else (None, None)
    return Halving(first, factor) if is_whole(first, 1) and is_whole(factor, 2) else None


def _siblings(run: Path, search: str) -> list[Path]:
    siblings = []
    with suppress(OSError):
        for entry in os.scandir(run.parent):
            other = RUN_ID.fullmatch(entry.name) and entry.name != run.name and entry.is_dir(follow_symlinks=False)
            if other and search_of(read_json(run.parent / entry.name / "about.json")) == search:
                siblings.append(run.parent / entry.name)
    return siblings


def _accuracy_at(run: Path, rung: int) -> float | None:
    """Return the best accuracy until the first validation in epoch `rung` or later; None if it is not reached."""
    reader = MetricsReader(run / "metrics.jsonl")
    reader.update()
    best = 0.0
    for record in evaluations(reader.records):
        best = max(best, record.get("accuracy", 0.0))
        if record["epoch"] >= rung:
            return best
    return None
