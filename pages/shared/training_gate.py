"""Ends a page that is for people who may train with the reason, for everybody else."""

import streamlit as st

from pages.links import navigation
from pages.server import access, public
from pages.shared.escape import plain


def require_trainer() -> None:
    """End the page with the reason, and a way to sign in where there is one, unless the visitor may train."""
    reason = access.closed_because()
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
    looking = "Explore, Compare and Checkpoints" if public.is_public() else "Explore and Runs"
    st.caption(f"Looking stays open: the pages {looking}.")
    st.stop()
