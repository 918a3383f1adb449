"""What a page asks for although it was left, refused where Streamlit would carry it out.

A fragment asks in the name of the page that the browser shows, which is the old one until the server has begun with the
next. Streamlit would lead back to the old page then, whose fragment is gone: nothing is left to be seen.
"""

from streamlit.proto.ClientState_pb2 import ClientState
from streamlit.runtime.app_session import AppSession

_request_rerun = AppSession.request_rerun  # Streamlit's own


def _of_the_page_that_is_open(self: AppSession, client_state: ClientState | None) -> None:
    unknown = "", self._pages_manager.main_script_hash  # as which a session begins, whatever its page
    page, state = client_state.page_script_hash if client_state else "", self._client_state
    if page not in unknown:
        if client_state and client_state.fragment_id:
            if state.page_script_hash not in unknown and state.page_script_hash != page:
                return
        else:
            state.page_script_hash = page  # from now on, and not when it begins to run
    _request_rerun(self, client_state)


def mend() -> None:
    """Refuse what pages ask for that were left, in every session of this server."""
    AppSession.request_rerun = _of_the_page_that_is_open  # type: ignore[method-assign]
