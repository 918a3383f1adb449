"""Page Runs: monitor, stop, resume, inspect and compare runs."""

import gc
import hashlib
import html
import time

import pandas as pd
import streamlit as st

from pages.links import address, link_controls, navigation, session
from pages.links.page_links import ExploreLink, RunsLink, best_of_run
from pages.server import access
from pages.shared import button_actions, datasets
from pages.shared.escape import plain, with_code
from pages.training import run_records, setting_names
from pages.training.run_views import (
    attention_over_epochs,
    compare_runs,
    curves,
    finish_notice,
    results,
    run_actions,
    search_panel,
)
from pages.training.state import Runs
from vit.confidence import decimals, figure
from vit.training.engines.contract import HERE
from vit.training.loop.metrics import Progress, best_epoch, evaluations, final_test, pictures_of
from vit.training.runs.registry import Run
from vit.view import attention_snapshots
from vit.view.chart_colours import SERIES

navigation.start_page("runs")
st.title("Runs", anchor=False)

VIEWS = {  # views of a run, by name in links
    "curves": "Curves",
    "attention": "Attention",
    "results": "Results",
    "settings": "Settings",
    "log": "Log",
}
CLOSED = "The pictures of this run are shown to people who may train. Sign in on the page Train."
ROWS = 7  # rows before the table scrolls
# Update intervals [s]. They are long because updates compete with a training on the same cores.
STATE, CURVES, TABLE = 4, 8, 16
IDLE = 10  # update interval without active runs [s]: somebody else may start one


@st.cache_resource(show_spinner=False)
def freeze_modules() -> None:
    """Exclude imported modules from the garbage collection that Streamlit triggers after every run."""
    gc.collect()
    gc.freeze()


def linked_runs() -> list[str]:
    """Return the ids of the link's runs."""
    return list(address.read(RunsLink).runs)


def linked_search() -> str:
    """Return the id of the link's search, "" for none."""
    return address.read(RunsLink).search


def pick_search() -> None:
    """Draw the control that shows the runs of one search only, if there are any searches."""
    if titles := search_panel.titles(linked_search()):
        link_controls.select(
            "Search",
            "search",
            ["", *titles],
            format_func=lambda one: titles[one] if one else "All runs",
            along={"run": None},
            label_visibility="collapsed",
        )


def of_search(every: list[Run]) -> list[Run]:
    """Return the runs of the linked search, the best one first; all runs without one."""
    search = linked_search()
    return search_panel.best_first([run for run in every if run.search == search]) if search else every


def list_all() -> None:
    """Draw the table of runs; selected ones are shown below."""
    state = session.of(Runs)

    def outline(every: list[Run]) -> tuple[object, ...]:
        """Return what the rest of the page depends on: linked runs, whether any is alive, which linked ones exist."""
        trials = [(run.id, run.status) for run in every if run.search == linked_search()] if linked_search() else []
        return linked_runs(), any(run.alive for run in every), {run.id for run in every} & set(linked_runs()), trials

    drawn = outline(run_records.every_run())

    @st.fragment(run_every=TABLE if drawn[1] else IDLE)
    def table() -> None:
        every = run_records.every_run()
        with st.container(horizontal=True, vertical_alignment="bottom"):
            query = st.text_input(
                "Filter", key="filter", placeholder="Filter by name, data or status", label_visibility="collapsed"
            )
            finish_notice.show(every)
        # The caption separates filter and table, because the table's toolbar covers the element directly above.
        st.caption("Tick a run to watch it, or several to compare them.")
        runs = [run for run in of_search(every) if matches(run, query)]
        key = "table " + hashlib.sha256(" ".join(run.id for run in runs).encode()).hexdigest()[:8]
        if linked_runs() != state.ticked:  # after the browser's Back: replace the table, to reset its selection
            state.ticked, state.tables = linked_runs(), state.tables + 1
        key += f" {state.tables}"

        def choose() -> None:
            rows = st.session_state[key]["selection"]["rows"]
            state.ticked = [runs[row].id for row in rows if row < len(runs)]
            address.change(RunsLink, runs=tuple(state.ticked))

        drawn_settings = search_panel.drawn(linked_search(), runs) if linked_search() else []
        listed = summary(runs, drawn_settings)
        records = [run_records.figures(run).records for run in runs]
        validation, test = (decimals(*(pictures_of(one, name) for one in records)) for name in ("validation", "test"))
        numbers = [title for title in map(setting_names.title, drawn_settings) if listed[title].dtype.kind in "if"]
        st.dataframe(
            listed,
            key=key,
            hide_index=True,
            height=38 + 35 * min(max(len(runs), 1), ROWS),
            on_select=choose,
            selection_mode="multi-row",
            selection_default={"selection": {"rows": [i for i, run in enumerate(runs) if run.id in linked_runs()]}},
            placeholder="–",
            column_config={
                # A phone shows the first three columns. On wider screens, all columns grow equally.
                "Run": st.column_config.TextColumn(width=152),
                "Status": st.column_config.TextColumn(width=92),
                "Validation": st.column_config.NumberColumn(
                    format=f"%.{validation}f%%",
                    width=81,
                    help="Accuracy on validation pictures, of the best epoch so far, which they also chose",
                ),
                "Test": st.column_config.NumberColumn(
                    format=f"%.{test}f%%",
                    width=58,
                    help="Accuracy on test pictures, measured once at the end, with the weights that validation chose",
                ),
                "Progress": st.column_config.ProgressColumn(format="%.0f%%", min_value=0, max_value=100, width=90),
                "Time": st.column_config.TextColumn(width=58),
                "Data": st.column_config.TextColumn(width=72),
                "Device": st.column_config.TextColumn(width=62),
                "Started": st.column_config.DatetimeColumn(format="D MMM, HH:mm", width=104),
            }
            | {title: st.column_config.NumberColumn(format="%.3g") for title in numbers},
            alt="All runs",
        )
        if outline(every) != drawn:
            st.rerun()

    table()


