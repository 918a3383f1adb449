"""The process that drives one search: starts trials, reads their metrics, ends those that fall behind.

    python -m vit.training.search.driver SEARCH LOCK

Started by `vit.training.search.control`, with the search's lock as an inherited file descriptor. It is not a child of
any server.
"""

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vit.errors import InvalidRun, UserError
from vit.training.engines.contract import Unreachable
from vit.training.loop.metrics import MetricsReader, best_epoch
from vit.training.loop.presets import run_name
from vit.training.loop.run_folder import PRUNED, record_outcome
from vit.training.runs import control
from vit.training.runs.launch_checks import Limits
from vit.training.runs.registry import Run, find_run, list_runs
from vit.training.search.control import nonce_of
from vit.training.search.plan import SearchPlan, default_name, read_plan
from vit.training.search.space import format_settings
from vit.training.search.study import Ending, Study

if __name__ == "__main__" and os.fork():
    os._exit(0)  # the launcher waits for the parent only; the rest of this file runs in the child

_POLL_SECONDS = 1.0  # [s]
_FAILURES = 3  # failed trials, with none successful, after which the search fails: their settings are not the cause


class Driver:
    """Drives one search.

    Attributes:
        study: the search's journal.
        abandoned: trials that an earlier driver left running, until they are seen alive again.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.plan: SearchPlan = read_plan(folder)
        self.drawn = self.plan.draw()
        self.study = Study(folder, self.plan)
        self.abandoned = set(self.study.running)
        self._resumed: set[int] = set()  # trials that were resumed; each is resumed once, as it may die again
        self._readers: dict[int, MetricsReader] = {}
        self._failures: list[str] = []
        self._last_message = ""

    def step(self) -> bool:
        """Check every running trial, and start others if there is room; returns whether there is more to do.

        Raises:
            UserError: no trial can be started, or all fail.
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
        """Ask the running trials to stop, waiting ones first; returns whether any of them is still alive."""
        runs = [run for number in self.study.running if (run := self._run(number)) and run.alive]
        for run in sorted(runs, key=lambda run: run.status != "waiting"):
            if run.status not in ("stopping", "ending"):
                _unless_over(control.stop, run.id)
        return bool(runs)

    def summary(self) -> str:
        """Summarise the search in a sentence."""
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
        """Start the run of a trial, unless it was started before; False if it has to wait."""
        plan = self.plan
        config = plan.trial_config(self.drawn[number])
        name = run_name(config) if plan.name == default_name(plan.config) else plan.name
        try:
            run = control.launch(
                config,
                name=f"{name}, trial {number + 1}",
                notes=format_settings(self.drawn[number]),
                on=plan.on,
                devices=plan.devices,
                nodes=plan.nodes,
                minutes=plan.minutes,
                share=plan.share,
                owner=plan.owner,
                search=self.folder.name,
                nonce=nonce_of(self.folder.name, number),
                limits=Limits(plan.runs_per_person, plan.free_bytes),
            )
        except UserError as error:
            if not isinstance(error, Unreachable) and not self._can_retry_later():
                raise
            if self._last_message != str(error):  # do not repeat the message every second
                self._last_message = str(error)
                _log(f"Trial {number + 1} waits: {error}")
            return False
        self.study.note_run(number, run.id)
        if not run.alive:  # not started here, but by an earlier driver whose journal is lost
            self.abandoned.add(number)
        _log(f"Trial {number + 1} of {plan.trials}: {run.id}, {format_settings(self.drawn[number])}")
        return True

    def _can_retry_later(self) -> bool:
        """Whether the launch can succeed once a running run ends."""
        most = self.plan.runs_per_person
        mine = sum(run.alive and run.owner == self.plan.owner for run in list_runs())
        others = [run for number in self.study.running if (run := self._run(number))]
        return any(run.alive for run in others) or (most is not None and mine >= most)

    def _run(self, number: int) -> Run | None:
        """Return the run of a trial; None if it has none or the run was deleted."""
        run_id = self.study.run_of(number)
        try:
            return find_run(run_id) if run_id else None
        except InvalidRun:
            return None

    def _follow(self, number: int) -> None:
        """Read a trial's metrics, prune it if it is behind, and record how it ended."""
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
            pruned = self._report_epochs(number, run, reader)
        if run.alive:
            self.abandoned.discard(number)
            if pruned and run.status not in ("stopping", "ending"):
                _unless_over(control.stop, run.id)
            return
        best = best_epoch(reader.records)
        cut_off = run.status == "interrupted" or (run.status == "stopped" and number in self.abandoned)
        if run.status == "finished" and best and "accuracy" in best:
            self._conclude(number, "COMPLETE", f"{best['accuracy']:.1%}", best["accuracy"])
        elif pruned and run.status in ("pruned", "interrupted"):
            self._conclude(number, "PRUNED", run.reason)
        elif cut_off and number not in self._resumed:
            self._resume_trial(number, run)
        else:
            if run.status == "failed":
                self._failures.append(run.reason)
            self._conclude(number, "FAIL", run.reason or run.status)

    def _report_epochs(self, number: int, run: Run, reader: MetricsReader) -> bool:
        """Report each epoch to the pruner; returns whether the trial was asked to end early."""
        accuracy, epochs = 0.0, self.plan.trial_config(self.drawn[number]).epochs
        for record in reader.records.get("validation", []):
            accuracy = max(accuracy, record.get("accuracy", 0.0))  # that of the best checkpoint so far
            epoch = record["epoch"]
            if not 1 <= epoch < epochs or not self.study.report(number, epoch, accuracy):
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

    def _resume_trial(self, number: int, run: Run) -> None:
        """Resume a run that was cut off, or was stopped together with its search."""
        try:
            control.resume(run.id)
        except Unreachable as error:
            _log(str(error))
        except UserError as error:
            self._conclude(number, "FAIL", str(error))
        else:
            self._resumed.add(number)
            _log(f"Trial {number + 1} goes on.")

    def _conclude(self, number: int, how: Ending, words: str, accuracy: float | None = None) -> None:
        self._readers.pop(number, None)
        self.study.conclude(number, how, accuracy)
        _log(f"Trial {number + 1} of {self.plan.trials} has ended, {how}: {words}")


def drive(folder: Path) -> None:
    """Drive a search until it is done or asked to stop."""
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
    """Act on a run, unless it has just ended or its cluster does not respond; the next poll tries again."""
    with suppress(InvalidRun, Unreachable):
        action(*arguments)


def _log(message: str) -> None:
    print(message, flush=True)


if __name__ == "__main__":
    drive(Path(sys.argv[1]))
