"""Check which pictures of a dataset can be read, before they are counted.

Pictures that are decoded on demand are decoded once beforehand, by one thread per processor. The result is cached in
`runs/.readable/` for the same files.
"""

import hashlib
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from PIL import Image

from vit.errors import InvalidImage
from vit.files import replaced
from vit.paths import runs_folder
from vit.progress import progress_bar
from vit.untrusted import Unreadable, read_object, spend

MOST_BYTES = 1 << 26  # [bytes] of a cached result
_AT_ONCE = 4096  # pictures submitted to the threads at once; a million would take gigabytes
T = TypeVar("T")

log = logging.getLogger(__name__)

Opened = Callable[[int], Image.Image]


def each(work: Callable[[int], T], count: int, title: str) -> Iterator[T | str]:
    """Call a function for each picture, in order; unreadable pictures yield the error message instead.

    Args:
        work: called with a picture's index; raises InvalidImage or OSError if it cannot be read.
        title: of the progress bar.
    """

    def attempt(index: int) -> T | str:
        try:
            return work(index)
        except (InvalidImage, OSError) as error:
            return str(error)

    with (
        ThreadPoolExecutor(os.cpu_count()) as pool,
        progress_bar(total=count, desc=title, unit="pictures", leave=False) as bar,
    ):
        for start in range(0, count, _AT_ONCE):
            for result in pool.map(attempt, range(start, min(start + _AT_ONCE, count))):
                spend()  # here, as the limit is that of this thread, not of those which work
                bar.update()
                yield result


def find_unreadable(opened: Opened, count: int, stamps: Callable[[], Iterable[str]], title: str) -> dict[int, str]:
    """Find unreadable pictures: index -> reason.

    Args:
        opened: returns picture i; raises InvalidImage or OSError if it cannot be read.
        stamps: cache key: location, size and modification time of each picture.
        title: of the progress bar.
    """
    digest = hashlib.blake2b(digest_size=16)
    for stamp in stamps():
        digest.update(stamp.encode(errors="surrogateescape") + b"\0")
    place = runs_folder() / ".readable" / f"{digest.hexdigest()}.json"
    if (known := _read(place, count)) is not None:
        return known

    def check(index: int) -> None:
        opened(index)

    found: dict[int, str] = {}
    for index, result in enumerate(each(check, count, title)):
        if result is not None:
            found[index] = result
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with replaced(place) as file:
            file.write(json.dumps(found).encode())
    except OSError as error:
        log.warning("The check for unreadable pictures was not cached: %s", error)
    return found


def stamps_of(files: Sequence[Path]) -> Iterator[str]:
    """Yield path, size and modification time of each file; only the path of a missing one."""
    for file in files:
        try:
            facts = file.stat()
            yield f"{file} {facts.st_size} {facts.st_mtime_ns}"
        except OSError:
            yield str(file)


def _read(place: Path, count: int) -> dict[int, str] | None:
    try:
        found = {int(index): str(reason) for index, reason in read_object(place, MOST_BYTES).items()}
    except (OSError, ValueError, Unreadable):
        return None
    return found if all(0 <= index < count for index in found) else None
