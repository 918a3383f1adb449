"""Download of checkpoints by name, and the list of recommended ones."""

from collections.abc import Callable

import streamlit as st

from pages.links import address, navigation, session
from pages.links.page_links import CheckpointsLink, ExploreLink
from pages.looking import checkpoint_list
from pages.server import access, background, public
from pages.shared import button_actions, job_progress
from pages.shared.escape import plain, with_code
from vit.checkpoints.hub import models as hub
from vit.checkpoints.hub.recommended import RECOMMENDED
from vit.errors import UserError

COLUMNS = 3


def start(name: str) -> None:
    """Start the download of a checkpoint in a job, which goes on when the visitor clicks elsewhere or leaves the page.

    Args:
        name: untrusted name on the Hugging Face Hub or in torchvision.
    """
    key, keep_free = ("checkpoint", name), max(access.free_bytes(), hub.KEEP_FREE)

    def work(tick: Callable[[float], None]) -> str:
        return str(hub.fetch(name, lambda done, total: tick(done / total if total else 0.0), keep_free).name)

    if (job := background.find(key)) and job.done:  # nobody has looked at its end
        background.forget(key)
    background.start(key, work)


def show(name: str) -> None:
    """Draw the progress of a download; at its end select the checkpoint on page Checkpoints, or show why it failed."""
    if not (job := job_progress.ended(("checkpoint", name), f"Downloading {plain(name)}")):
        return
    state = session.of(session.Checkpoints)
    if state.fetching == name:
        state.fetching = ""
    try:
        fetched = job.result()
    except background.Stopped:
        return
    except UserError as error:
        st.error(with_code(str(error)))
        return
    button_actions.report_success(f"{fetched} was downloaded.")
    state.selections += 1
    address.show(CheckpointsLink(name=fetched))
    st.rerun()


def show_recommended() -> None:
    """Show all recommended checkpoints as cards, each with a button that downloads or opens it."""
    available = {info.name for info in checkpoint_list.list_checkpoints().every}
    for first in range(0, len(RECOMMENDED), COLUMNS):
        columns = st.columns(COLUMNS, gap="medium")
        for column, one in zip(columns, RECOMMENDED[first : first + COLUMNS], strict=False):
            with column.container(border=True, height="stretch"):
                st.markdown(f"**{plain(one.title)}**  \n{plain(one.good_for)}")
                st.caption(f"{one.megabytes:,} MB · {plain(one.licence)}", help=plain(one.name))
                if one.name in available:
                    navigation.link("Open in Explore", "explore", ExploreLink(checkpoint=one.name).to_query())
                elif not access.may_train():
                    st.caption("Not on this server." if public.is_public() else "Not fetched yet.")
                elif st.button("Get it", key=f"recommended {one.repository}", help=_GATED if one.gated else None):
                    start(one.name)
                if access.may_train() and one.name != session.of(session.Checkpoints).fetching:  # else the form does
                    show(one.name)


_GATED = (
    "Its licence has to be accepted on the Hugging Face Hub first; the server then needs a token of that account "
    "(HF_TOKEN)."
)
