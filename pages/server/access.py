"""Access control for training: open on this machine; over a network, only for people who are signed in and listed.

    # .streamlit/secrets.toml
    [auth]                  # Streamlit's own login by OpenID Connect: docs.streamlit.io, st.login
    [trainers]
    emails = ["ada@example.com"]
    [limits]
    runs_per_person = 4     # waiting and running, a search counts as one; no limit by default
    free_gb = 2.0           # disk space that a run must leave free
    upload_mb = 100         # largest archive or checkpoint; at most server.maxUploadSize

A page that starts or changes anything calls `pages.training.gate.require_trainer()` first, because Streamlit can run
a file in `pages/` without `app.py`. Every run of a page evaluates these functions again, nothing is cached. On a public
server nobody may train; see `pages/server/public.py`.
"""

import os
from typing import Any

import streamlit as st
from streamlit.errors import StreamlitSecretNotFoundError

from pages.server import public
from pages.streamlit_internals import server
from vit.untrusted import brief, is_number

NETWORK_MEGABYTES = 100
FREE_BYTES = 2 << 30  # disk space left free by default
_MOST = 1e9  # of any configured limit
_LOOPBACK = {"localhost", "127.0.0.1", "::1", "[::1]"}
# All headers of the web socket that a directly connected browser opens; those that begin with sec- are its own, too
# (Fetch standard, section 2.2.2). Any other header proves that something stands between browser and app, whatever its
# name: proxies, CDNs and load balancers add hundreds, and each may add new ones, so a list of theirs is never complete.
# A header of the browser's own that is missing here only costs a person on this machine the right to train, visibly.
_OF_BROWSERS = {
    "accept",
    "accept-encoding",
    "accept-language",
    "cache-control",
    "connection",
    "cookie",
    "dnt",
    "host",
    "origin",
    "pragma",
    "priority",
    "save-data",
    "te",
    "upgrade",
    "user-agent",
}


def may_train() -> bool:
    """Whether the visitor may start and change runs and upload data."""
    return not training_denied_reason()


def training_denied_reason() -> str:
    """Return why the visitor may not train, as a sentence; "" if they may."""
    if public.is_public():
        return "This is a public demo without training. Install the app to train models."
    if wrong := [name for name, value in _section("limits").items() if not is_number(value, 0, _MOST)]:
        return f"Access is denied, because {brief(wrong[0])} under [limits] in the server's secrets is not a number."
    if is_local():
        return ""
    if _unreadable_secrets():
        return "Access is denied, because the server cannot read its secrets file. See the server's log."
    if not has_login():
        proxy = brief(_header_of_a_proxy())[:20]
        return (
            f"This app can be reached over a network{proxy and f' (a proxy sends {proxy})'}, and no login is set up, "
            "so starting runs and uploading are off. "
            "To allow them, open the app on the machine itself, or set up [auth] and [trainers] in its secrets."
        )
    if not st.user.get("is_logged_in"):
        return "Sign in to start, stop or change runs and to upload pictures."
    if not _email():
        return (
            "Your login came without an e-mail address, so it cannot be looked up in the list of people who may train."
        )
    if st.user.get("email_verified") is False:
        return f"Your login provider has not verified {_email()}. Verify the address there, then sign in again."
    emails = _section("trainers").get("emails")
    if not isinstance(emails, list) or _email() not in {str(email).strip().casefold() for email in emails}:
        return f"{_email()} is not on the list of people who may train here. Ask the administrator of this server."
    return ""


def visitor() -> str:
    """Return the e-mail address of a visitor who is signed in; "" on this machine."""
    return "" if is_local() else _email()


def is_local() -> bool:
    """Whether only this machine can reach the app.

    The server listens on loopback, accepts only loopback host names, rejects sockets from other origins, the browser
    sends all headers and a proxy none, and no login is set up.
    """
    names = st.get_option("server.allowedHosts")
    return (
        not public.is_public()
        and st.get_option("server.address") in _LOOPBACK
        and bool(names)
        and all(name in _LOOPBACK for name in names)
        and bool(st.get_option("server.enableCORS"))
        and bool(st.get_option("server.enableXsrfProtection"))
        and not st.get_option("server.corsAllowedOrigins")
        and not st.get_option("server.trustedUserHeaders")
        and not server.is_set("browser.serverAddress")
        and not _header_of_a_proxy()
        and not _unreadable_secrets()
        and not has_login()
    )


def _header_of_a_proxy() -> str:
    """Return the name of a header that a directly connected browser does not send; "" if there is none."""
    names = (name for name in st.context.headers if not name.lower().startswith("sec-"))
    return next((name for name in names if name.lower() not in _OF_BROWSERS), "")


def runs_per_person() -> int | None:
    """Return the maximum number of a visitor's active runs; None for no limit."""
    return None if (most := _limit("runs_per_person")) is None else int(most)


def free_bytes() -> int:
    """Return the disk space that runs, uploads and downloads must leave free."""
    return FREE_BYTES if (free := _limit("free_gb")) is None else int(free * 2**30)


def upload_megabytes() -> int:
    """Return the maximum size of an uploaded archive or checkpoint [MB]."""
    most, stated = int(st.get_option("server.maxUploadSize")), _limit("upload_mb")
    return min(most, int(stated) if stated is not None else most if is_local() else NETWORK_MEGABYTES)


def has_login() -> bool:
    """Whether a login is set up."""
    return "auth" in _secrets()


def _email() -> str:
    email = st.user.get("email")
    return email.strip().casefold() if isinstance(email, str) else ""


def _limit(name: str) -> float | None:
    stated = _section("limits").get(name)
    return stated if is_number(stated, 0, _MOST) else None


def _section(name: str) -> dict[str, Any]:
    section = _secrets().get(name)
    return section if isinstance(section, dict) else {}


def _secrets() -> dict[str, Any]:
    try:
        return st.secrets.to_dict()
    except StreamlitSecretNotFoundError:
        return {}


def _unreadable_secrets() -> bool:
    """Whether a secrets file exists that Streamlit cannot read. It may configure a login, so access is denied."""
    return not server.secrets_were_read() and any(map(os.path.lexists, st.get_option("secrets.files")))
