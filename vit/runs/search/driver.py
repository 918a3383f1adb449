"""The process that drives one search: begins trials, follows what they reach, ends those that are behind.

    python -m vit.runs.search.driver SEARCH LOCK

Started by `vit.runs.search.control`, with the search's lock as an open file. It belongs to no server.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vit.errors import InvalidRun, UserError
from vit.runs import control
from vit.runs.control import Limits
from vit.runs.engines.contract import Unreachable
from vit.runs.registry import Run, find_run, list_runs
from vit.runs.search.control import nonce_of
from vit.runs.search.plan import SearchPlan, read_plan
from vit.runs.search.space import in_words
from vit.runs.search.study import Ending, Study
from vit.training.metrics import MetricsReader, best_epoch
from vit.training.run_folder import PRUNED, record_outcome

if __name__ == "__main__" and os.fork():
    os._exit(0)  # the launcher waits for this process alone; the rest of the file runs in its child

_POLL_SECONDS = 1.0  # [s]
_FAILURES = 3  # trials that fail before any other end: it is not their settings


class Driver:
    """One search at work.

    Attributes:
        study: what is on record.
        left: numbers of trials that the driver before this one left behind, until they are seen at work again.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.plan: SearchPlan = read_plan(folder)
        self.drawn = self.plan.draw()
        self.study = Study(folder, self.plan)
        self.left = set(self.study.running)
        self._continued: set[int] = set()  # trials that were resumed: once, as what died twice may do so again
        self._readers: dict[int, MetricsReader] = {}
        self._failures: list[str] = []
        self._said = ""

    def step(self) -> bool:
        """Look at every trial under way, and begin others where there is room; returns whether there is more to do.

        Raises:
            UserError: no trial can be begun, or all fail.
        """
        for number in self.study.running:
            self._follow(number)
        if len(self._failures) >= _FAILURES and not self.study.ended("COMPLETE") + self.study.ended("PRUNED"):
            raise UserError(f"The first {len(self._failures)} trials failed, the last one so: {self._failures[-1]}")
        while self.study.begun < self.plan.trials and len(self.study.running) < self.plan.at_once:
            number = self.study.begin(self.drawn[self.study.begun])
            if not self._launch(number):
                break
        return bool(self.study.running) or self.study.begun < self.plan.trials

    def stop(self) -> bool:
        """Ask the trials under way to stop, those that wait first; returns whether any of them still lives."""
        runs = [run for number in self.study.running if (run := self._run(number)) and run.alive]
        for run in sorted(runs, key=lambda run: run.status != "waiting"):
            if run.status not in ("stopping", "ending"):
                _unless_over(control.stop, run.id)
        return bool(runs)

    def summary(self) -> str:
        """What came of it, in a sentence."""
        done, early, failed = (self.study.ended(how) for how in ("COMPLETE", "PRUNED", "FAIL"))
        counts = {
            "trained to the end": done,
            "ended early": early,
            "failed or stopped by a person": failed,
            "still under way": len(self.study.running),
        }
        parts = [f"{count} {words}" for words, count in counts.items() if count]
        return f"Trials: {', '.join(parts) or 'none'}."

    def _launch(self, number: int) -> bool:
        """Start the run of a trial, or find that it was started; False where that has to wait."""
        plan = self.plan
        try:
            run = control.launch(
                plan.trial_config(self.drawn[number]),
                name=f"{plan.name}, trial {number + 1}",
                notes=in_words(self.drawn[number]),
                on=plan.on,
                devices=plan.devices,
                nodes=plan.nodes,
                minutes=plan.minutes,
                share=plan.share,
                owner=plan.owner,
                sweep=self.folder.name,
                nonce=nonce_of(self.folder.name, number),
                limits=Limits(plan.runs_per_person, plan.free_bytes),
            )
        except UserError as error:
            if not isinstance(error, Unreachable) and not self._may_wait():
                raise
            if self._said != str(error):  # and not every second
                self._said = str(error)
                _log(f"Trial {number + 1} waits: {error}")
            return False
        self.study.note_run(number, run.id)
        _log(f"Trial {number + 1} of {plan.trials}: {run.id}, {in_words(self.drawn[number])}")
        return True

    def _may_wait(self) -> bool:
        """Whether something that is under way has to end first, and will."""
        most = self.plan.runs_per_person
        mine = sum(run.alive and run.owner == self.plan.owner for run in list_runs())
        others = [run for number in self.study.running if (run := self._run(number))]
        return any(run.alive for run in others) or (most is not None and mine >= most)

    def _run(self, number: int) -> Run | None:
        """The run of a trial; None where it has none, or it was deleted."""
        run_id = self.study.run_of(number)
        try:
            return find_run(run_id) if run_id else None
        except InvalidRun:
            return None

    def _follow(self, number: int) -> None:
        """Take up what a trial has reached, end it where it is behind, and note how it ended."""
        if not self.study.run_of(number):
            self._launch(number)
            return
        run = self._run(number)
        if run is None:
            self._conclude(number, "FAIL", "Its run was deleted.")
            return
        reader = self._readers.setdefault(number, MetricsReader(run.folder / "metrics.jsonl"))
        reader.update()
        pruned = (run.folder / PRUNED).exists()
        if not pruned:
            pruned = self._judge(number, run, reader)
        if run.alive:
            self.left.discard(number)
            if pruned and run.status not in ("stopping", "ending"):
                _unless_over(control.stop, run.id)
            return
        best = best_epoch(reader.records)
        cut_off = run.status == "interrupted" or (run.status == "stopped" and number in self.left)
        if run.status == "finished" and best:
            self._conclude(number, "COMPLETE", f"{best['accuracy']:.1%}", best["accuracy"])
        elif pruned and run.status in ("pruned", "interrupted"):
            self._conclude(number, "PRUNED", run.reason)
        elif cut_off and number not in self._continued:
            self._continue(number, run)
        else:
            if run.status == "failed":
                self._failures.append(run.reason)
            self._conclude(number, "FAIL", run.reason or run.status)

    def _judge(self, number: int, run: Run, reader: MetricsReader) -> bool:
        """Report each epoch; returns whether the trial was asked to end early."""
        accuracy = 0.0
        for record in reader.records.get("validation", []):
            accuracy = max(accuracy, record["accuracy"])  # the epoch whose weights are kept counts
            epoch = record["epoch"]
            if not 1 <= epoch < self.plan.config.epochs or not self.study.report(number, epoch, accuracy):
                continue
            if run.alive:
                after = f"{epoch} epoch{'' if epoch == 1 else 's'}"
                reason = (
                    f"Ended early by its search: {accuracy:.1%} after {after} is not among the best "
                    f"1/{self.plan.reduction_factor} of the trials at that epoch. Resume trains it on."
                )
                _unless_over(control.end_early, run.id, reason)
                return True
        return False

    def _continue(self, number: int, run: Run) -> None:
        """Resume a run that was cut off, or stopped with its search."""
        try:
            control.resume(run.id)
        except Unreachable as error:
            _log(str(error))
        except UserError as error:
            self._conclude(number, "FAIL", str(error))
        else:
            self._continued.add(number)
            _log(f"Trial {number + 1} goes on.")

    def _conclude(self, number: int, how: Ending, words: str, accuracy: float | None = None) -> None:
        self._readers.pop(number, None)
        self.study.conclude(number, how, accuracy)
        _log(f"Trial {number + 1} of {self.plan.trials} has ended, {how}: {words}")


def drive(folder: Path) -> None:
    """Drive a search to its end, or until it is asked to stop."""
    signal.signal(signal.SIGTERM, lambda *_: (folder / "stop").touch())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        driver = Driver(folder)
        while not (folder / "stop").exists():
            if not driver.step():
                record_outcome(folder, "finished", driver.summary())
                return
            time.sleep(_POLL_SECONDS)
        while driver.stop():
            time.sleep(_POLL_SECONDS)
        record_outcome(folder, "stopped", f"{driver.summary()} Resume continues it.")
    except UserError as error:
        record_outcome(folder, "failed", str(error))
    except BaseException as error:
        record_outcome(folder, "failed", f"The search failed: {error}. Its log holds the traceback.")
        raise


def _unless_over(action: Callable[..., object], *arguments: object) -> None:
    """Do something to a run, which may have ended at this moment; where its cluster is silent, it is tried again."""
    with suppress(InvalidRun, Unreachable):
        action(*arguments)


def _log(message: str) -> None:
    print(message, flush=True)


if __name__ == "__main__":
    drive(Path(sys.argv[1]))
