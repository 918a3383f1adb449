"""The ViT attention explorer: `streamlit run app.py`."""

import streamlit as st

st.set_page_config(page_title="ViT attention explorer", page_icon="🔬", layout="wide")
st.navigation([st.Page("pages/explore.py", title="Explore", default=True)]).run()
