"""What a page asks of its `st.file_uploader`s: how much a visitor may upload, which files came, and their content."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, BinaryIO

import streamlit as st

from pages.links import session
from pages.server import access
from pages.server.uploads import FILES, LARGEST, MB, UPLOADS, OnDisk, strangers_file
from pages.streamlit_internals import files as uploaded_files
from pages.streamlit_internals import sessions
from pages.streamlit_internals.types import UploadedFile
from vit.images.file_checks import MAX_BYTES


def limit(most: int) -> int:
    """The largest file that the visitor may upload [MB], `most` for who may train; the server is told how much in all.

    Pages pass it to each `st.file_uploader`, and no `type`: Streamlit rejects a wrong suffix with a red mark and no
    message. So pages accept every suffix and check the content.
    """
    session_id = sessions.current_id()
    trusted = access.may_train()
    if session_id:
        most_of_all = max(access.upload_megabytes(), LARGEST)
        UPLOADS.allow(session_id, FILES * most_of_all * MB if trusted else 0)
    return most if trusted else min(most, strangers_file())


@dataclass
class _Taken:
    """Of a session: by uploader, Streamlit's names for the files that were taken in from it last."""

    files: dict[str, tuple[str, ...]] = field(default_factory=dict)


def files(key: str) -> list[UploadedFile]:
    """The files of an uploader that the server still has, for a callback; a page gets them from `st.file_uploader`.

    A browser that reconnects, or deletes one of several, names files that are gone.
    """
    return [file for file in _named(key) if isinstance(file, UploadedFile)]


def newly_uploaded(key: str) -> list[UploadedFile] | None:
    """The files of an uploader, for its `on_change`; None unless somebody changed them since the last call.

    Streamlit forgets what an uploader held as soon as the page does not draw it any more. The browser forgets it later,
    and names the same files in every message until then, which looks like an upload.
    """
    named, taken = tuple(file.file_id for file in _named(key)), session.of(_Taken).files
    here = files(key)
    if named == taken.get(key) or (named and not here):
        return None
    taken[key] = named
    return here


def _named(key: str) -> Sequence[Any]:
    """What the browser names of an uploader, for one file or for several."""
    value = st.session_state[key]
    return value if isinstance(value, list) else [value] if value else []


def discard(file_id: str) -> None:
    """Forget a file that nobody needs any more; it counts as the visitor's until then, and at most until they leave.

    Args:
        file_id: Streamlit's name for it.
    """
    uploaded_files.remove(file_id)


def content(file: Any) -> bytes:
    """The bytes of an uploaded picture, whatever it is called; of what is larger than any, enough to tell so."""
    return opened(file).read(MAX_BYTES + 1)


def opened(file: Any) -> BinaryIO:
    """The content of what `st.file_uploader` gave, from its start, wherever it lies."""
    data = uploaded_files.data_of(file.file_id)
    if isinstance(data, OnDisk):
        return data.open()
    file.seek(0)
    return file
