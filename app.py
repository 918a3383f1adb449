"""The ViT attention explorer: `streamlit run app.py`."""

import sys

import streamlit as st

from pages.links import navigation
from pages.server import first_html, guard, watchdog
from pages.shared import zip_downloads
from pages.streamlit_internals import download_errors, message_queue, stale_pages, uninterrupted_callbacks
from pages.training import models
from vit.images.files.decode import silence_libraries

# Interval at which a thread releases the GIL [s]. Each of the hundred matrix products of a pass may wait that long for
# the GIL while pages of many visitors are drawn.
SWITCH = 0.0005

models.register()

if __name__ == "__main__":  # Streamlit runs the script for a visitor
    st.set_page_config(page_title=first_html.TITLE, page_icon="🔬", layout="wide", initial_sidebar_state="collapsed")
    page = navigation.choose()
    watchdog.mount()
    page.run()
else:  # `streamlit run` imports this module and serves `app`
    silence_libraries()
    sys.setswitchinterval(SWITCH)
    message_queue.patch()
    stale_pages.patch()
    uninterrupted_callbacks.patch()
    download_errors.patch()
    app = st.App(
        __file__,
        routes=[*zip_downloads.routes(), *first_html.routes()],
        middleware=guard.MIDDLEWARE,
        lifespan=guard.lifespan,
    )
