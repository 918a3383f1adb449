"""Actions on runs: each checks the permission again, and reports an error in one sentence."""

import math
import os
from collections.abc import Callable, Sequence
from typing import Any

import streamlit as st

from pages.links import address, navigation
from pages.links.page_links import RunsLink
from pages.server import access
from pages.shared import button_actions
from pages.shared.escape import plain
from pages.training import run_records, setting_names
from vit.training.engines.contract import HERE
from vit.training.loop import run_folder
from vit.training.loop.config import FROM_CHECKPOINT
from vit.training.runs import control, launch_checks, registry
from vit.training.runs.registry import MOST_EPOCHS


def act(done: str, action: Callable[..., Any], *arguments: Any, **named: Any) -> None:
    """Run an action in a button's callback; `button_actions.show_outcome` reports the outcome.

    Args:
        done: message of success; "" for none.
    """
    button_actions.attempt("runs", done, action, *arguments, **named)
    run_records.forget()


def buttons(run: registry.Run) -> None:
    """Draw the actions that are currently possible for a run."""
    if not access.may_train():
        return
    if run.status == "waiting":
        _queue(run)
    elif not run.loop:
        _stop_or_resume(run)
    if run.status != "unreadable":
        with st.popover("Edit"):
            _edit(run)
    if not run.alive and st.button("Delete", key="delete", type="tertiary"):
        _confirm_delete(run)


def _stop_or_resume(run: registry.Run) -> None:
    if run.alive:
        if run.status not in ("stopping", "ending"):
            st.button(
                "Stop",
                key="stop",
                on_click=act,
                args=("", control.stop, run.id),  # its status says when it ends
                help="Finishes the step, saves, and ends. It can be resumed.",
            )
        if st.button("Kill", key="kill", type="tertiary", help="For a run that does not stop."):
            _confirm_kill(run)
    elif run.status != "unreadable":
        resumable = run_folder.resumable(run.folder)
        if resumable:
            train_longer(run)
        if run_folder.latest_checkpoint(run.folder) and (not resumable or run.status == "failed"):
            _begin_anew(run)


def stop_all(chosen: Sequence[registry.Run]) -> None:
    """Draw one button that stops several runs."""
    active = sum(map(control.can_stop, chosen))
    if access.may_train() and active > 1:
        done = ("They stop.", control.stop_all, chosen)
        st.button(f"Stop these {active}", key="stop all", on_click=act, args=done)


def _queue(run: registry.Run) -> None:
    length = len(registry.queue())
    moves = (
        ("first", 0, run.queue_position <= 1),
        ("earlier", run.queue_position - 2, run.queue_position <= 1),
        ("later", run.queue_position, run.queue_position >= length),
    )
    for move, position, off in moves if run.queue_position else ():  # a cluster's scheduler has its own order
        st.button(
            move.title(), key=f"queue {move}", on_click=act, args=("", control.move, run.id, position), disabled=off
        )
    st.button("Cancel", key="cancel", on_click=act, args=("It leaves the queue.", control.stop, run.id))


def train_longer(run: registry.Run) -> None:
    """Draw the form that resumes a run, with more epochs if it has finished."""
    planned = run.config.get("epochs", 1)

    def resume() -> None:
        wanted = st.session_state[f"resume epochs {run.id}"]
        chosen = {} if present else {"devices": (st.session_state[f"resume device {run.id}"],)}
        act("The run was resumed.", control.resume, run.id, epochs=wanted if wanted != planned else None, **chosen)

    finished, progress = run.status == "finished", run_records.figures(run).progress
    present = run.on != HERE or launch_checks.has_gpus(run.devices)
    if finished and planned >= MOST_EPOCHS:
        return
    with st.popover("Train longer" if finished else "Resume", width="content"):
        least = planned + 1 if finished else min(max(math.ceil(progress.epoch) if progress else 1, 1), planned)
        st.number_input(
            "Total epochs",
            least,
            MOST_EPOCHS,
            min(planned + max(planned // 2, 1), MOST_EPOCHS) if finished else planned,
            key=f"resume epochs {run.id}",
            help="Continues from the last saved state. With more epochs, the learning rate rises again.",
        )
        if not present:
            devices = list(run_records.devices())
            help_ = "This machine lacks the run's own device."
            st.selectbox("Device", devices, len(devices) - 1, key=f"resume device {run.id}", help=help_)
        st.button("Continue", key="resume", on_click=resume, type="primary")


def _begin_anew(run: registry.Run) -> None:
    """Draw a link to page Train for a new run with this one's settings and last weights."""
    if not run_folder.resumable(run.folder):
        st.caption("Its saved state is gone, so it cannot be continued.")
    values = {name: run.config[name] for name in ("data", *setting_names.NAMES) if name in run.config}
    recipe = {name: setting_names.write(value) for name, value in values.items() if name not in FROM_CHECKPOINT}
    tooltip = "A new run starts from the last weights of this one, with its settings."
    start = {"init_from": str(run_folder.latest_checkpoint(run.folder))}
    navigation.link("Begin anew", "train", recipe | start, help=tooltip)


def _edit(run: registry.Run) -> None:
    def change() -> None:
        control.rename(run.id, st.session_state[f"name {run.id}"])
        control.annotate(run.id, st.session_state[f"notes {run.id}"])

    with st.form("rename", border=False):  # a form, so that Enter submits it
        st.text_input("Name", run.name, max_chars=registry.MAX_NAME, key=f"name {run.id}")
        st.text_area("Notes", run.notes, max_chars=registry.MAX_NOTES, key=f"notes {run.id}")
        st.form_submit_button("Save", key="save", on_click=act, args=("Saved.", change), type="primary")


@st.dialog("Kill this run?")
def _confirm_kill(run: registry.Run) -> None:
    st.markdown(f"**{plain(run.name)}** ends at once. Progress since the last complete epoch is lost.")
    button_actions.confirm_or_keep("Kill", act, ("It was killed.", control.kill, run.id), "Keep it running")


def _size(path: str) -> int:
    """Return the size of a file [bytes], 0 if it was deleted in the meantime."""
    try:
        return os.lstat(path).st_size
    except OSError:
        return 0


@st.dialog("Delete this run?")
def _confirm_delete(run: registry.Run) -> None:
    sizes = [_size(os.path.join(folder, name)) for folder, _, names in os.walk(run.folder) for name in names]
    checkpoints = sorted(next(os.walk(run.folder / "checkpoints"), ("", [], []))[1])
    parts = [f"{sum(sizes) / 1e6:,.1f} MB in {len(sizes)} files", "its curves and log", "the attention of its epochs"]
    if checkpoints:
        parts.append("its checkpoints: " + ", ".join(checkpoints))
    st.markdown(f"**{plain(run.name)}** is deleted for good:\n" + "".join(f"\n- {plain(text)}" for text in parts))

    def delete() -> None:
        act(f"{run.name} was deleted.", control.delete, run.id)
        address.change(RunsLink, runs=())

    st.caption("Checkpoints that were saved under their own name are not deleted.")
    button_actions.confirm_or_keep("Delete", delete)
