"""Sessions of the server: the one that runs, and all others."""

from streamlit import runtime
from streamlit.runtime.app_session import AppSession
from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.runtime.state.session_state import WStates


def current_id() -> str:
    """The id of the session that runs; "" outside of one. Streamlit has no public name for it."""
    context = get_script_run_ctx()
    return context.session_id if context else ""


def came_by_history() -> bool:
    """Whether the page runs because of the browser's Back or Forward."""
    context = get_script_run_ctx()
    return context is not None and context.is_history_navigation


def server_runs() -> bool:
    """Whether there is a server in this process yet."""
    return runtime.exists()


def every_session() -> dict[str, AppSession]:
    """Sessions by id, with those that have lost their page but may be resumed."""
    return {info.session.id: info.session for info in runtime.get_instance()._session_mgr.list_sessions()}


def is_active(session_id: str) -> bool:
    """Whether a session has a page that is connected."""
    return runtime.get_instance().is_active_session(session_id)


def close(session: AppSession) -> None:
    """Close a session and empty it, as Streamlit's event loop holds on to the one that it served last."""
    runtime.get_instance().close_session(session.id)
    state = session.session_state
    state._new_widget_state = WStates()  # `clear` alone would read its values, which a browser may send of any kind
    state.clear()
    session._fragment_storage.clear()  # with what they were called with: pictures, models
    session._fragment_storage.clear_outside_wrappers()
