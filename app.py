"""The ViT attention explorer: `streamlit run app.py`."""

import streamlit as st

from pages.parts import navigation, watchdog

st.set_page_config(page_title="ViT attention explorer", page_icon="🔬", layout="wide")
page = navigation.choose()
watchdog.mount()
page.run()
