"""Pictures that visitors uploaded, on the server's disk for a day: a reload shows them again, and so does their link.

A picture's name there is the SHA-256 of its content. Who holds a link with it opens the picture; nobody can guess one,
nothing else lists them. What a file was called stands in its link; of several that were uploaded together, names and
keys are a list that is kept like a picture, and its key stands in the link. In a public place they stay in memory, for
the visit that brought them.
"""

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple, Self

from pages.server import public
from pages.server.visit_pictures import PICTURES
from pages.streamlit_internals.sessions import current_id
from vit.files import replaced
from vit.paths import pictures_folder
from vit.untrusted import DOCUMENT_BYTES, is_text, parse_json

DAY = 86_400.0  # [s] that a picture stays after it was last opened
MOST_PICTURES = 400  # pictures
MOST_TOGETHER = 24  # pictures that are stepped through
MOST_BYTES = 2_000_000_000  # of all of them
FREE_BYTES = 2_000_000_000  # of the disk that stay free
LONGEST_NAME = 200  # characters of a picture's, out of a link or a list
_KEY = re.compile(r"[0-9a-f]{64}")


class Upload(NamedTuple):
    """An uploaded picture.

    Attributes:
        name: of its file.
        key: as `key_of` its content.
    """

    name: str
    key: str
    data: bytes

    @classmethod
    def of(cls, name: str, data: bytes) -> Self:
        """With its key."""
        return cls(name, key_of(data), data)


def key_of(content: bytes) -> str:
    """What a picture is called in links, whether it is kept or not."""
    return hashlib.sha256(content).hexdigest()


def keep(content: bytes) -> str:
    """Write a picture down unless it is there, and clear away what is too old or too much; returns its key.

    "" where it cannot be kept: the disk is full, or not ours to write on. Nothing but a reload suffers.
    """
    key, folder = key_of(content), pictures_folder()
    if public.is_public():
        return key if PICTURES.keep(key, content) else ""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
        path = folder / key
        if path.is_file():
            os.utime(path)
        elif len(content) > MOST_BYTES or shutil.disk_usage(folder).free < FREE_BYTES + len(content):
            return ""
        else:
            with replaced(path) as file:
                os.fchmod(file.fileno(), 0o600)
                file.write(content)
        clean()
    except OSError:
        return ""
    return key


def find(key: str) -> bytes | None:
    """The picture of a key, which may come from anywhere; None where there is none, or no longer."""
    if public.is_public():
        return PICTURES.find(key)
    if not _KEY.fullmatch(key):
        return None
    clean()
    path = pictures_folder() / key
    try:
        file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
        with open(file, "rb") as opened:
            content = opened.read()
    except OSError:
        return None
    if key_of(content) != key:  # the disk erred, or somebody else writes there
        return None
    with suppress(OSError):
        os.utime(path)
    return content


def is_kept(key: str) -> bool:
    """Whether the picture of a key is there, without reading it."""
    if public.is_public():
        return PICTURES.find(key) is not None
    return bool(_KEY.fullmatch(key)) and (pictures_folder() / key).is_file()


def how_long() -> str:
    """How long they stay, for whom, as a sentence."""
    if public.is_public():
        return "They stay in the server's memory for this visit, and are forgotten when you leave."
    return "They stay on the server for a day, for whoever has the link that the address bar then shows."


def readers() -> str:
    """Tells apart, in what is remembered by a key, those who may see a picture: everybody with its link, or a visit."""
    return current_id() if public.is_public() else ""


def keep_all(uploads: Sequence[Upload]) -> str:
    """Write several down; the key that `find_all` takes, "" where one cannot be kept, or there is none."""
    return keep_list([(one.name, keep(one.data)) for one in uploads])


def keep_list(entries: Sequence[tuple[str, str]]) -> str:
    """Write down names and keys of pictures that are kept; the key that `find_all` takes, "" where one has none."""
    short = [(name[:LONGEST_NAME], key) for name, key in entries]
    return keep(json.dumps(short).encode()) if short and all(key for _, key in short) else ""


def find_all(key: str) -> list[Upload]:
    """Those of several that are still there."""
    listed = find(key) or b""
    try:
        entries = parse_json(listed) if len(listed) < DOCUMENT_BYTES else []
    except ValueError:  # somebody's picture
        return []
    uploads = []
    for entry in entries[:MOST_PICTURES] if isinstance(entries, list) else []:
        if isinstance(entry, list) and len(entry) == 2 and all(map(is_text, entry)):
            name, one = entry
            if (data := find(one)) is not None:
                uploads.append(Upload(name[:LONGEST_NAME], one, data))
    return uploads


def clean() -> None:
    """Delete pictures that nobody opened for a day, and the longest unopened ones of too many."""
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
