"""Names that the pictures of an upload had in their archive, if they are stored under others."""

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path

from vit.errors import InvalidDataset
from vit.untrusted import Unreadable, is_text, read_object

FILE = ".names.json"  # in the folder, {path: name}; no class name begins with a dot
_MOST_BYTES = 1 << 27
_LONGEST = 1000  # [characters] of a name


def store(folder: Path, names: Mapping[str, str]) -> None:
    """Write the names of a folder's pictures, given by their paths in it.

    Raises:
        InvalidDataset: they are too long.
    """
    if others := {path: name[-_LONGEST:] for path, name in names.items() if path != name}:
        content = json.dumps(others, indent=0).encode()
        if len(content) > _MOST_BYTES:
            raise InvalidDataset("The archive has too many long names. Shorten them, or leave some pictures out.")
        (folder / FILE).write_bytes(content)


def own_names(folder: Path) -> Callable[[Path], str]:
    """Return a function that gives a picture's name: its path in the folder, or the name that it had in an archive."""
    others: Mapping[str, object] = {}
    with suppress(OSError, Unreadable):
        others = read_object(folder / FILE, _MOST_BYTES)
    return partial(_own_name, folder, others)


def _own_name(folder: Path, others: Mapping[str, object], file: Path) -> str:
    path = file.relative_to(folder).as_posix()
    own = others.get(path)
    return own if is_text(own) else path.encode(errors="surrogateescape").decode(errors="replace")
