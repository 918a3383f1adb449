"""A random search: its trials over each other and against each setting, which settings won, and what to do next."""

import html
import math
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
import streamlit as st

from pages.run_views import curves, run_actions
from pages.shared import access, navigation, page_links, readings, setting_names
from pages.shared.bars import STRONG
from pages.shared.escape import plain
from pages.shared.page_links import ExploreLink, RunsLink
from vit.errors import InvalidRun
from vit.runs.registry import Run
from vit.runs.search import control
from vit.runs.search.control import Search
from vit.runs.search.plan import MOST_TRIALS
from vit.runs.search.space import Choices, Range, in_words
from vit.training.metrics import best_epoch, evaluations

PAUSE = 5  # [s] between two looks at a search at work
STATUS = {
    "searching": "Searching",
    "stopping": "Stopping",
    "finished": "Finished",
    "stopped": "Stopped",
    "failed": "Failed",
    "interrupted": "Interrupted",
}
_KINDS = {  # of trials, from the front: colour, width of the line, opacity
    "best": (STRONG, 3, 1.0),
    "trained to the end": ("#5a7fb5", 1.5, 0.9),
    "under way": ("#c07f3c", 1.5, 0.9),
    "ended early": ("#888f94", 1.2, 0.65),
    "failed or stopped": ("#b3597a", 1.2, 0.65),
}
_POINTS = 60  # of one line, at most
_ACROSS = 3  # charts beside each other
_MANY = 40  # trials, from which on lines have no dots
_BEST_SHARE = 4  # one trial in so many is among the best ones


class Trial(NamedTuple):
    """A trial as the page shows it.

    Attributes:
        number: from 1.
        accuracy: the best so far on validation pictures, 0 to 1; None before the first epoch.
        epochs: that were validated.
        kind: of `_KINDS`.
    """

    number: int
    run: Run
    accuracy: float | None
    epochs: int
    kind: str


def show(search_id: str) -> None:
    """The search by its id, which anybody may have sent; it is followed while it is at work."""
    try:
        search = control.find_search(search_id)
    except InvalidRun as error:
        st.error(plain(str(error)))
        return
    now = trials(search)
    alive = search.alive or any(trial.run.alive for trial in now)
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
        except InvalidRun:  # somebody has deleted it
            st.rerun()
        every = trials(latest)
        if (latest.status, _leader(every)) != (search.status, _leader(now)):
            st.rerun()
        _say_status(latest, every)
        if every:
            _draw(latest, every)

    if now:
        _show_best(search, now[0])
    live()
    if now:
        _show_settings(search, now)
        _list(search, now)


def of_run(run: Run) -> Search | None:
    """The search that a run is a trial of."""
    try:
        return control.find_search(run.sweep) if run.sweep else None
    except InvalidRun:
        return None


def title_of(search: Search) -> str:
    """A search in a list of them."""
    moment = time.strftime("%d %B, %H:%M UTC", time.gmtime(search.plan.created)).lstrip("0")
    return f"{search.plan.name}, {search.plan.trials} trials · {STATUS[search.status].lower()} · {moment}"


def trials(search: Search) -> list[Trial]:
    """Its trials, best first."""
    found = []
    for number, run in search.trials(readings.every_run()).items():
        records = readings.figures(run).records
        best, epochs = best_epoch(records), evaluations(records)
        kind = "under way" if run.alive else _ENDS.get(run.status, "failed or stopped")
        accuracy = best["accuracy"] if best else None
        found.append(Trial(number + 1, run, accuracy, epochs[-1]["epoch"] if epochs else 0, kind))
    found.sort(key=lambda trial: (-1 if trial.accuracy is None else trial.accuracy, -trial.number), reverse=True)
    if found and found[0].accuracy is not None:
        found[0] = found[0]._replace(kind="best")
    return found


_ENDS = {"finished": "trained to the end", "pruned": "ended early"}


def _leader(every: Sequence[Trial]) -> tuple[str, str] | None:
    """The best trial, and how it is: what is drawn outside the fragment follows from that."""
    return (every[0].run.id, every[0].run.status) if every else None


def _facts(search: Search) -> str:
    plan = search.plan
    rungs = ", ".join(map(str, plan.rungs()))
    early = f"one in {plan.reduction_factor} goes on after epochs {rungs}" if rungs else "none ends early"
    data = readings.short(plan.config.data)
    return f"Random search · {data} · {plan.trials} trials of up to {plan.config.epochs} epochs · {early}"


def _buttons(search: Search) -> None:
    """Stop, or go on with more trials."""
    if not access.may_train():
        return
    if search.status == "searching":
        st.button(
            "Stop search",
            key="stop search",
            on_click=run_actions.act,
            args=("Its trials under way finish their step and save themselves.", control.stop, search.id),
            help="It can be resumed, and goes on where it was.",
        )
    elif not search.alive:
        _resume(search)
        with st.popover("Delete", width="content"):
            st.caption("The search goes for good; the runs of its trials stay.")

            def delete() -> None:
                run_actions.act(f"{search.plan.name} was deleted.", control.delete, search.id)
                page_links.change(RunsLink, search="")

            st.button("Delete the search", key="delete search", type="primary", on_click=delete)


