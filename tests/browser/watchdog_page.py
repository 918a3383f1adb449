"""A page that shows its link, with the watchdog; run by Streamlit."""

import streamlit as st

from pages.server import watchdog

watchdog.mount()
st.text(f"view {st.query_params.get('view', 'none')}")
if st.button("Go on"):
    st.query_params["view"] = "chosen"
    st.rerun()
