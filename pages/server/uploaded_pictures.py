"""Store of uploaded pictures: on the server's disk for a day, so that reloads and links show them again.

A picture's key is the SHA-256 of its content. Anybody with the key can open the picture; keys cannot be guessed and are
not listed anywhere. The link contains the key and the file name. For several pictures, a list of names and keys is
stored like a picture, and the link contains the key of the list. On a public server, pictures stay in memory and are
available only to the visit that uploaded them.
"""

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, Self

from pages.server import public
from pages.server.session_pictures import PICTURES
from pages.streamlit_internals.sessions import current_id
from vit.files import remove, replaced
from vit.paths import pictures_folder
from vit.untrusted import DOCUMENT_BYTES, is_text, parse_json

DAY = 86_400.0  # lifetime since a picture was last opened [s]
MOST_PICTURES = 400  # stored pictures
MOST_TOGETHER = 24  # pictures in one upload for Previous and Next
MOST_BYTES = 2_000_000_000  # size of all stored pictures
FREE_BYTES = 2_000_000_000  # disk space that must stay free
LONGEST_NAME = 400  # characters of a name in a link or a list
_KEY = re.compile(r"[0-9a-f]{64}")


class Upload(NamedTuple):
    """An uploaded picture.

    Attributes:
        name: file name.
        key: `key_of` its content.
    """

    name: str
    key: str
    data: bytes

    @classmethod
    def of(cls, name: str, data: bytes) -> Self:
        """Compute the key of an upload."""
        return cls(name, key_of(data), data)


def key_of(content: bytes) -> str:
    """Return the key of a picture, whether it is stored or not."""
    return hashlib.sha256(content).hexdigest()


def store(content: bytes) -> str:
    """Store a picture, delete expired ones, and return the key.

    Returns "" if it cannot be stored, because the disk is full or read-only. Then only reloads do not work.
    """
    key, folder = key_of(content), pictures_folder()
    if public.is_public():
        return key if PICTURES.keep(key, content) else ""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        path = folder / key
        if _read(path) == content:
            os.utime(path)
        elif len(content) > MOST_BYTES or shutil.disk_usage(folder).free < FREE_BYTES + len(content):
            return ""
        else:
            remove(path)  # it may be damaged, or a folder
            with replaced(path) as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(content)
        delete_old_pictures()
    except OSError:
        return ""
    return key


def find(key: str) -> bytes | None:
    """Return the picture of an untrusted key; None if it is not stored."""
    if public.is_public():
        return PICTURES.find(key)
    if not _KEY.fullmatch(key):
        return None
    delete_old_pictures()
    path = pictures_folder() / key
    content = _read(path)
    if content is None or key_of(content) != key:  # a disk error, or another program has changed the file
        return None
    with suppress(OSError):
        os.utime(path)
    return content


def _read(path: Path) -> bytes | None:
    """Return the content of a stored file; None if there is none, or something else in its place."""
    flags = os.O_NOFOLLOW | os.O_NONBLOCK
    with suppress(OSError), open(path, "rb", opener=lambda name, mode: os.open(name, mode | flags)) as file:
        return file.read()
    return None


def is_stored(key: str) -> bool:
    """Whether the picture of a key is stored, without reading it."""
    if public.is_public():
        return PICTURES.find(key) is not None
    return bool(_KEY.fullmatch(key)) and (pictures_folder() / key).is_file()


def retention_note() -> str:
    """Return a sentence about how long pictures are stored and who can see them."""
    if public.is_public():
        return "Your pictures stay in the server's memory for this visit, and are forgotten when you leave."
    return "The server keeps your pictures for a day. Anyone with a link to them can open them."


def cache_scope() -> str:
    """Return a cache key part for who may see a picture: "" for everybody with its key, or the current visit."""
    return current_id() if public.is_public() else ""


def store_all(uploads: Sequence[Upload]) -> str:
    """Store several pictures and return the key for `find_all`; "" if one cannot be stored or there are none."""
    return store_list([(upload.name, store(upload.data)) for upload in uploads])


def store_list(entries: Sequence[tuple[str, str]]) -> str:
    """Store a list of names and keys of stored pictures; return the key for `find_all`, "" if a key is missing."""
    short = [(name[:LONGEST_NAME], key) for name, key in entries]
    return store(json.dumps(short).encode()) if short and all(key for _, key in short) else ""


def find_all(key: str) -> list[Upload]:
    """Return the pictures of a list that are still stored."""
    listed = find(key) or b""
    try:
        entries = parse_json(listed) if len(listed) < DOCUMENT_BYTES else []
    except ValueError:  # the key of a picture, not of a list
        return []
    uploads = []
    for entry in entries[:MOST_PICTURES] if isinstance(entries, list) else []:
        if isinstance(entry, list) and len(entry) == 2 and all(map(is_text, entry)):
            name, picture_key = entry
            if (data := find(picture_key)) is not None:
                uploads.append(Upload(name[:LONGEST_NAME], picture_key, data))
    return uploads


def delete_old_pictures() -> None:
    """Delete pictures that were not opened for a day, and the least recently opened ones over the limits."""
    files = []
    with suppress(OSError):
        for entry in os.scandir(pictures_folder()):
            with suppress(OSError):  # another session deleted it
                facts = entry.stat(follow_symlinks=False)
                files.append((facts.st_mtime, facts.st_size, entry.path))
    count, size, oldest = 0, 0, time.time() - DAY
    for opened, length, path in sorted(files, reverse=True):
        count, size = count + 1, size + length
        if opened < oldest or count > MOST_PICTURES or size > MOST_BYTES:
            with suppress(OSError):
                os.unlink(path)
