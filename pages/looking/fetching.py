"""Download of checkpoints by name, and the list of recommended ones."""

from __future__ import annotations

from typing import TYPE_CHECKING

import streamlit as st

from pages.links import address, navigation
from pages.links.page_links import CheckpointsLink, ExploreLink
from pages.looking import loading
from pages.server import access, public
from pages.shared import button_actions
from pages.shared.escape import plain, with_code
from vit.checkpoints import hub
from vit.checkpoints.recommended import RECOMMENDED, Recommended
from vit.errors import UserError

if TYPE_CHECKING:
    from pages.streamlit_internals.types import DeltaGenerator

COLUMNS = 3


def fetch(name: str) -> None:
    """Download a checkpoint with a progress bar and select it on page Checkpoints; show an error if this fails.

    Args:
        name: untrusted name on the Hugging Face Hub or in torchvision.
    """
    bar = st.progress(0.0, f"Requesting {plain(name)}…")

    def progress(done: int, total: int | None) -> None:
        size = f" of {total / 1e6:,.0f}" if total else ""
        bar.progress(min(done / total, 1.0) if total else 0.0, f"{done / 1e6:,.0f}{size} MB of {plain(name)}")

    try:
        fetched = hub.fetch(name, progress, max(access.limits().free_bytes, hub.KEEP_FREE))
    except UserError as error:
        bar.empty()
        st.error(with_code(str(error)))
        return
    button_actions.report_success(f"{fetched.name} was downloaded.")
    address.show(CheckpointsLink(name=str(fetched.name)))
    st.rerun()


def show_recommended() -> None:
    """Show all recommended checkpoints as cards, each with a button that downloads or opens it."""
    available = {info.name for info in loading.list_checkpoints().every}
    clicked: tuple[Recommended, DeltaGenerator] | None = None
    for first in range(0, len(RECOMMENDED), COLUMNS):
        columns = st.columns(COLUMNS, gap="medium")
        for column, one in zip(columns, RECOMMENDED[first : first + COLUMNS], strict=False):
            card = column.container(border=True, height="stretch")
            with card:
                st.markdown(f"**{plain(one.title)}**  \n{plain(one.good_for)}")
                st.caption(f"{one.megabytes:,} MB · {plain(one.licence)}", help=plain(one.name))
                if one.name in available:
                    navigation.link("Open in Explore", "explore", ExploreLink(checkpoint=one.name).to_query())
                elif not access.may_train():
                    st.caption("Not on this server." if public.is_public() else "Not fetched yet.")
                elif st.button("Get it", key=f"recommended {one.repository}", help=_GATED if one.gated else None):
                    clicked = one, card
    if clicked:  # download after all cards are drawn
        with clicked[1]:
            fetch(clicked[0].name)


_GATED = (
    "Its licence has to be accepted on the Hugging Face Hub first; the server then needs a token of that account "
    "(HF_TOKEN)."
)
