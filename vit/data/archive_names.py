"""Names in archives: paths that stay inside, junk that no person put there, names of classes."""

import re
import unicodedata
from pathlib import Path

from vit.data.file_names import PICTURES, is_ignored, is_table, printable_name, printable_path
from vit.errors import InvalidDataset

MAX_DEPTH = 20  # folders in each other
MAX_CLASS_NAME = 100  # characters

_LIKE_PICTURES = PICTURES | {".jpe", ".jfif", ".apng", ".jp2", ".jxl", ".psd", ".svg", ".pgm", ".ppm"}
_JOINERS = "\u200c\u200d"  # unseen, but part of words and of emoji


# --- Names ----------------------------------------------------------------------------------------------------


class SeenNames:
    """Names met so far: none may come twice, nor be the same to a disk that ignores case or composes accents."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.folders: dict[tuple[str, ...], tuple[str, ...]] = {}

    def add(self, path: tuple[str, ...]) -> None:
        """Take note of a file.

        Raises:
            InvalidDataset: it was met before, or it, or a folder above it, was met in another spelling.
        """
        key = tuple(_folded(part) for part in path)
        if key in self.files:
            if self.files[key] == path:
                raise InvalidDataset(f"{printable_path(path)} is in the archive twice. Pack it again.")
            raise self._collision(self.files[key], path)
        self.files[key] = path
        for depth in range(len(path) - 1, 0, -1):
            folder = self.folders.setdefault(key[:depth], path[:depth])
            if folder != path[:depth]:
                raise self._collision(folder, path[:depth])

    def _collision(self, first: tuple[str, ...], second: tuple[str, ...]) -> InvalidDataset:
        return InvalidDataset(
            f"{printable_path(first)} and {printable_path(second)} in the archive differ only in case or in the coding "
            "of accents. Rename one, or put them together."
        )


def _folded(name: str) -> str:
    """The same text for names that some disk takes for one."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def safe_path(name: str) -> tuple[str, ...]:
    """Split the name of a file in an archive into the folders it lies in and its own.

    Raises:
        InvalidDataset: it could lead out of a folder on some system, or lies too deep.
    """
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or "\\" in name or ".." in parts or re.match("[A-Za-z]:", name):
        raise InvalidDataset(
            f"The archive holds the path {printable_name(name)!r}, which could lead out of its folder. "
            "Pack the folder again, with plain relative paths."
        )
    if len(parts) > MAX_DEPTH:
        raise InvalidDataset(f"The archive has folders more than {MAX_DEPTH} deep. Pack the class folders only.")
    return parts


def is_junk(path: tuple[str, ...]) -> bool:
    """Say whether a file is neither picture nor table: hidden, added by macOS or Windows, or of another kind."""
    if not path or any(map(is_ignored, path)):
        return True
    return Path(path[-1]).suffix.lower() not in _LIKE_PICTURES and not is_table(path[-1])


def check_class(name: str) -> str:
    """Return a class's name with accents composed.

    Raises:
        InvalidDataset: it has unseen characters, or is too long.
    """
    odd = [c for c in name if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") and c not in _JOINERS]
    if odd:
        codes = ", ".join(f"U+{ord(c):04X}" for c in odd[:3])
        raise InvalidDataset(
            f"The class {printable_name(name)!r} has unseen characters in its name ({codes}). Rename it."
        )
    if len(name) > MAX_CLASS_NAME or len(name.encode()) > 240:
        raise InvalidDataset(
            f"The class {printable_name(name)!r} has a name of {len(name)} characters; "
            f"the limit is {MAX_CLASS_NAME}. Rename it."
        )
    return unicodedata.normalize("NFC", name)


def folder_name(name: str) -> str:
    """A class's name as that of a folder: a table may name a class by anything, such as "n/a" or "..".

    >>> folder_name("cat"), folder_name("n/a"), folder_name("../x")
    ('cat', 'n_a', '_._x')
    """
    name = re.sub(r"[\\/]", "_", name)
    return f"_{name[1:]}" if name.startswith(".") else name


def unusual(path: tuple[str, ...], kind: str) -> InvalidDataset:
    """The refusal, to be raised, of an entry that is of this kind, such as "a link"."""
    return InvalidDataset(f"{printable_path(path)} in the archive is {kind}. Pack plain files only.")