def matches(run: Run, query: str) -> bool:
    """Whether every word of the filter occurs in a run's name, data, status or device."""
    status, resources = run_records.STATUS[run.status], run_records.describe_resources(run)
    text = f"{run.name} {run_records.data_name(run)} {status} {resources}".lower()
    return all(word in text for word in query.lower().split())


def summary(runs: list[Run], drawn: list[str]) -> pd.DataFrame:
    """Return the table of runs, one row per run, with columns of the settings that a search has drawn."""
    rows = [
        {
            "Run": run.name,
            "Status": f"{run_records.STATUS[run.status]} · {run.queue_position}"
            if run.queue_position
            else run_records.STATUS[run.status],
            **{setting_names.title(name): run_records.setting(run, name) for name in drawn},
            "Validation": None if (best := run_records.best_accuracy(run)) is None else 100 * best,
            "Test": None if (test := run_records.test_accuracy(run)) is None else 100 * test,
            "Progress": 100 * run_records.share_done(run),
            "Time": run_records.duration(run_records.figures(run).seconds),
            "Data": run_records.data_name(run),
            "Device": run_records.describe_resources(run, hosts=False),
            "Started": pd.Timestamp(run.created, unit="s", tz="UTC"),
        }
        for run in runs
    ]
    settings = list(map(setting_names.title, drawn))
    columns = ["Run", "Status", "Validation", *settings, "Test", "Progress", "Time", "Data", "Device", "Started"]
    return compare_runs.sortable(pd.DataFrame(rows, columns=columns), settings)


def show_run(run: Run) -> None:
    """Draw a run: facts, actions, status, and the selected view."""
    head, buttons = st.columns([3, 2], vertical_alignment="center")
    with head:
        st.header(plain(run.name), anchor=False)
        st.caption(" · ".join(map(plain, facts(run))))
        if run.loop:
            st.caption(f"Trained by another program ({plain(run.loop)}): stop and resume it there.")
    with buttons, st.container(horizontal=True, horizontal_alignment="right", vertical_alignment="center"):
        if run.best is not None:
            navigation.link("Open in Explore", "explore", ExploreLink(checkpoint=best_of_run(run.id)).to_query())
        run_actions.buttons(run)
    if run.notes:
        st.text(run.notes)

    @st.fragment(run_every=STATE if run.alive else None)
    def state() -> None:
        latest = current(run)
        if latest is None or latest.status != run.status:
            st.rerun()
        show_status(latest)
        show_figures(latest)

    state()
    if access.may_train() and (script := run_records.batch_script(run)):
        with st.expander("Batch script", key="batch_script"):
            st.code(script, language="bash", wrap_lines=True, height=320)
    log = access.may_train() and not run.loop  # logs contain paths; runs of other programs have no log here
    views = [name for name in VIEWS if name != "log" or log]
    view = link_controls.select(
        "View", "view", views, format_func=VIEWS.get, kind=st.segmented_control, label_visibility="collapsed"
    )
    curve_view = curves.View()
    if view == "curves":
        curve_view = curves.controls(run.config.get("epochs", 1))
    epochs = attention_snapshots.list_epochs(run.folder / "probes")

    @st.fragment(run_every=CURVES if run.alive else None)
    def live() -> None:
        if view == "curves":
            draw(run, curve_view)
        elif view == "log":
            st.code(
                run_records.last_lines(run) or "The log is still empty.", language=None, height=420, wrap_lines=True
            )
        elif view == "attention" and attention_snapshots.list_epochs(run.folder / "probes") != epochs:
            st.rerun()

    live()
    if view == "attention" and not datasets.may_see(str(run.config.get("data", ""))):
        st.caption(CLOSED)
    elif view == "attention":
        attention_over_epochs.show(run)
    elif view == "results":
        results.show(run)
    elif view == "settings":
        settings(run)


