"""Optuna's record of a search, in an append-only journal with one writer, which survives a kill."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from vit.errors import InvalidRun
from vit.training.search.plan import SearchPlan
from vit.training.search.space import distributions, optuna
from vit.untrusted import read_bytes

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

Ending = Literal["COMPLETE", "PRUNED", "FAIL"]  # final states of a trial, as in Optuna
JOURNAL = "study.jsonl"
_JOURNAL_BYTES = 1 << 30
_RUN = "run"  # user attribute of a trial: id of its run
_NAME = "search"


class Study:
    """The trials of a search, their accuracy per epoch, and how each ended. Only the driver writes it."""

    def __init__(self, folder: Path, plan: SearchPlan):
        self._optuna = library = optuna()
        self._distributions = distributions(plan.dimensions)
        try:
            _truncate_partial_line(folder / JOURNAL)
            lock: Any = _NoLock()
            backend = library.storages.journal.JournalFileBackend(str(folder / JOURNAL), lock_obj=lock)
            self._study = library.create_study(
                storage=library.storages.JournalStorage(backend),  # replays the journal
                study_name=_NAME,
                load_if_exists=True,
                direction="maximize",
                # Unused: the plan draws all settings beforehand, without Optuna.
                sampler=library.samplers.RandomSampler(),
                pruner=library.pruners.SuccessiveHalvingPruner(
                    min_resource=plan.first_comparison, reduction_factor=plan.reduction_factor
                ),
            )
            if self.begun > plan.trials:
                raise ValueError("more trials than the search has")
        except Exception as error:  # Optuna may raise anything on damaged lines
            raise InvalidRun(
                f"{JOURNAL} of the search {folder.name} cannot be read. Move it away and resume the search: it finds "
                "the runs of its trials again, and starts none twice."
            ) from error

    @property
    def begun(self) -> int:
        """Number of trials that began, including ended ones; trials are numbered from 0."""
        return len(self._trials())

    @property
    def running(self) -> list[int]:
        """Numbers of the trials that have not ended."""
        running = self._optuna.trial.TrialState.RUNNING
        return [trial.number for trial in self._trials() if trial.state == running]

    def ended(self, how: Ending) -> int:
        """Return the number of trials that ended in this state."""
        return sum(trial.state.name == how for trial in self._trials())

    def begin(self, drawn: Mapping[str, Any]) -> int:
        """Add the next trial, as one line of the journal; returns its number."""
        library = self._optuna.trial
        self._study.add_trial(
            library.create_trial(
                state=library.TrialState.RUNNING, params=dict(drawn), distributions=self._distributions
            )
        )
        return self.begun - 1

    def run_of(self, number: int) -> str:
        """Return the id of a trial's run; "" before it has one."""
        return str(self._trials()[number].user_attrs.get(_RUN, ""))

    def note_run(self, number: int, run_id: str) -> None:
        """Record the run of a trial."""
        self._trial(number).set_user_attr(_RUN, run_id)

    def report(self, number: int, epoch: int, accuracy: float) -> bool:
        """Record a trial's accuracy after an epoch; returns whether the trial should be pruned.

        Source: asynchronous successive halving, Li et al. 2020, arXiv 1810.05934, in Optuna's implementation.
        """
        if epoch in self._trials()[number].intermediate_values:
            return False
        trial = self._trial(number)
        trial.report(accuracy, epoch)
        return trial.should_prune()

    def conclude(self, number: int, how: Ending, accuracy: float | None = None) -> None:
        """Record how a trial ended.

        Args:
            accuracy: best accuracy, 0 to 1; for a complete trial only.
        """
        self._study.tell(number, accuracy, state=self._optuna.trial.TrialState[how])

    def _trials(self) -> "list[FrozenTrial]":
        return list(self._study.get_trials(deepcopy=False))

    def _trial(self, number: int) -> Any:
        """Return a trial, also one of an earlier process, to write to."""
        return self._optuna.trial.Trial(self._study, self._trials()[number]._trial_id)


class _NoLock:
    """Replaces Optuna's lock files, which a killed process leaves behind; the driver's lock excludes writers."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def _truncate_partial_line(journal: Path) -> None:
    """Truncate a half-written last line, left by a killed writer; appending to it would corrupt the journal."""
    if os.path.lexists(journal):
        content = read_bytes(journal, _JOURNAL_BYTES)
        os.truncate(journal, content.rfind(b"\n") + 1)
