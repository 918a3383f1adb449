"""Streamlit components: the Python that mounts the project's own JavaScript on a page."""
