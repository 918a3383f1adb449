"""Helpers for `st.file_uploader`: size limits, newly uploaded files, and their content."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import streamlit as st

from pages.links import session
from pages.server import access
from pages.server.uploads import FILES, LARGEST, MB, UPLOADS, TemporaryUpload, untrusted_file_limit
from pages.streamlit_internals import files as uploaded_files
from pages.streamlit_internals import sessions
from pages.streamlit_internals.types import UploadedFile
from vit.images.files.file_checks import MAX_BYTES


def limit(most: int) -> int:
    """Return the visitor's maximum file size [MB], `most` with permission to train, and set the session's total limit.

    Pages pass it to each `st.file_uploader`, but no `type`: Streamlit rejects a wrong suffix with a red mark and no
    message. So pages accept every suffix and check the content.
    """
    session_id = sessions.current_id()
    trusted = access.may_train()
    if session_id:
        most_of_all = max(access.upload_megabytes(), LARGEST)
        UPLOADS.allow(session_id, FILES * most_of_all * MB if trusted else 0)
    return most if trusted else min(most, untrusted_file_limit())


@dataclass
class _Processed:
    """A session's last processed files: Streamlit's file ids by uploader."""

    files: dict[str, tuple[str, ...]] = field(default_factory=dict)


def files(key: str) -> list[UploadedFile]:
    """Return an uploader's files in a callback; outside of callbacks, use the result of `st.file_uploader`.

    After a reconnect or a deletion, the browser may send ids of files that the server has deleted; they are left out.
    """
    return [file for file in _sent(key) if isinstance(file, UploadedFile)]


def newly_uploaded(key: str) -> list[UploadedFile] | None:
    """Return an uploader's files in its `on_change`; None if they have not changed since the last call.

    Streamlit clears an uploader's state as soon as the page does not draw it. The browser clears it later and until
    then sends the same file ids in every message, which looks like an upload.
    """
    sent, processed = tuple(file.file_id for file in _sent(key)), session.of(_Processed).files
    available = files(key)
    if sent == processed.get(key) or (sent and not available):
        return None
    processed[key] = sent
    return available


def _sent(key: str) -> Sequence[Any]:
    """Return the files that the browser lists for an uploader of one or several files."""
    value = st.session_state[key]
    return value if isinstance(value, list) else [value] if value else []


def discard(file_id: str) -> None:
    """Delete a file that is no longer needed, so that it does not count towards the visitor's limit.

    Args:
        file_id: Streamlit's id of the file.
    """
    uploaded_files.remove(file_id)


def content(file: Any) -> bytes:
    """Read an uploaded picture; of a file that is too large, only enough bytes for the later size check to fail."""
    return opened(file).read(MAX_BYTES + 1)


def opened(file: Any) -> BinaryIO:
    """Open a file of `st.file_uploader` at its start, in memory or on disk."""
    data = uploaded_files.data_of(file.file_id)
    if isinstance(data, TemporaryUpload):
        return data.open()
    file.seek(0)
    return file