def current(run: Run) -> Run | None:
    """Return the current state of a run; None if it was deleted."""
    return next((candidate for candidate in run_records.every_run() if candidate.id == run.id), None)


def facts(run: Run) -> list[str]:
    """Return short facts about a run."""
    start = run_records.start_name(run)
    names = [
        run_records.data_name(run),
        f"from {start}" if start else str(run.config.get("size", "")),
        run_records.describe_resources(run),
    ]
    started = time.strftime("%d %B %Y, %H:%M UTC", time.gmtime(run.created)).lstrip("0")
    owner = run.owner if access.may_train() else ""
    return [part for part in (*dict.fromkeys(names), started, owner) if part]  # data and size may have the same name


def show_status(run: Run) -> None:
    """Show the status of a run, beyond the progress bar."""
    if run.problem:
        st.warning(with_code(run.problem))
    if run.status == "failed":
        why = plain(run.reason) or "It failed without a message. The log may say why."
        st.error(why if access.may_train() else "It failed.")
    elif run.status in ("interrupted", "stalled", "retrying", "unknown"):
        st.warning(with_code(run.reason))
    elif run.status == "waiting":
        st.info(with_code(waiting_reason(run)))
    elif run.status in ("starting", "stopping", "ending"):
        st.info(with_code(run.reason))
    elif run.status in ("stopped", "pruned") and run.reason:
        st.caption(plain(run.reason))
    elif run.status == "finished" and run_records.hardly_learns(run):
        st.warning("It does no better than guessing. Lower the learning rate, or look at its pictures and labels.")
    figures = run_records.figures(run)
    if figures.problem and run.status != "unreadable":
        st.warning(with_code(figures.problem))
    for note in figures.records.get("note", [])[-3:]:
        st.caption(plain(note["text"]))


def waiting_reason(run: Run) -> str:
    """Return the queue position of a waiting run, why it waits, and when its cluster expects to start it."""
    sentences = [f"Number {run.queue_position} in the queue."] if run.queue_position else []
    sentences += [run.reason] if run.reason else []
    if run.starts:
        sentences.append(f"It may start at {time.strftime('%H:%M UTC on %d %B', time.gmtime(run.starts))}.")
    return " ".join(sentences)


def where(run: Run, progress: Progress | None) -> str:
    """Return the label of the progress bar: progress of the training, or of an evaluation."""
    if progress is None:
        return "Getting ready"
    epoch = max(progress.epoch, run.step * progress.epoch / progress.step if progress.step else 0)
    label = f"Epoch {epoch:.1f} of {progress.epochs}"
    if run.evaluated is not None:
        pictures = {"validating": "validation", "testing": "test"}.get(run.status, "evaluation")
        return f"{label} · {pictures}, {run.evaluated:.0%}"
    if run.status == "running" and progress.seconds_left is not None:
        label += f" · {run_records.duration(progress.seconds_left)} left"
    return label


def show_figures(run: Run) -> None:
    """Draw the progress bar and the figures of a run."""
    figures = run_records.figures(run)
    progress = figures.progress
    steps = figures.records.get("step", [])
    if run.status not in ("finished", "waiting", "unreadable") and (progress or run.alive):
        st.progress(run_records.share_done(run), where(run, progress))
    details: dict[str, str] = {}
    if (best := best_epoch(figures.records)) and "accuracy" in best:
        weights = f", {best['weights']} weights" if best.get("weights") in ("raw", "averaged") else ""
        right = figure(best["accuracy"], pictures_of(figures.records, "validation"))
        details["Validation accuracy"] = f"{right}, which also chose epoch {best['epoch']}{weights}"
    if final := final_test(figures.records):
        details["Test accuracy"] = figure(final["accuracy"], final.get("pictures"))
    if steps:
        details["Loss"] = f"{steps[-1]['loss']:.3f}"
        if progress and progress.pictures_per_second:
            speed = progress.pictures_per_second
            details["Pictures per second"] = f"{speed:,.0f}" if speed >= 10 else f"{speed:.2g}"
        details["Time"] = run_records.duration(figures.seconds)
    if progress and progress.memory:
        details["Memory"] = f"{progress.memory / 1e9:.1f} GB"
    if run.alive and run.status != "waiting" and run.on == HERE:
        for name in dict.fromkeys(run.devices):
            device = run_records.devices().get(name)
            if device and device.use is not None:
                details["CPU in use" if name == "cpu" else f"{name} in use"] = f"{device.use:.0%}"
            if device and device.total_memory and name != "cpu":
                used = device.total_memory - device.free_memory
                details[f"{name} memory"] = f"{used / 1e9:.0f} of {device.total_memory / 1e9:.0f} GB"
    if details:
        cells = "".join(f"<div><span>{html.escape(k)}</span><b>{html.escape(v)}</b></div>" for k, v in details.items())
        st.html(f'{_STYLE}<div class="figures">{cells}</div>')
    if run.status != "starting" and (note := run_records.first_result(run)):  # `show_status` shows it while starting
        st.caption(note)
    if run.alive and progress and progress.bottleneck:
        st.caption(progress.bottleneck)


