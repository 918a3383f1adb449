"""The ViT attention explorer: `streamlit run app.py`."""

import streamlit as st

from pages.parts import downloads, first_view, guard, navigation, shell, watchdog

if __name__ == "__main__":  # a visitor's run of the pages
    st.set_page_config(page_title=shell.TITLE, page_icon="🔬", layout="wide")
    page = navigation.choose()
    watchdog.mount()
    page.run()
else:  # `streamlit run`, which finds this object and serves it
    first_view.prepare()  # and what it needs is imported before the port opens
    app = st.App(
        __file__, routes=[*downloads.routes(), *shell.routes()], middleware=guard.MIDDLEWARE, lifespan=guard.lifespan
    )
