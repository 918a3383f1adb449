"""Streamlit components that mount the project's own JavaScript on a page."""

from vit.lazy import names_of

__all__, __getattr__ = names_of(__name__, __path__)