def _resume(search: Search) -> None:
    """Continue it, with more trials where all are done."""

    def resume() -> None:
        run_actions.act("The search goes on.", control.resume, search.id, st.session_state["search trials"])

    finished, planned = search.status == "finished", search.plan.trials
    if finished and planned >= MOST_TRIALS:
        return
    with st.popover("More trials" if finished else "Resume search", width="content"):
        least = planned + 1 if finished else planned
        proposed = min(planned + 10, MOST_TRIALS) if finished else planned
        st.number_input("Trials in all", least, MOST_TRIALS, proposed, key="search trials")
        st.button("Continue", key="resume search", type="primary", on_click=resume)


def _say_status(search: Search, every: Sequence[Trial]) -> None:
    """How it is, and how many of its trials are over."""
    if search.status == "failed":
        st.error(plain(search.reason) if access.may_train() else "It failed.")
    elif search.status == "interrupted":
        st.warning(plain(search.reason))
    elif search.reason:
        st.caption(plain(search.reason))
    over = sum(not trial.run.alive for trial in every)
    if search.status in ("searching", "stopping"):
        waiting = sum(trial.run.status == "waiting" for trial in every)
        working = sum(trial.run.alive for trial in every) - waiting
        words = f"{STATUS[search.status]} · {over} of {search.plan.trials} trials over, {working} under way"
        st.progress(over / search.plan.trials, words + (f", {waiting} waiting" if waiting else ""))


def _show_best(search: Search, best: Trial) -> None:
    """The trial in front with its settings, and what to do with it."""
    if best.accuracy is None:
        return
    so_far = " so far" if search.alive else ""
    after = f"{best.epochs} epoch{'' if best.epochs == 1 else 's'}"
    test = readings.test_accuracy(best.run)
    tested = "" if test is None else f" It is right for {100 * test:.1f} % of test pictures."
    st.markdown(
        f"**Trial {best.number} is the best{so_far}**: right for {100 * best.accuracy:.1f} % of validation pictures "
        f"in {after}.{tested}"
    )
    cells = {setting_names.title(name): str(readings.setting(best.run, name)) for name in search.plan.space}
    rows = "".join(f"<div><span>{html.escape(k)}</span><b>{html.escape(v)}</b></div>" for k, v in cells.items())
    st.html(f'{_STYLE}<div class="winner">{rows}</div>')
    with st.container(horizontal=True, vertical_alignment="center"):
        if best.run.best is not None:
            navigation.link("Open in Explore", "explore", ExploreLink(checkpoint=f"run-{best.run.id}").to_query())
        if access.may_train() and not best.run.alive and best.run.status != "unreadable":
            run_actions.train_longer(best.run)
        st.button("Watch it", key="watch best", on_click=_open, args=(best.run.id,), type="tertiary")


def _open(run_id: str) -> None:
    page_links.change(RunsLink, runs=(run_id,), search="")


# --- Drawn ----------------------------------------------------------------------------------------------------------


def _draw(search: Search, every: Sequence[Trial]) -> None:
    """Every trial over its epochs, then the best accuracy of each against every setting."""
    st.echarts_chart(
        _over_epochs(search, every), key="search curves", height=320, alt="Validation accuracy of every trial by epoch"
    )
    dimensions = search.plan.dimensions
    measured = [trial for trial in every if trial.accuracy is not None]
    if not measured:
        return
    accuracies = [100 * trial.accuracy for trial in measured if trial.accuracy is not None]
    ends = max(math.floor(min(accuracies)) - 1, 0), min(math.ceil(max(accuracies)) + 1, 100)
    names = list(dimensions)
    for first in range(0, len(names), _ACROSS):
        for column, name in zip(st.columns(_ACROSS), names[first : first + _ACROSS], strict=False):
            title = setting_names.title(name)
            column.echarts_chart(
                _against(name, dimensions[name], measured, ends),
                key=f"search {name}",
                height=210,
                alt=f"Validation accuracy against {title}",
            )


