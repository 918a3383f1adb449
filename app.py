"""The ViT attention explorer: `streamlit run app.py`."""

import sys

import streamlit as st

from pages.shared import (
    download_errors,
    first_words,
    guard,
    left_pages,
    message_queue,
    navigation,
    watchdog,
    whole_callbacks,
    zip_downloads,
)
from vit.images.decode import silence_libraries

# [s] after which a thread that computes lets others go on: each of the hundred products of a pass waits that long where
# many visitors' pages are drawn meanwhile.
SWITCH = 0.0005

if __name__ == "__main__":  # a visitor's run of the pages
    st.set_page_config(page_title=first_words.TITLE, page_icon="🔬", layout="wide", initial_sidebar_state="collapsed")
    page = navigation.choose()
    watchdog.mount()
    page.run()
else:  # `streamlit run`, which finds this object and serves it
    silence_libraries()
    sys.setswitchinterval(SWITCH)
    message_queue.mend()
    left_pages.mend()
    whole_callbacks.mend()
    download_errors.mend()
    app = st.App(
        __file__,
        routes=[*zip_downloads.routes(), *first_words.routes()],
        middleware=guard.MIDDLEWARE,
        lifespan=guard.lifespan,
    )
