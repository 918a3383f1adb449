"""Dialog that pushes a checkpoint to the Hugging Face Hub: preview, progress bar, link to the commit."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import streamlit as st

from pages.links import session
from pages.server import access
from pages.shared.escape import plain, with_code
from vit.checkpoints.hub import download, push
from vit.errors import UserError

if TYPE_CHECKING:
    from vit.checkpoints.hub.push import Plan


def button(folder: Path, name: str) -> None:
    """Draw a button that opens the dialog, if the visitor may train and a Hub token is configured.

    Args:
        folder: folder of a checkpoint that this app saved.
        name: suggested name of the repository, without the owner.
    """
    if not access.may_train() or not download.has_token():
        return
    if st.button("Push to the Hub", key="push"):
        _close()
        session.of(session.Push).folder = folder
    if session.of(session.Push).folder == folder:  # keep the dialog open across reruns
        _show(folder, name)


def _close() -> None:
    st.session_state.pop(session.Push.__name__, None)


@st.dialog("Push to the Hugging Face Hub", on_dismiss=_close)
def _show(folder: Path, name: str) -> None:
    state, form, result = session.of(session.Push), st.empty(), st.container()
    if not access.may_train():
        return
    if state.pushed is None:
        with form.container():
            _ask(folder, name)
            if state.problem:
                st.error(with_code(state.problem))
            elif state.plan is not None:
                _confirm(state.plan)
    if state.pushed is not None:
        form.empty()
        with result:
            st.markdown(f"**{plain(state.pushed.name.repository)}** contains the checkpoint.")
            st.link_button("Open the commit", state.pushed.url, icon=":material/open_in_new:")
            st.code(f"vit classify PICTURE --checkpoint {state.pushed.name}", language="bash", wrap_lines=True)


def _ask(folder: Path, name: str) -> None:
    """Draw the form for the repository; submitting it computes the plan and changes nothing."""
    state = session.of(session.Push)
    with st.form("push to", border=False):
        repository = st.text_input("Repository", max_chars=96, placeholder=f"owner/{name}", key="push repository")
        license = st.text_input(
            "Licence",
            max_chars=40,
            placeholder="none stated, or the card's",
            key="push licence",
            help="As the Hub writes it, such as apache-2.0, mit or cc-by-4.0.",
        )
        private = st.toggle(
            "Private", True, key="push private", help="For a new repository: only people with access to it can see it."
        )
        submitted = st.form_submit_button("Show what would be uploaded")
    if submitted:
        state.plan, state.problem = None, ""
        try:
            with st.spinner("Asking the Hub…"):
                state.plan = push.plan_push(folder, repository.strip(), private=private, license=license.strip())
        except UserError as error:
            state.problem = str(error)


def _confirm(plan: Plan) -> None:
    """Show the plan, and the button that executes it."""
    state = session.of(session.Push)
    kind = "private" if plan.private else "public"
    where = f"**{plain(plan.repository)}**, {'a' if plan.parent else 'a new'} {kind} repository"
    rows = "".join(
        f"\n- {plain(file)}, {_size(size)}{', replaced' if file in plan.replaced else ''}"
        for file, size in plan.sizes.items()
    )
    st.markdown(f"{where}:\n{rows}")
    st.caption("Nothing else is uploaded. Everybody can see it." if not plan.private else "Nothing else is uploaded.")
    if not st.button("Push", key="really push", type="primary"):
        return
    bar = st.progress(0.0, "Uploading…")

    def progress(done: int, total: int | None) -> None:
        bar.progress(done / total if total else 0.0, f"{done / 1e6:,.1f} of {(total or 0) / 1e6:,.1f} MB")

    try:
        state.pushed = push.push(plan, progress=progress)
    except UserError as error:
        bar.empty()
        state.plan = None  # the repository may have changed, so the plan must be computed again
        st.error(with_code(str(error)))


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e5 else f"{size / 1e3:,.1f} kB"
