"""Streamlit's server: its options, its URL, and the files that it serves."""

from pathlib import Path

import streamlit as st
from streamlit import cli_util, config, runtime
from streamlit.file_util import get_static_dir
from streamlit.web.server import server_util
from streamlit.web.server.starlette.starlette_app_utils import validate_xsrf_token
from streamlit.web.server.starlette.starlette_server_config import XSRF_COOKIE_NAME as XSRF_COOKIE_NAME


def is_set(option: str) -> bool:
    """Whether an option was set explicitly; `st.get_option` also returns defaults."""
    return config.is_manually_set(option)


def secrets_were_read() -> bool:
    """Whether a secrets file exists and could be read; in both other cases `st.secrets` is empty."""
    return st.secrets.load_if_toml_exists()


def open_browser() -> None:
    """Open the app in a browser, as `streamlit run` does for a script but not for an `st.App`."""
    named = next((name for name in ("browser.serverAddress", "server.address") if is_set(name)), None)
    address = server_util.get_display_address(st.get_option(named)) if named else "localhost"
    cli_util.open_browser(server_util.get_url(address))


def is_forged(token: str | None, cookie: str | None) -> bool:
    """Whether a request lacks the XSRF token that Streamlit's own upload handler requires."""
    return server_util.is_xsrf_enabled() and not validate_xsrf_token(token, cookie)


def static_folder() -> Path:
    """Return the folder of Streamlit's frontend, which contains `index.html`."""
    return Path(get_static_dir())


def add_media(content: bytes, coordinates: str, name: str) -> str:
    """Serve bytes while this session's page refers to them, and return their URL.

    Args:
        coordinates: position on the page; replaces the previous file at this position.
        name: file name; if given, Streamlit does not hash the content.
    """
    return runtime.get_instance().media_file_mgr.add(content, "application/octet-stream", coordinates, name)


def drop_unused_media() -> None:
    """Delete files that no page refers to. Streamlit itself does this only when a page runs."""
    runtime.get_instance().media_file_mgr.remove_orphaned_files()
