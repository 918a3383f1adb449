"""What a visitor may train: the access check of pages Train and Runs, and the limits of runs."""

import streamlit as st

from pages.links import navigation
from pages.server import access, public
from pages.shared.escape import plain
from vit.training.runs.launch_checks import Limits


def require_trainer() -> None:
    """Stop the page with the reason and a sign-in button, unless the visitor may train."""
    reason = access.training_denied_reason()
    if not reason:
        return
    navigation.start_page("train", remember=False)
    st.title("Training is closed here", anchor=False)
    st.markdown(plain(reason))
    if access.has_login() and not public.is_public():
        if st.user.get("is_logged_in"):
            st.button("Sign out", on_click=st.logout)
        else:
            st.button("Sign in", on_click=st.login, type="primary")
    open_pages = "Explore, Compare and Checkpoints" if public.is_public() else "Explore and Runs"
    st.caption(f"The pages {open_pages} are open to everybody.")
    st.stop()


def limits() -> Limits:
    """Return the configured limits for the visitor's runs."""
    return Limits(access.runs_per_person(), access.free_bytes())
