"""Replaces `DeferredFileHandler.handle`, which hides why the file of a download button could not be created.

docs/upstream.md has the patch for Streamlit, which is not sent yet.
"""

import asyncio
import logging

from streamlit.proto.BackMsg_pb2 import BackendOperationRequest
from streamlit.proto.ForwardMsg_pb2 import BackendOperationResponse
from streamlit.runtime.backend_operation_handler import DeferredFileHandler

from vit.errors import UserError

_log = logging.getLogger(__name__)


async def _handle(
    self: DeferredFileHandler, request: BackendOperationRequest, session_id: str
) -> BackendOperationResponse:
    """Create the file of an `st.download_button`, and report a `UserError` beside the button."""
    answer = BackendOperationResponse(request_id=request.request_id)
    try:
        make = self._get_media_file_mgr().execute_deferred
        answer.deferred_file.url = await asyncio.to_thread(make, request.deferred_file.file_id)
    except Exception as error:  # Streamlit wraps the original exception
        answer.error_msg = "The file could not be made. The log says why."
        if isinstance(error.__cause__, UserError):
            answer.error_msg = str(error.__cause__)
        else:
            _log.exception("A file could not be made.")
    return answer


def patch() -> None:
    """Patch Streamlit for all sessions of this server."""
    DeferredFileHandler.handle = _handle  # type: ignore[method-assign]
