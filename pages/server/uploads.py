"""Upload limits: only files that a page requested are accepted, sizes are bounded, and large files are on disk.

Streamlit itself accepts any file under any name, and keeps it in memory until the session ends.
`pages/server/guard.py` checks each upload here first.
"""

import io
import os
import shutil
import tempfile
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from cachetools import LRUCache

from pages.server import public
from vit.data.file_names import PICTURES

VIDEOS = {".mp4", ".m4v", ".mov", ".webm", ".mkv"}
MB = 1 << 20
LARGEST = 100  # size of a picture or a video [MB]
UNTRUSTED_FILE = 25  # size of a file of a visitor who may not train [MB]
UNTRUSTED_SESSION = 60  # uploads of one such visitor [MB]
UNTRUSTED_TOTAL = 600  # uploads of all such visitors [MB]
MEMORY = 2000  # pictures and videos of all visitors [MB]
FILES = 4  # files of the largest allowed size, for a visitor who may train
FREE = 2000  # disk space that must stay free [MB]
PENDING_UPLOADS = 1000  # announced uploads of one session
SESSIONS = 10_000  # remembered sessions
ENVELOPE = 1 << 16  # overhead of the multipart encoding [bytes]


class UploadRejected(Exception):
    """An upload exceeds a limit; the message is shown to the visitor."""


class TemporaryUpload(bytes):
    """Content of an upload in an unnamed temporary file, which is deleted with the last reference to this object.

    It is an empty `bytes` object, which Streamlit can store.

    Attributes:
        file: the temporary file; read it with `open`, since several readers may be active.
        size: [bytes]
    """

    file: BinaryIO
    size: int

    def __new__(cls, file: BinaryIO, size: int) -> "TemporaryUpload":
        """Create an empty `bytes` object with attributes."""
        content = super().__new__(cls)
        content.file, content.size = file, size
        return content

    def open(self) -> BinaryIO:
        """Return a new reader at the start of the file."""
        return io.BufferedReader(_Reader(self))


class _Reader(io.RawIOBase):
    """A reader with its own position in a shared file."""

    def __init__(self, content: TemporaryUpload):
        self._content, self._position = content, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._content.size}[whence]
        self._position = start + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        chunk = os.pread(self._content.file.fileno(), len(buffer), self._position)
        buffer[: len(chunk)] = chunk
        self._position += len(chunk)
        return len(chunk)


class _Upload(NamedTuple):
    """A pending or stored upload."""

    session: str
    size: int
    picture: bool


Stored = Mapping[str, Mapping[str, Any]]  # Streamlit's files by session id and file id; each has `data`


class Uploads:
    """Announced uploads and their limits; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._expected: LRUCache[str, LRUCache[str, str]] = LRUCache(SESSIONS)
        self._allowed: LRUCache[str, int] = LRUCache(SESSIONS)
        self._pending: dict[object, _Upload] = {}

    def allow(self, session: str, size: int) -> None:
        """Set the limit of a session's total and of each of its files [bytes]; 0 for the limits of strangers."""
        with self._lock:
            self._allowed[session] = size

    def expect(self, session: str, file: str, name: str) -> None:
        """Register a file that a page has requested."""
        with self._lock:
            self._expected.setdefault(session, LRUCache(PENDING_UPLOADS))[file] = name

    def name(self, session: str, file: str) -> str | None:
        """Return the name of a requested file; None if no page has requested it."""
        with self._lock:
            expected = self._expected.get(session)
            return None if expected is None else expected.get(file)

    def arrived(self, session: str, file: str) -> None:
        """Unregister a file, so that it cannot be uploaded twice."""
        with self._lock:
            if (expected := self._expected.get(session)) is not None:
                expected.pop(file, None)

    @contextmanager
    def room(self, session: str, name: str, size: int, stored: Stored) -> Iterator[None]:
        """Reserve space for a file of `size` bytes while it is received.

        Raises:
            UploadRejected: a limit is exceeded.
        """
        ticket, pending = object(), _Upload(session, size, is_picture(name))
        with self._lock:
            self._check(pending, stored)
            self._pending[ticket] = pending
        try:
            yield
        finally:
            with self._lock:
                del self._pending[ticket]

    def _check(self, new: _Upload, stored: Stored) -> None:
        allowed = self._allowed.get(new.session, 0)
        every = [new, *self._pending.values()]
        for owner, files in list(stored.items()):
            every += [_Upload(owner, *_weight(file.data)) for file in list(files.values())]
        largest = allowed or untrusted_file_limit() * MB
        if new.picture:
            largest = min(largest, LARGEST * MB)
        if new.size > largest + ENVELOPE:
            raise UploadRejected(f"A file may have {largest // MB:,} MB here.")
        if (
            sum(one.size for one in every if one.session == new.session)
            > (allowed or (public.MAX_SESSION_MB if public.is_public() else UNTRUSTED_SESSION) * MB) + ENVELOPE
        ):
            raise UploadRejected(
                "You have reached the upload limit of one visit. Reload the page to start a new visit."
            )
        untrusted = sum(one.size for one in every if not self._allowed.get(one.session))
        if not allowed and untrusted > (public.UPLOADS if public.is_public() else UNTRUSTED_TOTAL) * MB:
            raise UploadRejected("The server has reached its limit for uploads. Try again later.")
        if new.picture:
            if sum(one.size for one in every if one.picture) > MEMORY * MB:
                raise UploadRejected("This server holds no more pictures now. Try again later.")
        elif (
            shutil.disk_usage(tempfile.gettempdir()).free
            < FREE * MB + sum(one.size for one in self._pending.values()) + new.size
        ):
            raise UploadRejected("The server is short of disk space. Nothing was saved.")


def untrusted_file_limit() -> int:
    """Return the maximum file size for visitors who may not train [MB]."""
    return public.MAX_FILE_MB if public.is_public() else UNTRUSTED_FILE


def _weight(data: bytes) -> tuple[int, bool]:
    return (data.size, False) if isinstance(data, TemporaryUpload) else (len(data), True)


def is_picture(name: str) -> bool:
    """Whether a file name is that of a picture or video. Pages read these in every run, so they stay in memory.

    On a public server, every file counts as a picture: pages request no others, and nothing is written to disk.

    >>> is_picture("a/Photo.JPG"), is_picture("model.safetensors")
    (True, False)
    """
    return public.is_public() or PurePosixPath(name.lower()).suffix in PICTURES | VIDEOS


UPLOADS = Uploads()
