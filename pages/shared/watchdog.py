"""Looks after a visitor's tab.

A page that Streamlit's browser half has given up is loaded anew, and one whose server does not answer says so
(`watchdog.js`); what somebody does is one step of the browser's Back (`history.js`).
"""

from pathlib import Path

import streamlit as st

_HERE = Path(__file__).parent
_watchdog, _history = (
    st.components.v2.component(
        f"vit_{name}", js=(_HERE / f"{name}.js").read_text(encoding="utf-8"), html="<i hidden></i>"
    )
    for name in ("watchdog", "history")
)


def mount() -> None:
    """Watch over this tab; before all else of a page, so that it is there whatever happens below."""
    with st.container(key="watchdog", height=1, border=False):
        _watchdog(key="watchdog component", height=1)
        _history(key="history component", height=1)
