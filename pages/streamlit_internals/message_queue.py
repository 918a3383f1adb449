"""What waits to be sent to a browser, mended where Streamlit throws away too much.

Where a fragment begins to run, Streamlit drops what still waits of the same fragment, as it is about to be drawn anew.
After a run of the whole page that is wrong: the browser, which is told that the run is complete, takes away what did
not come, and a chart or the viewer is gone until the fragment has drawn it again, as another one.
"""

from streamlit.proto.ForwardMsg_pb2 import ForwardMsg
from streamlit.runtime import app_session
from streamlit.runtime.forward_msg_queue import ForwardMsgQueue


class _Queue(ForwardMsgQueue):
    def clear(self, retain_lifecycle_msgs: bool = False, fragment_ids_this_run: list[str] | None = None) -> None:
        if fragment_ids_this_run is not None and any(map(_completes, self._queue)):
            self._delta_index_map = {}  # what comes is added, and not put in the place of what waits
        else:
            super().clear(retain_lifecycle_msgs, fragment_ids_this_run)


def _completes(message: ForwardMsg) -> bool:
    """Whether this ends a run of the whole page."""
    return message.HasField("script_finished") and message.script_finished == ForwardMsg.FINISHED_SUCCESSFULLY


def mend() -> None:
    """Let every session that begins from now on keep what belongs to a complete run; once per server."""
    app_session.ForwardMsgQueue = _Queue  # type: ignore[misc]
