"""Files that are whole or absent, whatever happens while they are written."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """Write a file whole: whoever reads it, also after a kill or a power cut, meets the old content or the new.

    Raises:
        OSError: it could not be written; the old content stays, and nothing half-written with it.
    """
    temporary = path.with_name(path.name + ".partial")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
