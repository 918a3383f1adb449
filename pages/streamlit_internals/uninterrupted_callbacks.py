"""Replaces `ScriptRunner._maybe_handle_execution_control_request`, which stops callbacks halfway.

Whenever a run reads session state or sends an element, Streamlit stops it if the browser has sent a message. Inside a
callback this loses part of the visitor's change, because the callback does not run again.

docs/upstream.md has the patch for Streamlit, which is not sent yet.
"""

from streamlit.runtime.scriptrunner.script_runner import ScriptRunner
from streamlit.runtime.scriptrunner_utils.script_run_context import RunLocation, ThreadState

_end_if_requested = ScriptRunner._maybe_handle_execution_control_request  # Streamlit's own


def _end_outside_callbacks(self: ScriptRunner) -> None:
    if not (self._is_in_script_thread() and ThreadState.get().run_location is RunLocation.CALLBACK):
        _end_if_requested(self)


def patch() -> None:
    """Run every callback of this server to completion; the script run stops right after it."""
    ScriptRunner._maybe_handle_execution_control_request = _end_outside_callbacks  # type: ignore[method-assign]
