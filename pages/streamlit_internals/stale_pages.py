"""Replaces `AppSession.request_rerun`, which reruns fragments of a page that the visitor has left.

A fragment's request carries the page that the browser shows, which is the old one until the server starts the next.
Streamlit would then go back to the old page, whose fragment no longer exists, and the visitor would see an empty page.

docs/upstream.md has the patch for Streamlit, which is not sent yet.
"""

from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.runtime.app_session import AppSession

_request_rerun = AppSession.request_rerun  # Streamlit's own


def _rerun_if_current_page(self: AppSession, client_state: ClientState | None) -> None:
    unknown = "", self._pages_manager.main_script_hash  # initial values of a session, whatever its page
    page, state = client_state.page_script_hash if client_state else "", self._client_state
    if page not in unknown:
        if client_state and client_state.fragment_id:
            if state.page_script_hash not in unknown and state.page_script_hash != page:
                return
        else:
            state.page_script_hash = page  # set it now; Streamlit would set it when the page starts to run
    _request_rerun(self, client_state)


def patch() -> None:
    """Ignore requests from fragments of other pages in every session of this server."""
    AppSession.request_rerun = _rerun_if_current_page  # type: ignore[method-assign]
