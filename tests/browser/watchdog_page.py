"""A page with the watchdog that shows its link; run by Streamlit."""

import streamlit as st

from pages.server import watchdog

watchdog.mount()
st.text(f"view {st.query_params.get('view', 'none')}")
if st.button("Go on"):
    st.query_params["view"] = "chosen"
    st.rerun()
