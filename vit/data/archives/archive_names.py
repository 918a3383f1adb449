"""Validate names in archives: safe relative paths, ignored system files, class names."""

import re
import unicodedata

from vit.data.file_names import printable_name, printable_path
from vit.errors import InvalidDataset

MAX_DEPTH = 20  # nested folders
MAX_CLASS_NAME = 100  # [characters]
_MAX_PART = 255  # [characters] of a file's or folder's name, as on common file systems

_JOINERS = "\u200c\u200d"  # invisible, but part of words and emoji


# --- Names ----------------------------------------------------------------------------------------------------


class SeenNames:
    """Names in an archive so far; detects duplicates, also on file systems that ignore case or compose accents."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.folders: dict[tuple[str, ...], tuple[str, ...]] = {}

    def add(self, path: tuple[str, ...]) -> None:
        """Add a file.

        Raises:
            InvalidDataset: it was added before, or it or a parent folder was added in another spelling.
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
    """Return a key that is equal for names which some file system does not distinguish."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def safe_path(name: str) -> tuple[str, ...]:
    """Split a path in an archive into its components.

    Raises:
        InvalidDataset: it could escape its folder on some system, or is nested too deeply.
    """
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or "\\" in name or ".." in parts or re.match("[A-Za-z]:", name):
        raise InvalidDataset(
            f"The archive holds the path {printable_name(name)!r}, which could lead out of its folder. "
            "Pack the folder again, with plain relative paths."
        )
    if any(len(part) > _MAX_PART for part in parts):  # the time of normalising a name grows quadratically
        raise InvalidDataset(f"The archive holds a name of more than {_MAX_PART} characters. Shorten it.")
    if len(parts) > MAX_DEPTH:
        raise InvalidDataset(f"The archive has folders more than {MAX_DEPTH} deep. Pack the class folders only.")
    return parts


def check_class(name: str) -> str:
    """Return a class's name with composed accents (NFC).

    Raises:
        InvalidDataset: it has invisible characters, or is too long.
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
    """Turn a class's name into a valid folder name; a table may name classes "n/a" or "..".

    >>> folder_name("cat"), folder_name("n/a"), folder_name("../x")
    ('cat', 'n_a', '_._x')
    """
    name = re.sub(r"[\\/]", "_", name)
    return f"_{name[1:]}" if name.startswith(".") else name


def unusual(path: tuple[str, ...], kind: str) -> InvalidDataset:
    """Return the error for an archive entry of an unsupported kind, such as "a link"."""
    return InvalidDataset(f"{printable_path(path)} in the archive is {kind}. Pack plain files only.")
