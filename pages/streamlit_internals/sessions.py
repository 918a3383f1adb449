"""The current session, and all sessions of the server."""

from streamlit import runtime
from streamlit.runtime.app_session import AppSession
from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.runtime.scriptrunner_utils.script_requests import ScriptRequestType
from streamlit.runtime.scriptrunner_utils.script_run_context import ThreadState
from streamlit.runtime.state.session_state import WStates


def current_id() -> str:
    """Return the id of the current session, "" outside of one. Streamlit has no public API for it."""
    context = get_script_run_ctx()
    return context.session_id if context else ""


def is_history_navigation() -> bool:
    """Whether the browser's Back or Forward caused this run of the page."""
    context = get_script_run_ctx()
    return context is not None and context.is_history_navigation


def runs_again() -> bool:
    """Whether the visitor used a control of this fragment or of one around it, which waits for the end of this run."""
    context, here = get_script_run_ctx(), ThreadState.get().fragment_id or ""
    if not context or not context.script_requests or context.script_requests._state != ScriptRequestType.RERUN:
        return False
    queue = context.script_requests._rerun_data.fragment_id_queue
    return here in queue or context.fragment_storage.has_ancestor_in(here, queue)


def server_runs() -> bool:
    """Whether this process runs a server."""
    return runtime.exists()


def every_session() -> dict[str, AppSession]:
    """Return all sessions by id, including disconnected ones that may be resumed."""
    return {info.session.id: info.session for info in runtime.get_instance()._session_mgr.list_sessions()}


def is_active(session_id: str) -> bool:
    """Whether a session's browser is connected."""
    return runtime.get_instance().is_active_session(session_id)


def close(session: AppSession) -> None:
    """Close a session and clear its state, because Streamlit's event loop keeps a reference to the last session."""
    runtime.get_instance().close_session(session.id)
    state = session.session_state
    state._new_widget_state = WStates()  # `clear` alone would deserialise its values, which are untrusted
    state.clear()
    session._fragment_storage.clear()  # including the arguments of fragments: pictures, models
    session._fragment_storage.clear_outside_wrappers()
