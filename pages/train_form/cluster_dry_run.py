"""Dry run on a machine of a cluster, submitted from the form and polled while the page is open."""

import threading
from pathlib import Path
from typing import Any

import streamlit as st

from pages.links import session
from pages.links.session import TriedRecipe
from pages.shared.escape import plain, with_code
from pages.train_form import cost_preview
from pages.train_form.compute_target import ComputeTarget
from vit.errors import UserError
from vit.runs import cluster_dry_run, control
from vit.runs.engines import watch
from vit.runs.engines.contract import JobStatus, read_handle
from vit.training import dry_run
from vit.training.config import TrainConfig

PAUSE = 2.0  # polling interval [s]


def finished(config: TrainConfig, target: ComputeTarget) -> "dry_run.DryRun | None":
    """Return the result of a dry run with these settings on this target; None if there is none."""
    state = session.of(session.Train)
    if (
        state.cluster_dry_run
        and state.cluster_dry_run[0] == _key(config, target)
        and isinstance(state.cluster_dry_run[2], cluster_dry_run.ClusterDryRun)
    ):
        return state.cluster_dry_run[2].result
    return None


def show(config: TrainConfig, target: ComputeTarget) -> None:
    """Draw the button, the status of the dry run, and warnings from its result."""
    state = session.of(session.Train)
    tried = _key(config, target)
    if st.button(
        "Try a few steps there",
        key="try_there",
        help=plain(f"On one machine of {target.on}: whether it works there, and how long it will take."),
        disabled=bool(state.cluster_dry_run and state.cluster_dry_run[2] is None),
    ):
        try:
            folder = control.start_dry_run(config, on=target.on, devices=target.devices, nodes=target.nodes)
        except UserError as error:
            st.error(with_code(str(error)))
        else:
            state.cluster_dry_run = (tried, folder, None)
            st.rerun()
    if state.cluster_dry_run and state.cluster_dry_run[2] is None:
        _wait()
        return
    if state.cluster_dry_run is None or state.cluster_dry_run[0] != tried:
        return
    outcome = state.cluster_dry_run[2]
    if isinstance(outcome, cluster_dry_run.ClusterDryRun):
        for doubt in outcome.doubts:
            st.warning(with_code(doubt))
        st.caption(plain(f"Tried on {outcome.host}."))
    elif outcome is not None:
        st.error(with_code(outcome))


def _key(config: TrainConfig, target: ComputeTarget) -> tuple[TriedRecipe, str]:
    return cost_preview.recipe_key(config, target.devices * target.nodes), target.on


@st.fragment(run_every=PAUSE)
def _wait() -> None:
    """Show the status of the dry run until it has a result."""
    state = session.of(session.Train)
    if state.cluster_dry_run is None or state.cluster_dry_run[2] is not None:
        return
    tried, folder, _ = state.cluster_dry_run
    handle = read_handle(folder)
    status, problem = watch.status(handle) if handle else (JobStatus("gone"), "")
    result: Any = None
    try:
        result = cluster_dry_run.read(folder)
    except UserError as error:
        result = str(error)
    result = result or (cluster_dry_run.failure(folder, status) if status else "")
    if result:
        state.cluster_dry_run = (tried, folder, result)
        _end(folder)
        st.rerun()
    with st.container(horizontal=True, vertical_alignment="center"):
        running = status is not None and status.state == "running"
        words = "It tries a few steps." if running else (status.reason if status else problem) or "It is submitted."
        st.caption(plain(words))
        st.button("Cancel", key="cancel_there", on_click=_cancel)


def _cancel() -> None:
    state = session.of(session.Train)
    if state.cluster_dry_run:
        _end(state.cluster_dry_run[1])
        state.cluster_dry_run = None


def _end(folder: Path) -> None:
    """End the dry run in a background thread, because cluster commands are slow."""
    threading.Thread(target=control.end_dry_run, args=(folder,), daemon=True, name="ends a trial").start()
