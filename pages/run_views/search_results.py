"""A search: status, the best trial with its actions, and all trials ranked."""

import html
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from pages.links import address, navigation
from pages.links.page_links import ExploreLink, RunsLink, best_of_run
from pages.looking import run_records
from pages.run_views import run_actions, search_charts
from pages.run_views.search_charts import Trial, trials
from pages.server import access
from pages.shared import setting_names
from pages.shared.escape import plain, with_code
from vit.errors import InvalidRun
from vit.training.runs.registry import Run
from vit.training.search import control
from vit.training.search.control import Search
from vit.training.search.plan import MOST_TRIALS, best_part
from vit.training.search.space import Choices, Range

PAUSE = 5  # interval between updates of an active search [s]
STATUS = {
    "searching": "Searching",
    "stopping": "Stopping",
    "finished": "Finished",
    "stopped": "Stopped",
    "failed": "Failed",
    "interrupted": "Interrupted",
}
_BEST_SHARE = 4  # the best fourth of all trials


def show(search_id: str) -> None:
    """Draw a search by its untrusted id; it is updated while active."""
    try:
        search = control.find_search(search_id)
    except InvalidRun as error:
        st.error(with_code(str(error)))
        return
    current = trials(search)
    alive = search.alive or any(trial.run.alive for trial in current)
    head, buttons = st.columns([3, 2], vertical_alignment="center")
    with head:
        st.header(plain(search.plan.name), anchor=False)
        st.caption(plain(_facts(search)))
    with buttons, st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center"):
        _buttons(search)

    @st.fragment(run_every=PAUSE if alive else None)
    def live() -> None:
        try:
            latest = control.find_search(search_id)
        except InvalidRun:  # deleted in the meantime
            st.rerun()
        every = trials(latest)
        if (latest.status, _static_state(every)) != (search.status, _static_state(current)):
            st.rerun()
        _say_status(latest, every)
        if every:
            search_charts.draw(latest, every)

    if current:
        _show_best(search, current)
    live()
    if current:
        _show_settings(search, current)
        _list(search, current)


def search_of(run: Run) -> Search | None:
    """Return the search that a run belongs to, if any."""
    try:
        return control.find_search(run.search) if run.search else None
    except InvalidRun:
        return None


def title_of(search: Search) -> str:
    """Return the title of a search in a list."""
    moment = time.strftime("%d %B, %H:%M UTC", time.gmtime(search.plan.created)).lstrip("0")
    return f"{search.plan.name}, {search.plan.trials} trials · {STATUS[search.status].lower()} · {moment}"


def _static_state(every: Sequence[Trial]) -> tuple[object, ...]:
    """Return the state that elements outside of the fragment show: best accuracy, and each trial's status."""
    return (every[0].accuracy if every else None, *((trial.run.id, trial.run.status) for trial in every))


def _facts(search: Search) -> str:
    plan = search.plan
    rungs = ", ".join(map(str, plan.rungs()))
    early = f"{best_part(plan.reduction_factor)} goes on after epochs {rungs}" if rungs else "none ends early"
    data = run_records.dataset_label(plan.config.data)
    trials = f"all {plan.trials} combinations" if plan.grid else f"{plan.trials} random trials"
    return f"Search · {data} · {trials}, up to {plan.epochs} epochs each · {early}"


def _buttons(search: Search) -> None:
    """Draw the buttons that stop, resume or delete a search."""
    if not access.may_train():
        return
    if search.status == "searching":
        st.button(
            "Stop search",
            key="stop search",
            on_click=run_actions.act,
            args=(control.STOPPING, control.stop, search.id),
            help="It can be resumed later.",
        )
    elif not search.alive:
        _resume(search)
        with st.popover("Delete", width="content"):
            st.caption("The search is deleted for good; the runs of its trials are kept.")

            def delete() -> None:
                run_actions.act(f"{search.plan.name} was deleted.", control.delete, search.id)
                address.change(RunsLink, search="")

            st.button("Delete the search", key="delete search", type="primary", on_click=delete)


def _resume(search: Search) -> None:
    """Draw the form that resumes a search, with more trials if all are done."""
    key = f"search trials {search.id}"

    def resume() -> None:
        run_actions.act("The search was resumed.", control.resume, search.id, st.session_state[key])

    finished, planned = search.status == "finished", search.plan.trials
    if finished and (search.plan.grid or planned >= MOST_TRIALS):
        return
    with st.popover("More trials" if finished else "Resume search", width="content"):
        least = planned + 1 if finished else planned
        proposed = min(planned + 10, MOST_TRIALS) if finished else planned
        st.number_input("Total trials", least, MOST_TRIALS, proposed, key=key, disabled=search.plan.grid)
        st.button("Continue", key="resume search", type="primary", on_click=resume)


