"""Pictures that visitors uploaded, on the server's disk for a day: a reload shows them again, and so does their link.

A picture's name there is the SHA-256 of its content. Who holds a link with it opens the picture; nobody can guess one,
nothing lists them, and what a file was called is not written down.
"""

import hashlib
import os
import re
import shutil
import time
from contextlib import suppress

from vit.files import replaced
from vit.paths import pictures_folder

DAY = 86_400.0  # [s] that a picture stays after it was last opened
MOST = 400  # pictures
MOST_BYTES = 2_000_000_000  # of all of them
FREE_BYTES = 2_000_000_000  # of the disk that stay free
_KEY = re.compile(r"[0-9a-f]{64}")


def key_of(content: bytes) -> str:
    """What a picture is called in links, whether it is kept or not."""
    return hashlib.sha256(content).hexdigest()


def keep(content: bytes) -> str:
    """Write a picture down unless it is there, and clear away what is too old or too much; returns its key.

    "" where it cannot be kept: the disk is full, or not ours to write on. Nothing but a reload suffers.
    """
    key, place = key_of(content), pictures_folder()
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        place.chmod(0o700)
        path = place / key
        if path.is_file():
            os.utime(path)
        elif len(content) > MOST_BYTES or shutil.disk_usage(place).free < FREE_BYTES + len(content):
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


def clean() -> None:
    """Delete pictures that nobody opened for a day, and the longest unopened ones of too many."""
    found = []
    with suppress(OSError):
        for entry in os.scandir(pictures_folder()):
            with suppress(OSError):  # another session deleted it
                facts = entry.stat(follow_symlinks=False)
                found.append((facts.st_mtime, facts.st_size, entry.path))
    count, size, oldest = 0, 0, time.time() - DAY
    for opened, length, path in sorted(found, reverse=True):
        count, size = count + 1, size + length
        if opened < oldest or count > MOST or size > MOST_BYTES:
            with suppress(OSError):
                os.unlink(path)
