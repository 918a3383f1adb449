"""A search on page Runs: its facts and actions, and the comparison of its trials."""

import time
from collections.abc import Sequence

import streamlit as st

from pages.links import address
from pages.links.page_links import RunsLink
from pages.server import access
from pages.shared import datasets
from pages.shared.escape import plain
from pages.training import run_records
from pages.training.gate import limits
from pages.training.run_views import compare_runs, run_actions
from vit.errors import InvalidRun
from vit.training.runs.registry import Run
from vit.training.search import control
from vit.training.search.control import Search
from vit.training.search.plan import MOST_TRIALS, best_part
from vit.untrusted import counted

TOGETHER = "Runs that were started together"  # the title of those without a search, as a ladder


def find(search_id: str) -> Search | None:
    """Return a search by its untrusted id; None if there is none, as of a ladder's runs."""
    try:
        return control.find_search(search_id)
    except InvalidRun:
        return None


def titles(linked: str) -> dict[str, str]:
    """Return the titles of all searches by id, and of the linked one if it is deleted or none."""
    every = {}
    for search in control.list_searches():
        moment = time.strftime("%d %B, %H:%M UTC", time.gmtime(search.plan.created)).lstrip("0")
        every[search.id] = f"{search.plan.name}, {search.plan.trials} trials · {moment}"
    return {linked: TOGETHER} | every if linked and linked not in every else every


def drawn(search_id: str, trials: Sequence[Run]) -> list[str]:
    """Return the names of the settings in which the trials differ."""
    search = find(search_id)
    return list(search.plan.space) if search else compare_runs.varied(trials) if trials else []


def best_first(trials: Sequence[Run]) -> list[Run]:
    """Sort trials by their best validation accuracy; those without any come last."""
    accuracies = {run.id: run_records.best_accuracy(run) for run in trials}
    return sorted(trials, key=lambda run: -1.0 if (best := accuracies[run.id]) is None else best, reverse=True)


def show(search_id: str, trials: Sequence[Run]) -> None:
    """Draw a search by its untrusted id.

    Args:
        trials: its runs, the best one first.
    """
    search = find(search_id)
    if search is None and not trials:
        st.error("There is no such search. It may have been deleted.")
        return
    head, buttons = st.columns([3, 2], vertical_alignment="center")
    with head:
        st.header(plain(search.plan.name if search else TOGETHER), anchor=False)
        st.caption(plain(_facts(search, trials)))
    if search and access.may_train():
        with buttons, st.container(horizontal=True, horizontal_alignment="right"):
            _buttons(search, trials)
    if len(trials) > 1:
        compare_runs.show(trials)


def _facts(search: Search | None, trials: Sequence[Run]) -> str:
    facts = [f"{counted(len(trials), 'run')}: {control.summary(trials)}"]
    if search:
        plan = search.plan
        rungs = ", ".join(map(str, plan.rungs()))
        early = f"{best_part(plan.reduction_factor)} goes on after epochs {rungs}" if rungs else "none ends early"
        kind = f"all {plan.trials} combinations" if plan.grid else f"{plan.trials} random trials"
        data = datasets.label(plan.config.data)
        facts = ["Search", data, f"{kind}, up to {counted(plan.epochs, 'epoch')} each", early, control.summary(trials)]
    return " · ".join(facts)


def _buttons(search: Search, trials: Sequence[Run]) -> None:
    """Draw the forms that queue trials, and delete the search; the comparison has the button that stops trials."""
    planned = search.plan.trials
    unfinished = control.unfinished(search, trials)
    if unfinished or not (search.plan.grid or planned >= MOST_TRIALS):
        key = f"search trials {search.id}"

        def resume() -> None:
            total = st.session_state[key]
            run_actions.act("Its trials were queued.", control.resume, search.id, total, limits())

        with st.popover("Resume search" if unfinished else "More trials", width="content"):
            proposed = planned if unfinished else min(planned + 10, MOST_TRIALS)
            least, most = planned if unfinished else planned + 1, max(MOST_TRIALS, planned)
            st.number_input("Total trials", least, most, proposed, key=key, disabled=search.plan.grid)
            st.button("Continue", key="resume search", type="primary", on_click=resume)
    if not any(run.alive for run in trials):
        with st.popover("Delete", width="content"):
            st.caption("The search is deleted for good; the runs of its trials are kept.")

            def delete() -> None:
                run_actions.act(f"{search.plan.name} was deleted.", control.delete, search.id)
                address.change(RunsLink, search="")

            st.button("Delete the search", key="delete search", type="primary", on_click=delete)
