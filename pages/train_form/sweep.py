"""A sweep: its controls on page Train, and the start of its runs, or of a single one."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import streamlit as st

from pages.links import session
from pages.links.page_links import RunsLink
from pages.shared import setting_names
from pages.shared.escape import with_code
from pages.train_form import compute_target, form_state
from pages.train_form import settings as fields
from pages.train_form.form import LONGEST
from vit.errors import UserError
from vit.training.presets import run_name, train_config

MOST_RUNS = 32  # runs of a sweep


def pick(settings: Mapping[str, Any], first: str | None) -> list[dict[str, Any]]:
    """Draw the controls of a sweep, and return the varied settings of each run; a single run without a sweep.

    If a value is invalid, show the error and return no runs.

    Args:
        settings: settings of all runs.
        first: setting of the first control, which the second one does not offer.
    """
    chosen: dict[str, list[Any]] = {}
    offered = setting_names.compared(settings)
    for part in ("sweep_1", "sweep_2"):
        form_state.restrict(part, [None, *offered])
    with st.expander("Compare several values", key="sweep_group"):
        for number in (1, 2):
            left, right = st.columns(2)
            excluded = first if number == 2 else None
            name = left.selectbox(
                "Setting" if number == 1 else "And a second one",
                [name for name in offered if name != excluded],
                index=None,
                format_func=setting_names.title,
                placeholder="none",
                key=form_state.key(f"sweep_{number}"),
                persist_state="session",
            )
            text = right.text_input(
                "Values",
                key=form_state.key(f"values_{number}"),
                max_chars=LONGEST,
                placeholder="2, 4, 8",
                help="Separated by commas.",
                persist_state="session",
            )
            if name and text.strip():
                try:
                    chosen[name] = fields.parse_values(name, text)
                except ValueError as error:
                    st.error(with_code(str(error)))
                    return []
        runs = [dict(zip(chosen, values, strict=True)) for values in itertools.product(*chosen.values())]
        if len(runs) > MOST_RUNS:
            st.error(f"These are {len(runs)} runs; one sweep has at most {MOST_RUNS}. Choose fewer values.")
            return []
        for run in runs if chosen else []:
            _, problems = fields.check({**settings, **run})
            if problems:
                what = ", ".join(f"{setting_names.title(name)} {value}" for name, value in run.items())
                st.error(with_code(f"{what}: {next(iter(problems.values()))}"))
                return []
        if chosen:
            st.caption(f"{len(runs)} runs: one per combination. They wait for the device in turn.")
    return runs


def start(
    base: Mapping[str, Any], runs: Sequence[Mapping[str, Any]], name: str, target: compute_target.ComputeTarget
) -> None:
    """Launch the runs and switch to page Runs; submitting the same form twice starts them once.

    Args:
        name: name of the runs, "" for a name derived from the config.
    """
    state = session.of(session.Train)
    state.started = True
    launched = []
    try:
        planned = []
        for changes in runs:
            config = train_config(None, **{**base, **changes})
            suffix = ", ".join(f"{field} {value}" for field, value in changes.items())
            planned.append((", ".join(filter(None, (name or run_name(config), suffix))), config))
        sweep = state.nonce if len(runs) > 1 else ""
        for run in compute_target.launch_runs(target, planned, sweep=sweep, nonce=state.nonce):
            launched.append(run)
    except UserError as error:
        before = f"{len(launched)} of {len(runs)} runs were started. " if launched else ""
        st.error(with_code(f"{before}{error}"))
        return
    st.switch_page("pages/runs.py", query_params=RunsLink(runs=tuple(run.id for run in launched)).to_query())
