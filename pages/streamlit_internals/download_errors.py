"""Replaces `DeferredFileHandler.handle`, which does not say beside a download button why its file could not be made."""

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
    """Make the file that a button of `st.download_button` is for."""
    answer = BackendOperationResponse(request_id=request.request_id)
    try:
        make = self._get_media_file_mgr().execute_deferred
        answer.deferred_file.url = await asyncio.to_thread(make, request.deferred_file.file_id)
    except Exception as error:  # Streamlit's own, which has the reason as its cause
        answer.error_msg = "The file could not be made. The log says why."
        if isinstance(error.__cause__, UserError):
            answer.error_msg = str(error.__cause__)
        else:
            _log.exception("A file could not be made.")
    return answer


def patch() -> None:
    """Say the reason in every session of this server."""
    DeferredFileHandler.handle = _handle  # type: ignore[method-assign]
