"""What visitors upload: only what a page asked them for, within bounds, and large files on disk.

Streamlit by itself takes any file that is sent under any name, and holds it in memory until the session has ended.
`pages/server/guard.py` asks here before it takes one.
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

KINDS = ["jpg", "jpeg", "png", "webp", "gif", "bmp", "tif", "tiff", "avif", "heic", "heif", "mpo"]
VIDEOS = ["mp4", "m4v", "mov", "webm", "mkv"]
MB = 1 << 20
LARGEST = 100  # [MB] of a picture or a video
STRANGERS_FILE = 25  # [MB] of who may not train
STRANGERS_SESSION = 60  # [MB]
STRANGERS = 600  # [MB] of all of them together
MEMORY = 2000  # [MB] of pictures and videos, of everybody together
FILES = 4  # of the largest allowed size, for a session of who may train
FREE = 2000  # [MB] of the disk that stay free
WAYS = 1000  # uploads that a session may announce before it sends them
SESSIONS = 10_000  # that are remembered
ENVELOPE = 1 << 16  # [bytes] around a file when it is sent


class Refused(Exception):
    """An upload is more than there is room for; the message says so to the visitor."""


class OnDisk(bytes):
    """Stands for the content of an upload that lies in a file without a name, which goes with the last who holds this.

    Attributes:
        file: where it is; read it by `open`, as several may read at once.
        size: [bytes]
    """

    file: BinaryIO
    size: int

    def __new__(cls, file: BinaryIO, size: int) -> "OnDisk":
        """Empty, as far as Streamlit is concerned."""
        made = super().__new__(cls)
        made.file, made.size = file, size
        return made

    def open(self) -> BinaryIO:
        """Read it from its start."""
        return io.BufferedReader(_Reader(self))


class _Reader(io.RawIOBase):
    """Reads a file at a place of its own."""

    def __init__(self, content: OnDisk):
        self._content, self._at = content, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._content.size}[whence]
        return self._at

    def readinto(self, buffer: Any) -> int:
        chunk = os.pread(self._content.file.fileno(), len(buffer), self._at)
        buffer[: len(chunk)] = chunk
        self._at += len(chunk)
        return len(chunk)


class _Coming(NamedTuple):
    """An upload on its way."""

    session: str
    size: int
    picture: bool


Stored = Mapping[str, Mapping[str, Any]]  # Streamlit's files, by session and by their ids; each has `data`


class Uploads:
    """Which uploads are expected, and how much there is of them; for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._expected: LRUCache[str, LRUCache[str, str]] = LRUCache(SESSIONS)
        self._allowed: LRUCache[str, int] = LRUCache(SESSIONS)
        self._coming: dict[object, _Coming] = {}

    def allow(self, session: str, size: int) -> None:
        """Let a session have so much in all, and files as large [bytes]; 0 leaves it what strangers have."""
        with self._lock:
            self._allowed[session] = size

    def expect(self, session: str, file: str, name: str) -> None:
        """A page has asked for this file."""
        with self._lock:
            self._expected.setdefault(session, LRUCache(WAYS))[file] = name

    def name(self, session: str, file: str) -> str | None:
        """Of a file that a page has asked for; None for all others."""
        with self._lock:
            expected = self._expected.get(session)
            return None if expected is None else expected.get(file)

    def arrived(self, session: str, file: str) -> None:
        """It is not expected a second time."""
        with self._lock:
            if (expected := self._expected.get(session)) is not None:
                expected.pop(file, None)

    @contextmanager
    def room(self, session: str, name: str, size: int, stored: Stored) -> Iterator[None]:
        """Keep room for a file of so many bytes while it arrives.

        Raises:
            Refused: there is none.
        """
        ticket, coming = object(), _Coming(session, size, is_picture(name))
        with self._lock:
            self._check(coming, stored)
            self._coming[ticket] = coming
        try:
            yield
        finally:
            with self._lock:
                del self._coming[ticket]

    def _check(self, new: _Coming, stored: Stored) -> None:
        allowed = self._allowed.get(new.session, 0)
        every = [new, *self._coming.values()]
        for owner, files in list(stored.items()):
            every += [_Coming(owner, *_weight(file.data)) for file in list(files.values())]
        largest = allowed or strangers_file() * MB
        if new.picture:
            largest = min(largest, LARGEST * MB)
        if new.size > largest + ENVELOPE:
            raise Refused(f"A file may have {largest // MB:,} MB here.")
        if (
            sum(one.size for one in every if one.session == new.session)
            > (allowed or (public.SESSION if public.is_public() else STRANGERS_SESSION) * MB) + ENVELOPE
        ):
            raise Refused("You have uploaded as much as one visit may. Reload the page to begin anew.")
        strangers = sum(one.size for one in every if not self._allowed.get(one.session))
        if not allowed and strangers > (public.UPLOADS if public.is_public() else STRANGERS) * MB:
            raise Refused("Others have uploaded as much as this server holds. Try again later.")
        if new.picture:
            if sum(one.size for one in every if one.picture) > MEMORY * MB:
                raise Refused("This server holds no more pictures now. Try again later.")
        elif (
            shutil.disk_usage(tempfile.gettempdir()).free
            < FREE * MB + sum(one.size for one in self._coming.values()) + new.size
        ):
            raise Refused("The server is short of disk space. Nothing was saved.")


def strangers_file() -> int:
    """The largest file of who may not train [MB]."""
    return public.FILE if public.is_public() else STRANGERS_FILE


def _weight(data: bytes) -> tuple[int, bool]:
    return (data.size, False) if isinstance(data, OnDisk) else (len(data), True)


def is_picture(name: str) -> bool:
    """Whether a file is a picture or a video by its name: pages read those in every run, so they stay in memory.

    In a public place every file counts as one: nothing else is asked for there, and nothing is written to the disk.

    >>> is_picture("a/Photo.JPG"), is_picture("model.safetensors")
    (True, False)
    """
    return public.is_public() or PurePosixPath(name.lower()).suffix[1:] in (*KINDS, *VIDEOS)


UPLOADS = Uploads()
