"""Which folders of this machine are datasets, so that a page offers and accepts only those."""

import os
from collections import deque
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from vit.data import shards
from vit.data.downloads import NAMES, TORCHVISION
from vit.data.file_names import is_table
from vit.data.folders import class_folders, has_classes, is_split
from vit.errors import InvalidDataset
from vit.paths import data_roots

_FOLDER_DEPTH = 3  # of folders below a root in which datasets are looked for
_MAX_FOLDERS = 2000  # that are looked into


# --- Which folders ----------------------------------------------------------------------------------------------


def uploads_folder() -> Path:
    """The folder in which uploaded archives become folders of pictures."""
    return data_roots()[0] / "uploads"


def list_folders() -> list[str]:
    """Datasets in and below the roots, at most three folders deep, as "folder:PATH"; hidden ones are left out.

    A folder of folders of class folders may be one dataset or several: it is listed, and so are those in it.
    """
    specs, waiting = [], deque((root, 0) for root in data_roots())
    for _ in range(_MAX_FOLDERS):
        if not waiting:
            break
        path, depth = waiting.popleft()
        with suppress(OSError):  # may be gone by now, or closed to us
            if whole := _is_dataset(path):
                specs.append(f"folder:{path}")
            elif depth and path != uploads_folder() and _may_be_dataset(path):
                specs.append(f"folder:{path}")  # or a folder of datasets, which are looked for below it
            if not whole and depth < _FOLDER_DEPTH:
                waiting += [(entry, depth + 1) for entry in _inner(path)]
    return specs


def _inner(path: Path) -> list[Path]:
    with os.scandir(path) as entries:
        return sorted(path / entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())


def _is_dataset(path: Path) -> bool:
    return len(class_folders(path)) > 1 or bool(shards.files_of(path)) or is_split(path)


def _may_be_dataset(path: Path) -> bool:
    """Whether a folder has classes by the folders within its folders, by a table, or by the names of its files."""
    folders = _inner(path)
    stamps = []
    for folder in (path, *folders):
        stamps.append(folder.stat().st_mtime_ns)
        with os.scandir(folder) as entries:
            stamps += [entry.stat().st_mtime_ns for entry in entries if is_table(entry.name)]
    return _has_classes(path, tuple(stamps))


@lru_cache(maxsize=_MAX_FOLDERS)
def _has_classes(path: Path, stamps: tuple[int, ...]) -> bool:
    """Read a folder once for each version of it and the folders in it."""
    return has_classes(path)


def check_spec(spec: str) -> str:
    """Return a spec that a stranger sent, spelled as `list_folders` does, if it is one that is offered here.

    Raises:
        InvalidDataset: neither a named dataset nor one of `list_folders`.
    """
    if spec in (*TORCHVISION, "shapes"):
        return spec
    if spec.startswith("folder:"):
        sought = f"folder:{os.path.abspath(spec.removeprefix('folder:'))}"
        if sought in list_folders():  # looked up, never opened by the name that was sent
            return sought
    raise InvalidDataset(
        f"There is no dataset {spec[:100]!r} here. Choose {', '.join(NAMES[:-1])}, or a folder of class folders in the "
        "server's data folder."
    )


# --- Deleting ---------------------------------------------------------------------------------------------------


def is_upload(spec: str) -> bool:
    """Whether a dataset came out of an uploaded archive."""
    return spec.startswith("folder:") and Path(spec.removeprefix("folder:")).parent == uploads_folder()
