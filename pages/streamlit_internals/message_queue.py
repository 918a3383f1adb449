"""Replaces the queue of messages to a browser (`app_session.ForwardMsgQueue`), which drops too many messages.

When a fragment starts to run, Streamlit drops queued messages of the same fragment, because it will draw them again.
After a run of the whole page that is wrong: the browser learns that the run is complete and removes every element that
it did not receive. A chart or the viewer disappears until the fragment has drawn it again, as a different element.

docs/upstream.md has the patch for Streamlit, which is not sent yet.
"""

from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime import app_session
from streamlit.runtime.forward_msg_queue import ForwardMsgQueue


class _Queue(ForwardMsgQueue):
    def clear(self, retain_lifecycle_msgs: bool = False, fragment_ids_this_run: list[str] | None = None) -> None:
        if fragment_ids_this_run is not None and any(map(_completes, self._queue)):
            self._delta_index_map = {}  # append new messages instead of replacing queued ones
        else:
            super().clear(retain_lifecycle_msgs, fragment_ids_this_run)


def _completes(message: ForwardMsg) -> bool:
    """Whether a message ends a run of the whole page."""
    return message.HasField("script_finished") and message.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY


def patch() -> None:
    """Use the replacement queue in all sessions that start later. Call this once per server."""
    app_session.ForwardMsgQueue = _Queue  # type: ignore[misc]
