"""Replaces `ScriptRunner._maybe_handle_execution_control_request`, which stops callbacks halfway.

Whenever a run reads the session's state or sends an element, Streamlit stops it if the browser has sent a message.
Inside a callback that loses the visitor's change: the callback never runs again, so half of the change is missing.
"""

from streamlit.runtime.scriptrunner.script_runner import ScriptRunner
from streamlit.runtime.scriptrunner_utils.script_run_context import RunLocation, ThreadState

_end_if_requested = ScriptRunner._maybe_handle_execution_control_request  # Streamlit's own


def _end_outside_callbacks(self: ScriptRunner) -> None:
    if not (self._is_in_script_thread() and ThreadState.get().run_location is RunLocation.CALLBACK):
        _end_if_requested(self)


def patch() -> None:
    """Let every callback of this server run to its end; the run ends right after it."""
    ScriptRunner._maybe_handle_execution_control_request = _end_outside_callbacks  # type: ignore[method-assign]
