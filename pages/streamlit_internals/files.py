"""Streamlit's store of uploaded files."""

from collections.abc import Mapping
from typing import Any

from streamlit import runtime
from streamlit.runtime.memory_uploaded_file_manager import MemoryUploadedFileManager
from streamlit.runtime.scriptrunner import get_script_run_ctx
from streamlit.runtime.uploaded_file_manager import UploadedFileRec


def stored() -> Mapping[str, Mapping[str, Any]]:
    """Return all files of the server by session id and file id; each has `data`."""
    return _manager().file_storage


def store(session_id: str, file_id: str, name: str, kind: str, data: bytes) -> None:
    """Store a file, as Streamlit's own upload handler does.

    Args:
        kind: MIME type.
    """
    _manager().add_file(session_id, UploadedFileRec(file_id=file_id, name=name, type=kind, data=data))


def data_of(file_id: str) -> bytes | None:
    """Return the stored `data` of a file of the current session without copying it; None if there is none."""
    context = get_script_run_ctx()
    records = context.uploaded_file_mgr.get_files(context.session_id, [file_id]) if context else []
    return records[0].data if records else None


def remove(file_id: str) -> None:
    """Delete a file of the current session, which Streamlit would store until the session ends."""
    context = get_script_run_ctx()
    if context and isinstance(context.uploaded_file_mgr, MemoryUploadedFileManager):
        context.uploaded_file_mgr.remove_file(context.session_id, file_id)


def _manager() -> MemoryUploadedFileManager:
    manager: Any = runtime.get_instance().uploaded_file_mgr
    return manager
