"""The server itself: its options, its address, the files that it serves."""

from pathlib import Path

import streamlit as st
from streamlit import cli_util, config, runtime
from streamlit.file_util import get_static_dir
from streamlit.web.server import server_util
from streamlit.web.server.starlette.starlette_app_utils import validate_xsrf_token
from streamlit.web.server.starlette.starlette_server_config import XSRF_COOKIE_NAME as XSRF_COOKIE_NAME


def is_set(option: str) -> bool:
    """Whether somebody set an option; `st.get_option` gives defaults, too."""
    return config.is_manually_set(option)


def secrets_were_read() -> bool:
    """Whether there is a file of secrets that could be read; `st.secrets` is empty otherwise, for either reason."""
    return st.secrets.load_if_toml_exists()


def open_browser() -> None:
    """Open the app in a browser, as `streamlit run` does for a script but not for an `st.App`."""
    named = next((name for name in ("browser.serverAddress", "server.address") if is_set(name)), None)
    address = server_util.get_display_address(st.get_option(named)) if named else "localhost"
    cli_util.open_browser(server_util.get_url(address))


def is_forged(token: str | None, cookie: str | None) -> bool:
    """Whether a request lacks the XSRF token that Streamlit's own handler of uploads asks for."""
    return server_util.is_xsrf_enabled() and not validate_xsrf_token(token, cookie)


def static_folder() -> Path:
    """Where Streamlit's browser half lies, `index.html` among it."""
    return Path(get_static_dir())


def add_media(content: bytes, kind: str, coordinates: str, name: str) -> str:
    """Serve some bytes while this session's page shows them; returns their address.

    Args:
        kind: MIME type.
        coordinates: where on the page they are used; what was there before is dropped.
        name: of the file; with one, Streamlit does not hash the content.
    """
    return runtime.get_instance().media_file_mgr.add(content, kind, coordinates, name)


def drop_unused_media() -> None:
    """Forget files that no page shows any more; Streamlit itself does that only when a page runs."""
    runtime.get_instance().media_file_mgr.remove_orphaned_files()
