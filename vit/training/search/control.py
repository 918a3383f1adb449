"""Start, list, stop, extend and delete searches."""

import os
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vit.errors import InvalidConfig, InvalidRun, UserError
from vit.files import remove_folder
from vit.paths import runs_folder
from vit.training.loop.presets import run_name
from vit.training.loop.run_folder import RUN_ID, new_id, write_errors, write_json
from vit.training.runs import control as runs_control
from vit.training.runs.control import NewRun, launch_all
from vit.training.runs.launch_checks import Limits
from vit.training.runs.queue_file import launch_lock
from vit.training.runs.registry import Run, list_runs, shorten
from vit.training.search.plan import FILE, MOST_NAME, SearchPlan, default_name, make_plan, read_plan
from vit.training.search.space import format_settings

SEARCHES = ".searches"  # in the folder of this machine's runs
STOPPING = "Waiting trials leave the queue; running ones finish their step and save their state."
_UNFINISHED = ("stopped", "interrupted", "failed")
_WORDS = {"pruned": "ended early", "unreadable": "cannot be read"}  # other statuses are words themselves


@dataclass(frozen=True)
class Search:
    """A search, as read from its folder."""

    id: str
    folder: Path
    plan: SearchPlan

    def trials(self, runs: Sequence[Run] | None = None) -> dict[int, Run]:
        """Return the runs of its trials by trial number, from 0, without deleted ones.

        Args:
            runs: all runs; None to list them.
        """
        every = list_runs() if runs is None else runs
        own = ((run.trial, run) for run in every if run.search == self.id and run.trial is not None)
        return dict(sorted(own, key=lambda trial: trial[0]))


def nonce_of(search_id: str, number: int) -> str:
    """Return the nonce that identifies a trial's run, before and after its launch."""
    return f"{search_id}-{number}"


def summary(trials: Iterable[Run]) -> str:
    """Count the trials by status, as in "1 running, 3 waiting"; "none" without any."""
    counts = Counter(_WORDS.get(run.status, run.status) for run in trials)
    return ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "none"


def unfinished(search: Search, trials: Iterable[Run]) -> bool:
    """Whether a search has trials that `resume` would queue."""
    numbers = [run.trial for run in trials if run.trial is not None]
    return max(numbers, default=-1) + 1 < search.plan.trials or any(run.status in _UNFINISHED for run in trials)


def start(*, limits: Limits | None = None, **values: Any) -> Search:
    """Queue all trials of a search.

    Args:
        limits: the server's limits for each run.
        values: fields of `SearchPlan`. Without a name, it is that of a run with the shared settings; a search with the
            `nonce` of an earlier one is that search.

    Raises:
        InvalidConfig: see `make_plan`; or this machine lacks the devices, or a trial's settings contradict the
            checkpoint that it starts from.
        InvalidCheckpoint: that checkpoint cannot be opened.
        UserError: trials cannot be launched, see `vit.training.runs.control.launch_all`.
    """
    name = shorten(values.get("name", ""), MOST_NAME)
    plan = make_plan(**values | {"name": name, "created": time.time()})
    plan = plan if name else plan.model_copy(update={"name": default_name(plan.config)})
    with launch_lock(runs_folder()), write_errors(runs_folder()):
        search = next((search for search in list_searches() if plan.nonce and search.plan.nonce == plan.nonce), None)
        if search is None:
            folder = runs_folder() / SEARCHES / new_id(plan.name)
            folder.mkdir(parents=True)
            write_json(folder / FILE, plan.model_dump(mode="json"))
            search = Search(folder.name, folder, plan)
    try:
        _launch_missing(search, limits)
    except UserError:
        if not search.trials():
            remove_folder(search.folder)
        raise
    return search


def stop(search_id: str) -> None:
    """Ask the trials of a search to stop; `resume` continues them.

    Raises:
        InvalidRun: none is alive.
    """
    trials = find_search(search_id).trials().values()
    if not any(run.alive for run in trials):
        raise InvalidRun("No trial of this search is waiting or running.")
    runs_control.stop_all(trials)


def resume(search_id: str, trials: int | None = None, limits: Limits | None = None) -> Search:
    """Queue a search's trials that were stopped, were cut off or failed, and those that have no run yet.

    Args:
        trials: total number of trials; None for the present number.
        limits: the server's limits for each run.

    Raises:
        InvalidRun: there is no such trial.
        InvalidConfig: fewer trials than before, or more than the space holds.
        UserError: a trial cannot be queued; the others are, as far as possible.
    """
    search = find_search(search_id)
    plan = search.plan
    if trials is not None and trials != plan.trials:
        if plan.grid:
            raise InvalidConfig(f"This search trains all {plan.trials} combinations, so it cannot have {trials}.")
        if trials < plan.trials:
            raise InvalidConfig(f"This search has {plan.trials} trials, so it cannot have {trials}.")
        plan = make_plan(**plan.model_dump() | {"trials": trials})
        with write_errors(search.folder):
            write_json(search.folder / FILE, plan.model_dump(mode="json"))
        search = Search(search.id, search.folder, plan)
    started = list(search.trials().values())
    if not unfinished(search, started):
        more = "" if plan.grid else " Give it more of them to continue it."
        raise InvalidRun(f"All trials of this search are done or under way.{more}")
    problems = []
    for run in started:
        try:
            if run.status in _UNFINISHED:
                runs_control.resume(run.id)
        except UserError as error:
            problems.append(error)
    _launch_missing(search, limits)
    if problems:
        raise problems[0]
    return search


def delete(search_id: str) -> None:
    """Delete a search; the runs of its trials remain.

    Raises:
        InvalidRun: a trial is alive.
    """
    search = find_search(search_id)
    if any(run.alive for run in search.trials().values()):
        raise InvalidRun("This search has active trials. Stop it first.")
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
    return Search(search_id, folder, read_plan(folder))


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


def _launch_missing(search: Search, limits: Limits | None) -> None:
    """Launch the trials after the last one that was launched; those before it may have been deleted."""
    plan, first, runs = search.plan, max(search.trials(), default=-1) + 1, []
    for number, drawn in enumerate(plan.draw()[first:], first):
        config = plan.trial_config(drawn)
        name = run_name(config) if plan.name == default_name(plan.config) else plan.name
        runs.append(NewRun(config, f"{name}, trial {number + 1}", format_settings(drawn), nonce_of(search.id, number)))
    launch_all(
        runs,
        on=plan.on,
        devices=plan.devices,
        nodes=plan.nodes,
        minutes=plan.minutes,
        owner=plan.owner,
        search=search.id,
        halving=plan.halving if plan.rungs() else None,
        limits=limits,
    )
