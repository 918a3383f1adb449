"""Browser notification when a run ends, as long as the page is open."""

from pathlib import Path
from typing import Any

import streamlit as st

from pages.links import session
from pages.shared.escape import plain
from pages.training import run_records
from pages.training.state import Runs
from vit.confidence import figure
from vit.training.loop.metrics import pictures_of
from vit.training.runs.registry import Run

_HERE = Path(__file__).parent
_HTML = """<button type="button" aria-pressed="false"
  title="This browser notifies you when a run ends, as long as this page is open in a tab.">
  <span class="off">Notify me</span><span class="on">✓ Notifying</span></button>"""
_notice = st.components.v2.component(
    "vit_finish_notice",
    html=_HTML,
    css=(_HERE / "finish_notice.css").read_text(encoding="utf-8"),
    js=(_HERE / "finish_notice.js").read_text(encoding="utf-8"),
)


def show(every: list[Run]) -> None:
    """Draw the button, send it the state of all runs, and show a toast for each run that has ended."""
    notices: list[dict[str, Any]] = []
    state = session.of(Runs)
    for run in every:
        # A search ends many trials early, so these are not announced.
        ended_here = run.id in state.alive and not run.alive and run.status != "pruned"
        if run.alive or ended_here:
            best, pictures = run_records.best_accuracy(run), pictures_of(run_records.figures(run).records, "validation")
            accuracy = "" if best is None else figure(best, pictures, "validation pictures")
            notices.append(
                {"id": run.id, "name": run.name, "status": run_records.STATUS[run.status], "accuracy": accuracy}
            )
        if ended_here and run.id not in state.announced:
            state.announced.add(run.id)
            st.toast(f"{plain(run.name)}: {run_records.STATUS[run.status].lower()}")
        if run.alive:
            state.alive.add(run.id)
            state.announced.discard(run.id)
    alive = [run for run in every if run.alive and run.status != "waiting"]
    title = f"{run_records.share_done(alive[0]):.0%} · {alive[0].name}" if alive else ""
    _notice(key="finish notice", data={"runs": notices, "title": title}, width="content")