def _over_epochs(search: Search, every: Sequence[Trial]) -> dict[str, Any]:
    """A line for each trial, which ends where the trial did; the best one in front."""
    series: list[dict[str, Any]] = []
    dots = len(every) <= _MANY
    for trial in reversed(every):
        color, width, opacity = _KINDS[trial.kind]
        figures = readings.figures(trial.run)
        reached = [
            (record["step"] / figures.steps_per_epoch, 100 * record["accuracy"])
            for record in evaluations(figures.records)
        ]
        points = curves.thin(reached, _POINTS)
        data = [
            {
                "value": [round(x, 3), round(y, 2)],
                "name": f"Trial {trial.number}, epoch {x:g}: {y:.1f} %",
                "symbol": "circle" if dots or (x, y) == points[-1] else "none",
                "symbolSize": 8 if (x, y) == points[-1] and trial.kind == "ended early" else 5,
            }
            for x, y in points
        ]
        series.append(
            {
                "name": trial.kind,
                "type": "line",
                "data": data,
                "z": 4 if trial.kind == "best" else 2,
                "itemStyle": {"color": color, "opacity": opacity},
                "lineStyle": {"color": color, "width": width, "opacity": opacity},
                "emphasis": {"focus": "series"},
            }
        )
    if series:
        looks = [{"xAxis": epoch} for epoch in search.plan.rungs()]
        line = {"color": "#888f94", "type": "dashed", "opacity": 0.5}
        series[0]["markLine"] = {"silent": True, "symbol": "none", "label": {"show": False}, "data": looks}
        series[0]["markLine"] |= {"lineStyle": line, "animation": False}
    return {
        "animation": False,
        "title": curves.title("Validation accuracy"),
        "legend": {"data": _kinds_of(every), "right": 0, "top": 1, "icon": "roundRect"}
        | {"itemWidth": 14, "itemHeight": 3, "type": "scroll", "left": 150, "textStyle": {"lineHeight": 20}},
        "grid": {"left": 4, "right": 14, "top": 40, "bottom": 24, "containLabel": True},
        "tooltip": {"trigger": "item", "formatter": "{b}", "confine": True},
        "xAxis": {"type": "value", "name": "epoch", "nameLocation": "middle", "nameGap": 24}
        | {"min": 0, "max": search.plan.config.epochs, "minInterval": 1, "splitLine": {"show": False}},
        "yAxis": {"type": "value", "scale": True, "axisLabel": {"formatter": "{value} %"}},
        "series": series,
    }


def _against(name: str, dimension: Range | Choices, measured: Sequence[Trial], ends: tuple[int, int]) -> dict[str, Any]:
    """The best accuracy of each trial against one setting; on the axis by which it was drawn."""
    title = setting_names.title(name)
    if isinstance(dimension, Choices):
        axis: dict[str, Any] = {"type": "category", "data": [str(value) for value in dimension.values]}
    else:
        axis = {"type": "log" if dimension.log else "value", "min": dimension.low, "max": dimension.high}
        axis |= {"splitLine": {"show": False}, "axisLabel": {"hideOverlap": True}}
    series: list[dict[str, Any]] = []
    for kind in reversed(_kinds_of(measured)):
        color, _, opacity = _KINDS[kind]
        data = []
        for trial in measured:
            value = trial.run.config.get(name)
            if trial.kind != kind or trial.accuracy is None or value is None:
                continue
            x = str(value) if isinstance(dimension, Choices) else value
            text = f"Trial {trial.number}, {in_words({name: value})}: {100 * trial.accuracy:.1f} %"
            data.append({"value": [x, round(100 * trial.accuracy, 2)], "name": text})
        style = {"color": color, "opacity": opacity}
        series.append({"name": kind, "type": "scatter", "data": data, "itemStyle": style})
        series[-1]["symbolSize"] = 13 if kind == "best" else 8
    return {
        "animation": False,
        "grid": {"left": 4, "right": 18, "top": 12, "bottom": 24, "containLabel": True},
        "tooltip": {"trigger": "item", "formatter": "{b}", "confine": True},
        "xAxis": axis | {"name": title, "nameLocation": "middle", "nameGap": 24},
        "yAxis": {"type": "value", "min": ends[0], "max": ends[1], "splitNumber": 3}
        | {"axisLabel": {"formatter": "{value} %", "showMinLabel": False, "showMaxLabel": False}},
        "series": series,
    }


def _kinds_of(every: Sequence[Trial]) -> list[str]:
    there = {trial.kind for trial in every}
    return [kind for kind in _KINDS if kind in there]


# --- In tables ------------------------------------------------------------------------------------------------------


def _show_settings(search: Search, every: Sequence[Trial]) -> None:
    """Of each setting what the best trials have, beside what was drawn from."""
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
    """Where values lie.

    >>> _summary([0.001, 0.002, 0.0015]), _summary(["muon", "adamw", "muon"]), _summary([True, True])
    ('0.001 to 0.002', 'muon, adamw', 'True')
    """
    if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        low, high = min(values), max(values)
        return f"{low:g}" if low == high else f"{low:g} to {high:g}"
    return ", ".join(dict.fromkeys(map(str, values)))


def _list(search: Search, every: Sequence[Trial]) -> None:
    """All trials, best first; a ticked one is opened."""
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
        column_config={"Validation": st.column_config.NumberColumn(format="%.1f %%")} | numbers,
        alt="Trials of the search, best first",
    )
    st.caption("Tick a trial to open it.")


def _row(dimensions: Mapping[str, Any], trial: Trial) -> dict[str, Any]:
    row = {
        "Trial": trial.number,
        "Validation": None if trial.accuracy is None else 100 * trial.accuracy,
        "Status": readings.STATUS[trial.run.status],
        "Epochs": trial.epochs,
    }
    return row | {setting_names.title(name): readings.setting(trial.run, name) for name in dimensions}


_STYLE = """<style>
.winner { display: flex; flex-wrap: wrap; gap: 0.5rem 2.25rem; }
.winner div { display: flex; flex-direction: column; }
.winner span { font-size: 0.8rem; opacity: 0.7; }
.winner b { font-size: 1.25rem; font-weight: 500; font-variant-numeric: tabular-nums; line-height: 1.4; }
</style>"""
