"""Optuna's record of a search, in a journal: one writer appends, and it is read again whole after a kill."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vit.runs.search.plan import SearchPlan
from vit.runs.search.space import distributions, optuna

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

Ending = Literal["COMPLETE", "PRUNED", "FAIL"]  # of a trial, as Optuna calls it
JOURNAL = "study.jsonl"
_RUN = "run"  # a trial's attribute: the id of its run
_NAME = "search"


class Study:
    """Which trials of a search began, what each reached, and how each ended; for the driver, which alone writes it."""

    def __init__(self, folder: Path, plan: SearchPlan):
        self._optuna = library = optuna()
        _mend(folder / JOURNAL)
        lock: Any = _NoLock()
        backend = library.storages.journal.JournalFileBackend(str(folder / JOURNAL), lock_obj=lock)
        self._distributions = distributions(plan.dimensions)
        self._study = library.create_study(
            storage=library.storages.JournalStorage(backend),
            study_name=_NAME,
            load_if_exists=True,
            direction="maximize",
            sampler=library.samplers.RandomSampler(),  # which draws nothing: the plan does, by its seed
            pruner=library.pruners.SuccessiveHalvingPruner(
                min_resource=plan.min_epochs, reduction_factor=plan.reduction_factor
            ),
        )

    @property
    def begun(self) -> int:
        """Trials that began, ended ones among them; they are numbered from 0."""
        return len(self._trials())

    @property
    def running(self) -> list[int]:
        """Numbers of the trials that have not ended."""
        running = self._optuna.trial.TrialState.RUNNING
        return [trial.number for trial in self._trials() if trial.state == running]

    def ended(self, how: Ending) -> int:
        """How many trials ended so."""
        return sum(trial.state.name == how for trial in self._trials())

    def begin(self, drawn: Mapping[str, Any]) -> int:
        """Note that the next trial begins, in one line of the journal; returns its number."""
        library = self._optuna.trial
        self._study.add_trial(
            library.create_trial(
                state=library.TrialState.RUNNING, params=dict(drawn), distributions=self._distributions
            )
        )
        return self.begun - 1

    def run_of(self, number: int) -> str:
        """The id of a trial's run; "" before that is noted."""
        return str(self._trials()[number].user_attrs.get(_RUN, ""))

    def note_run(self, number: int, run_id: str) -> None:
        """Note which run is a trial's."""
        self._trial(number).set_user_attr(_RUN, run_id)

    def report(self, number: int, epoch: int, accuracy: float) -> bool:
        """Note what a trial has reached after an epoch; returns whether it is behind, and is to end.

        Source: asynchronous successive halving, Li et al. 2020, arXiv 1810.05934, as Optuna does it.
        """
        if epoch in self._trials()[number].intermediate_values:
            return False
        trial = self._trial(number)
        trial.report(accuracy, epoch)
        return trial.should_prune()

    def conclude(self, number: int, how: Ending, accuracy: float | None = None) -> None:
        """Note how a trial ended.

        Args:
            accuracy: the best one, of a complete trial only.
        """
        self._study.tell(number, accuracy, state=self._optuna.trial.TrialState[how])

    def _trials(self) -> "list[FrozenTrial]":
        return list(self._study.get_trials(deepcopy=False))

    def _trial(self, number: int) -> Any:
        """A trial of this or an earlier process, to write to."""
        return self._optuna.trial.Trial(self._study, self._trials()[number]._trial_id)


class _NoLock:
    """In place of Optuna's own locks, which outlive who is killed: the driver holds the search's, and writes alone."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def _mend(journal: Path) -> None:
    """Cut off half a line, which a killed writer left: with more behind it the journal could not be read."""
    if journal.exists():
        content = journal.read_bytes()
        os.truncate(journal, content.rfind(b"\n") + 1)
