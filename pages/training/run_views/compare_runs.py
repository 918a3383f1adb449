"""Comparison of runs: overlaid curves, and the settings in which they differ."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd
import streamlit as st

from pages.links import link_controls
from pages.training import run_records
from pages.training.run_views import curves, run_actions
from pages.training.setting_names import label
from vit.confidence import decimals, figure
from vit.exports import tables
from vit.training.loop.metrics import Record, evaluations, final_test, paired_difference, pictures_of
from vit.training.runs.registry import Run
from vit.view.chart_colours import SERIES

MOST_CURVES = 2 * len(SERIES)
_ASIDE = {"data_root", "workers"}  # settings without influence on results


def show(chosen: Sequence[Run]) -> None:
    """Compare runs, the first ones by curves, which are updated while a run is alive."""
    with st.container(horizontal=True, vertical_alignment="bottom"):
        against = link_controls.select(
            "Against", "against", ["epoch", "minutes"], kind=st.segmented_control, width="content"
        )
        st.space("stretch")
        run_actions.stop_all(chosen)
    unit = "minutes" if against == "minutes" else "epochs"
    view = curves.controls(_longest(chosen, unit), unit)

    ids = [run.id for run in chosen[:MOST_CURVES]]
    alive = any(run.alive for run in chosen)
    if len(chosen) > len(ids):
        st.caption(f"Curves of the first {len(ids)} of {len(chosen)} runs.")

    @st.fragment(run_every=5 if alive else None)
    def live() -> None:
        every = {run.id: run for run in run_records.every_run()}
        draw([every[run_id] for run_id in ids if run_id in every], against, view)

    live()
    differences(chosen)


def _longest(chosen: Sequence[Run], unit: str) -> int:
    """Return the end of the longest curve."""
    if unit == "epochs":
        return max(run.config.get("epochs", 1) for run in chosen)
    return max(math.ceil(run_records.figures(run).seconds / 60) for run in chosen)


def names(chosen: Sequence[Run]) -> dict[str, str]:
    """Return unique names of runs by id."""
    return _unique({run.id: run.name for run in chosen})


def labels(chosen: Sequence[Run]) -> dict[str, str]:
    """Return short unique labels for legends: of trials of one search the varied settings, else the names."""
    settings = varied(chosen)
    if not settings or len(settings) > 2 or not _started_together(chosen):
        return names(chosen)
    return _unique(
        {run.id: ", ".join(f"{name} {run_records.setting(run, name)}" for name in settings) for run in chosen}
    )


def _unique(name_of: dict[str, str]) -> dict[str, str]:
    every = list(name_of.values())
    return {run: name if every.count(name) == 1 else f"{name} ({run[-4:]})" for run, name in name_of.items()}


def _started_together(chosen: Sequence[Run]) -> bool:
    return bool(chosen[0].search) and len({run.search for run in chosen}) == 1


def draw(chosen: Sequence[Run], against: str, view: curves.View) -> None:
    """Draw accuracy and loss of all runs, each in its own colour."""
    accuracy, loss = [], []
    label_of = labels(chosen)
    for i, run in enumerate(chosen):
        figures, color = run_records.figures(run), SERIES[i % len(SERIES)]
        clock, per_epoch = run_records.TrainingClock(figures.records), figures.steps_per_epoch

        def at(record: dict[str, Any], clock: run_records.TrainingClock = clock, per_epoch: float = per_epoch) -> float:
            return clock.at(record) / 60 if against == "minutes" else record["step"] / per_epoch

        epochs, steps = evaluations(figures.records), figures.records.get("step", [])
        reached = [(at(record), 100 * record["accuracy"]) for record in epochs if "accuracy" in record]
        pictures = pictures_of(figures.records, "validation")
        accuracy.append(curves.line(label_of[run.id], reached, color, dots=True, pictures=pictures))
        losses = [(at(record), record["loss"]) for record in steps]
        loss.append(curves.line(label_of[run.id], curves.smooth(losses, view.smoothing), color))
    left, right = st.columns(2, gap="medium")
    left.echarts_chart(
        curves.chart("Validation accuracy", accuracy, x=against, view=view._replace(log=False), percent=True),
        key="compared accuracy",
        height=curves.HEIGHT,
    )
    right.echarts_chart(
        curves.chart("Training loss", loss, x=against, view=view), key="compared loss", height=curves.HEIGHT
    )


def varied(chosen: Sequence[Run]) -> list[str]:
    """List settings that were explicitly set to different values."""
    every = dict.fromkeys(name for run in chosen for name in run.config)
    return [name for name in every if name not in _ASIDE and len({repr(run.config.get(name)) for run in chosen}) > 1]


def differing(chosen: Sequence[Run]) -> list[str]:
    """List settings with different values, whether explicit or derived from other settings.

    A derived value that is still unknown is no difference: values that follow from the size are known once the model is
    saved.
    """

    def differs(name: str) -> bool:
        used = {repr(run.settings.get(name)) for run in chosen}
        return len(used) > 1 and (name in varying or len(used - {repr(None)}) > 1)

    varying = varied(chosen)
    every = dict.fromkeys(name for run in chosen for name in run.config)
    return [name for name in every if name not in _ASIDE and differs(name)]


def table(chosen: Sequence[Run]) -> pd.DataFrame:
    """Return a table with one row per run: status, results, and differing settings."""
    rows, settings, tests = [], differing(chosen), [final_test(run_records.figures(run).records) for run in chosen]
    tested = list(filter(None, tests))
    for run, test, name in zip(chosen, tests, names(chosen).values(), strict=True):
        figures, best = run_records.figures(run), run_records.best_accuracy(run)
        pictures = pictures_of(figures.records, "validation")
        row = {
            "Run": name,
            "Status": run_records.STATUS[run.status],
            "Validation accuracy [%]": None if best is None else round(100 * best, decimals(pictures)),
            "Validation pictures right": None if best is None else figure(best, pictures),
            "Test accuracy [%]": test and round(100 * test["accuracy"], decimals(test.get("pictures"))),
            "Test pictures right": test and figure(test["accuracy"], test.get("pictures")),
            **({"Test difference, 95% [points]": test and _difference(test, tested[0])} if len(tested) > 1 else {}),
            "Minutes": round(figures.seconds / 60, 1),
        }
        rows.append(row | {label(name): run_records.setting(run, name) for name in settings})
    return pd.DataFrame(rows)


def _difference(test: Record, reference: Record) -> str:
    """Return the difference of two tests' accuracies in points, with its 95% interval."""
    if test is reference:
        return "reference"
    if not (found := paired_difference(test, reference)):
        return "other pictures" if "split" in test and "split" in reference else "not recorded"
    middle, low, high = (f"{100 * value:+.{decimals(test['pictures'])}f}" for value in found)
    return f"{middle} ({low} to {high})"


def differences(chosen: Sequence[Run]) -> None:
    """Draw the table of differences, and a button that downloads it."""
    comparison = table(chosen)
    with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
        st.markdown("**Differences**" if differing(chosen) else "**The same settings**")
        st.download_button(
            "Download CSV", to_csv(comparison), "runs.csv", "text/csv", key="csv", on_click="ignore", width="content"
        )
    rows = sortable(comparison, map(label, differing(chosen)))
    st.dataframe(rows, hide_index=True, placeholder="–", key="differences", alt="Settings in which the runs differ")


def sortable(table: pd.DataFrame, columns: Iterable[str]) -> pd.DataFrame:
    """Convert columns of mixed types, which cannot be sorted, to text."""
    rows = table.copy()
    for name in columns:
        if rows[name].map(type).nunique() > 1:
            rows[name] = rows[name].map(str, na_action="ignore")
    return rows


def to_csv(table: pd.DataFrame) -> bytes:
    """Encode a table as CSV, with empty cells for missing values."""
    return tables.encode(table.astype(object).where(table.notna(), None).to_dict("records"))
