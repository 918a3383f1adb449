"""Progress of the server's jobs on a page."""

from collections.abc import Hashable

import streamlit as st

from pages.server import background

WAIT: float | None = 0.5  # time in which short jobs end without a bar; None for no limit [s]
PAUSE = 0.5  # interval between two updates of the bar [s]


def ended(key: Hashable, label: str) -> background.Job | None:
    """Return a job that has ended, and forget it; draw the progress of one that has not, and return None.

    Args:
        label: text beside the percentage.
    """
    job = background.find(key)
    if not job:
        return None
    if not job.wait(WAIT):
        show(job, label)
        return None
    background.forget(key)
    return job


@st.fragment(run_every=PAUSE)
def show(job: background.Job, label: str) -> None:
    """Draw the progress of a job with a button that stops it, and rerun the page at its end."""
    if job.done:
        st.rerun()
    with st.container(horizontal=True, vertical_alignment="center"):
        st.progress(job.share, f"{label}: {job.share:.0%}")
        st.button("Stop", key=f"stop {label}", on_click=job.stop)