def _say_status(search: Search, every: Sequence[Trial]) -> None:
    """Show the status of a search, and the number of finished trials."""
    if search.status == "failed":
        st.error(with_code(search.reason) if access.may_train() else "It failed.")
    elif search.status == "interrupted":
        st.warning(with_code(search.reason))
    elif search.reason:
        st.caption(plain(search.reason))
    over = sum(not trial.run.alive for trial in every)
    if search.status in ("searching", "stopping"):
        waiting = sum(trial.run.status == "waiting" for trial in every)
        working = sum(trial.run.alive for trial in every) - waiting
        words = f"{STATUS[search.status]} · {over} of {search.plan.trials} trials over, {working} under way"
        st.progress(over / search.plan.trials, words + (f", {waiting} waiting" if waiting else ""))
    if search.status == "searching" and all(trial.accuracy is None for trial in every):
        notes = [f"Trial {trial.number}: {note}" for trial in every if (note := run_records.first_result(trial.run))]
        if notes or not every:
            st.caption(plain(notes[-1] if notes else "Its first trial is being started."))


def _show_best(search: Search, every: Sequence[Trial]) -> None:
    """Draw the best trial with its settings and actions; a single result is not called the best."""
    best = every[0]
    if best.accuracy is None:
        return
    after = f"{best.epochs} epoch{'' if best.epochs == 1 else 's'}"
    test = run_records.test_accuracy(best.run)
    tested = "" if test is None else f" It is right for {100 * test:.1f}% of test pictures."
    front = f"**Trial {best.number} is the best{' so far' if search.alive else ''}**: right"
    if sum(trial.accuracy is not None for trial in every) == 1:
        front = f"**Trial {best.number}** is the first with a result: right"
    st.markdown(f"{front} for {100 * best.accuracy:.1f}% of validation pictures in {after}.{tested}")
    cells = {setting_names.title(name): str(run_records.setting(best.run, name)) for name in search.plan.space}
    rows = "".join(f"<div><span>{html.escape(k)}</span><b>{html.escape(v)}</b></div>" for k, v in cells.items())
    st.html(f'{_STYLE}<div class="winner">{rows}</div>')
    with st.container(horizontal=True, vertical_alignment="center"):
        if best.run.best is not None:
            navigation.link("Open in Explore", "explore", ExploreLink(checkpoint=best_of_run(best.run.id)).to_query())
        if access.may_train() and best.run.status in ("finished", "pruned"):  # the search continues other trials
            run_actions.train_longer(best.run)
        st.button("Watch it", key="watch best", on_click=_open, args=(best.run.id,), type="tertiary")


def _open(run_id: str) -> None:
    address.change(RunsLink, runs=(run_id,), search="")


# --- Tables ---------------------------------------------------------------------------------------------------------


def _show_settings(search: Search, every: Sequence[Trial]) -> None:
    """Draw a table that compares each setting's values in the best trials with its sampled range."""
    measured = [trial for trial in every if trial.accuracy is not None]
    front = measured[: len(measured) // _BEST_SHARE]
    if len(front) < 2:
        return
    rows = []
    for name, dimension in search.plan.dimensions.items():
        values = [trial.run.config.get(name) for trial in front]
        rows.append(
            {
                "Setting": setting_names.title(name),
                f"Best {len(front)} trials": _summary(values),
                "Drawn from": _summary(dimension.values if isinstance(dimension, Choices) else dimension[:2]),
            }
        )
    st.markdown("**Settings of the best trials**")
    st.dataframe(pd.DataFrame(rows), hide_index=True, key="search settings", alt="Settings of the best trials")


def _summary(values: Sequence[Any]) -> str:
    """Summarise values by range or by distinct values.

    >>> _summary([0.001, 0.002, 0.0015]), _summary(["muon", "adamw", "muon"]), _summary([True, True])
    ('0.001 to 0.002', 'muon, adamw', 'True')
    """
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        low, high = min(values), max(values)
        return f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return ", ".join(dict.fromkeys(map(str, values)))


def _list(search: Search, every: Sequence[Trial]) -> None:
    """Draw a table of all trials, best first; selecting a row opens its run."""
    rows = [_row(search.plan.dimensions, trial) for trial in every]
    ranges = [name for name, dimension in search.plan.dimensions.items() if isinstance(dimension, Range)]
    numbers = {setting_names.title(name): st.column_config.NumberColumn(format="%.3g") for name in ranges}

    def choose() -> None:
        if ticked := st.session_state["search trials table"]["selection"]["rows"]:
            _open(every[ticked[0]].run.id)

    st.markdown("**Trials, best first**")
    st.dataframe(
        pd.DataFrame(rows),
        key="search trials table",
        hide_index=True,
        on_select=choose,
        selection_mode="single-row",
        placeholder="–",
        column_config={"Validation": st.column_config.NumberColumn(format="%.1f%%")} | numbers,
        alt="Trials of the search, best first",
    )
    st.caption("Tick a trial to open it.")


def _row(dimensions: Mapping[str, Any], trial: Trial) -> dict[str, Any]:
    row = {
        "Trial": trial.number,
        "Validation": None if trial.accuracy is None else 100 * trial.accuracy,
        "Status": run_records.STATUS[trial.run.status],
        "Epochs": trial.epochs,
    }
    return row | {setting_names.title(name): run_records.setting(trial.run, name) for name in dimensions}


_STYLE = """<style>
.winner { display: flex; flex-wrap: wrap; gap: 0.5rem 2.25rem; }
.winner div { display: flex; flex-direction: column; }
.winner span { font-size: 0.8rem; opacity: 0.7; }
.winner b { font-size: 1.25rem; font-weight: 500; font-variant-numeric: tabular-nums; line-height: 1.4; }
</style>"""
