"""Start, list, stop and resume searches. A lock shows whether a search's driver is alive, as for a run."""

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from vit.errors import InvalidConfig, InvalidRun
from vit.files import check_locks, remove_folder
from vit.paths import runs_folder
from vit.training.engines.contract import HERE, Request
from vit.training.loop import fine_tuning
from vit.training.loop.run_folder import RUN_ID, is_alive, new_id, read_json, write_errors, write_json
from vit.training.runs.detached import start_detached
from vit.training.runs.launch_checks import Limits, check_request
from vit.training.runs.queue_file import launch_lock
from vit.training.runs.registry import ANY_GPU, MAX_REASON, Run, list_runs, shorten
from vit.training.search.plan import FILE, MOST_NAME, SearchPlan, default_name, make_plan, read_plan
from vit.training.search.space import optuna
from vit.untrusted import is_text

Status = Literal["searching", "stopping", "finished", "stopped", "failed", "interrupted"]
SEARCHES = ".searches"  # in the folder of this machine's runs
STOPPING = "Running trials finish their step and save their state; resuming the search continues them."


@dataclass(frozen=True)
class Search:
    """A search, as read from its folder.

    Attributes:
        status: searching, stopping (on request), finished, stopped, failed, or interrupted (the driver died without an
            outcome). The last four can be resumed; a finished search needs more trials for that.
        reason: explains the status, for the user; "" for none.
    """

    id: str
    folder: Path
    plan: SearchPlan
    status: Status
    reason: str

    @property
    def alive(self) -> bool:
        """Whether its driver is running."""
        return self.status in ("searching", "stopping")

    def trials(self, runs: Sequence[Run] | None = None) -> dict[int, Run]:
        """Return the runs of its trials by trial number, from 0, without deleted ones.

        Args:
            runs: all runs; None to list them.
        """
        every = list_runs() if runs is None else runs
        return dict(sorted((run.trial, run) for run in every if run.search == self.id and run.trial is not None))


def nonce_of(search_id: str, number: int) -> str:
    """Return the nonce that identifies a trial's run, before and after its launch."""
    return f"{search_id}-{number}"


def start(*, name: str = "", limits: Limits | None = None, nonce: str = "", **values: Any) -> Search:
    """Start a search, in a process that outlives this one.

    Args:
        name: name of the search; empty for the default, that of a run with the shared settings.
        limits: the server's limits for each run.
        nonce: id of the submitted form; submitting it twice starts one search.
        values: fields of `SearchPlan`; concurrent trials on one device share it.

    Raises:
        InvalidConfig: see `make_plan`; or this machine lacks the devices, or a trial's settings contradict the
            checkpoint that it starts from, or there are more concurrent trials than runs per person.
        InvalidCheckpoint: that checkpoint cannot be opened.
        UserError: Optuna is not installed, or this system has no file locks.
    """
    check_locks()
    optuna()  # the driver needs it
    limits = limits or Limits()
    here, devices = values.get("on", HERE) == HERE, values.get("devices", ("cpu",))
    check_request(Request(tuple(devices)), values.get("on", HERE))
    # Trials on the same device would otherwise queue behind each other.
    if here and values.get("at_once", 1) > 1 and ANY_GPU not in devices:
        values["share"] = True
    plan = make_plan(
        **values,
        name=shorten(name, MOST_NAME) or default_name(values["config"]),
        runs_per_person=limits.runs_per_person,
        free_bytes=limits.free_bytes,
        created=time.time(),
        nonce=nonce,
    )
    if plan.config.init_from:
        for drawn in plan.draw():  # the checkpoint may contradict some of the drawn values
            fine_tuning.resolve(plan.trial_config(drawn))
    if limits.runs_per_person is not None and plan.at_once > limits.runs_per_person:
        raise InvalidConfig(f"At once: you may have {limits.runs_per_person} runs, not {plan.at_once}.")
    root = runs_folder() / SEARCHES
    with write_errors(runs_folder()):
        root.mkdir(parents=True, exist_ok=True)
    with launch_lock(runs_folder()):
        if again := next((search for search in list_searches() if nonce and search.plan.nonce == nonce), None):
            return again
        folder = root / new_id(plan.name)
        with write_errors(root):
            folder.mkdir()
            try:
                write_json(folder / FILE, plan.model_dump(mode="json"))
                _start_driver(folder)
            except BaseException:
                shutil.rmtree(folder, ignore_errors=True)  # no driver was started
                raise
    return find_search(folder.name)