_STYLE = """<style>
.figures { display: flex; flex-wrap: wrap; gap: 0.5rem 2.25rem; }
.figures div { display: flex; flex-direction: column; }
.figures span { font-size: 0.8rem; opacity: 0.7; }
.figures b { font-size: 1.25rem; font-weight: 500; font-variant-numeric: tabular-nums; line-height: 1.4; }
</style>"""


def draw(run: Run, view: curves.View) -> None:
    """Draw loss, accuracy and learning rate against epochs."""
    figures = run_records.figures(run)
    per_epoch = figures.steps_per_epoch
    steps, epochs = figures.records.get("step", []), evaluations(figures.records)
    if not steps and not epochs:
        if run.alive:
            st.caption("Curves come with its first steps.")
        return
    train = [(record["step"] / per_epoch, record["loss"]) for record in steps]
    held_out = [(record["step"] / per_epoch, record["loss"]) for record in epochs if "loss" in record]
    first, second = SERIES[:2]
    losses = [curves.line("training", train, first, faint=True)] if view.smoothing else []
    losses += [
        curves.line("training", curves.smooth(train, view.smoothing), first),
        curves.line("validation", held_out, second, dots=True),
    ]
    accuracy = [(record["step"] / per_epoch, 100 * record["accuracy"]) for record in epochs if "accuracy" in record]
    pictures = pictures_of(figures.records, "validation")
    rates = [(record["step"] / per_epoch, record["lr"]) for record in steps if "lr" in record]
    left, right = st.columns(2, gap="medium")
    left.echarts_chart(
        curves.chart("Loss", losses, view=view), key="loss", height=curves.HEIGHT, alt="Loss over the epochs"
    )
    right.echarts_chart(
        curves.chart(
            "Validation accuracy",
            [curves.line("validation", accuracy, first, dots=True, pictures=pictures)],
            view=view._replace(log=False),
            percent=True,
        ),
        key="accuracy",
        height=curves.HEIGHT,
        alt="Validation accuracy over the epochs",
    )
    if rates:
        st.echarts_chart(
            curves.chart(
                "Learning rate", [curves.line("learning rate", rates, first)], view=view._replace(log=False), low=True
            ),
            key="rate",
            height=130,
            alt="Learning rate over the epochs",
        )


def settings(run: Run) -> None:
    """Draw a table of a run's settings, with their names on the command line."""
    rows = []
    for name in run.settings:
        value = run_records.setting(run, name)
        rows.append((setting_names.label(name), "–" if value is None else str(value), name))
    st.dataframe(
        pd.DataFrame(rows, columns=["Setting", "Value", "Command line"]),
        hide_index=True,
        key="settings",
        alt="Settings of the run",
    )


every = run_records.every_run()
if not every and not linked_search():
    st.info("There is no run yet. Start one on the page Train, or with `python -m vit train --preset shapes`.")
    st.stop()
pick_search()
if every:  # without runs, all trials of the linked search were deleted
    list_all()
button_actions.show_outcome()
ids = linked_runs()
chosen = [run for run in every if run.id in ids]
if len(chosen) < len(ids):
    st.error("There is no such run. It may have been deleted.")
if len(chosen) > 1:
    compare_runs.show(chosen)
elif chosen:
    family = [run for run in every if run.search and run.search == chosen[0].search]
    show_run(chosen[0])
    kind = "ladder" if chosen[0].trial is None else "search"
    if len(family) > 1 and st.button(f"All {len(family)} runs of its {kind}", key="family"):
        address.change(RunsLink, runs=(), search=chosen[0].search)
        st.rerun()
elif linked_search():
    search_panel.show(linked_search(), of_search(every))
if not access.may_train():
    st.caption("Everybody can view runs. To start and change runs, sign in on the page Train.")
freeze_modules()  # last, when all modules are imported
