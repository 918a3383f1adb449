"""A bell: the browser tells when a run ends, as long as the page is open."""

from pathlib import Path
from typing import Any

import streamlit as st

from pages.parts import watch
from vit.runs import Run
from vit.text import plain

_HERE = Path(__file__).parent
_HTML = """<button type="button" aria-pressed="false"
  title="This browser notifies you when a run ends, as long as this page is open in a tab.">
  <span class="off">Notify me</span><span class="on">✓ Notifying</span></button>"""
_bell = st.components.v2.component(
    "vit_bell",
    html=_HTML,
    css=(_HERE / "bell.css").read_text(encoding="utf-8"),
    js=(_HERE / "bell.js").read_text(encoding="utf-8"),
)


def hang(every: list[Run]) -> None:
    """Draw the bell and tell it how all runs are; those that end ring it, and a toast in the page says so."""
    told: list[dict[str, Any]] = []
    before = st.session_state.setdefault("runs (alive)", set())
    for run in every:
        ended_here = run.id in before and not run.alive
        if run.alive or ended_here:
            best = watch.best_accuracy(run)
            accuracy = "" if best is None else f"{best:.1%}"
            told.append({"id": run.id, "name": run.name, "status": watch.STATUS[run.status], "accuracy": accuracy})
        if ended_here and run.id not in st.session_state.setdefault("runs (told)", set()):
            st.session_state["runs (told)"].add(run.id)
            st.toast(f"{plain(run.name)}: {watch.STATUS[run.status].lower()}")
        if run.alive:
            before.add(run.id)
            st.session_state.setdefault("runs (told)", set()).discard(run.id)
    alive = [run for run in every if run.alive and run.status != "waiting"]
    title = f"{watch.share_done(alive[0]):.0%} · {alive[0].name}" if alive else ""
    _bell(key="bell", data={"runs": told, "title": title}, width="content")