def stop(search_id: str) -> None:
    """Ask a search to stop: its running trials finish their step, save and exit; `resume` continues them.

    Raises:
        InvalidRun: it is not running.
    """
    search = find_search(search_id)
    if not search.alive:
        raise InvalidRun("This search has ended already.")
    with write_errors(search.folder):
        (search.folder / "stop").touch()


def resume(search_id: str, trials: int | None = None) -> Search:
    """Continue a search that was stopped or cut off, or add trials to one that has finished.

    Args:
        trials: total number of trials; None for the present number.

    Raises:
        InvalidRun: it is running, or all of its trials are done.
        InvalidConfig: fewer trials than before, or more than the space holds.
    """
    search = find_search(search_id)
    if search.alive:
        raise InvalidRun("This search is already running.")
    plan = search.plan
    if search.status == "finished" and (trials is None or trials == plan.trials):
        more = "" if plan.grid else " Give it more of them to continue it."
        raise InvalidRun(f"This search has done all its trials.{more}")
    with launch_lock(runs_folder()), write_errors(search.folder):
        if trials is not None and trials != plan.trials:
            if plan.grid:
                raise InvalidConfig(f"This search trains all {plan.trials} combinations, so it cannot have {trials}.")
            if trials < plan.trials:
                raise InvalidConfig(f"This search has {plan.trials} trials, so it cannot have {trials}.")
            plan = make_plan(**plan.model_dump() | {"trials": trials})
            write_json(search.folder / FILE, plan.model_dump(mode="json"))
        _start_driver(search.folder)
    return find_search(search_id)


def delete(search_id: str) -> None:
    """Delete a search; the runs of its trials remain.

    Raises:
        InvalidRun: it is running.
    """
    search = find_search(search_id)
    if search.alive:
        raise InvalidRun("This search is running. Stop it first.")
    with write_errors(search.folder):
        remove_folder(search.folder)


def find_search(search_id: str) -> Search:
    """Look up a search; safe for untrusted ids.

    Raises:
        InvalidRun: it does not exist, or cannot be read.
    """
    folder = runs_folder() / SEARCHES / search_id if RUN_ID.fullmatch(search_id) else None
    if folder is None or not folder.is_dir() or folder.is_symlink():
        raise InvalidRun("There is no such search. It may have been deleted.")
    plan = read_plan(folder)
    if is_alive(folder):
        stopping = os.path.lexists(folder / "stop")
        return Search(
            search_id,
            folder,
            plan,
            "stopping" if stopping else "searching",
            STOPPING if stopping else "",
        )
    outcome = read_json(folder / "outcome.json")
    word, reason = outcome.get("outcome"), outcome.get("reason")
    if word in ("finished", "stopped", "failed"):
        return Search(search_id, folder, plan, word, reason[:MAX_REASON] if is_text(reason) else "")
    return Search(search_id, folder, plan, "interrupted", "It was cut off. Resume it: no trial is begun twice.")


def list_searches() -> list[Search]:
    """Return every readable search, newest first."""
    found = []
    try:
        names = [entry.name for entry in os.scandir(runs_folder() / SEARCHES)]
    except OSError:
        return []
    for name in names:
        try:
            found.append(find_search(name))
        except InvalidRun:
            continue
    return sorted(found, key=lambda search: (search.plan.created, search.id), reverse=True)


def _start_driver(folder: Path) -> None:
    start_detached("vit.training.search.driver", folder, "This search is already running.")
