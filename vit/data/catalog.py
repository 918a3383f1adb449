"""Discover datasets in the data folders, so that pages list and accept only those."""

import os
from collections import deque
from contextlib import suppress
from functools import lru_cache
from pathlib import Path

from vit.data.downloads import NAMES, TORCHVISION
from vit.data.file_names import is_table
from vit.data.folders import class_folders, folders_of_classes, has_classes, is_split
from vit.data.packed.index import own_files_of
from vit.errors import InvalidDataset
from vit.paths import data_roots, dataset_folder
from vit.untrusted import TooMuchWork, limit_work

_FOLDER_DEPTH = 3  # levels of folders below a root that are searched
_LOOK_SECONDS = 5.0  # processor time to find out whether a folder is a dataset [s]
_MAX_FOLDERS = 2000  # maximum number of folders to search


# --- Which folders ----------------------------------------------------------------------------------------------


def uploads_folder() -> Path:
    """Return the folder for datasets from uploaded archives."""
    return data_roots()[0] / "uploads"


def list_folders() -> list[str]:
    """List datasets in and below the roots, up to three folders deep, as "folder:PATH"; hidden folders are skipped.

    A folder of folders of class folders may be one dataset or several: it is listed, and so are the datasets in it.
    """
    specs, waiting = [], deque((root, 0) for root in data_roots())
    for _ in range(_MAX_FOLDERS):
        if not waiting:
            break
        path, depth = waiting.popleft()
        with suppress(OSError):  # deleted meanwhile, or not readable
            if whole := _is_dataset(path):
                specs.append(f"folder:{path}")
            elif depth and path != uploads_folder() and _may_be_dataset(path):
                specs.append(f"folder:{path}")  # it may also be a folder of datasets, so the search continues below it
            if not whole and depth < _FOLDER_DEPTH:
                waiting += [(entry, depth + 1) for entry in _inner(path)]
    return specs


def _inner(path: Path) -> list[Path]:
    with os.scandir(path) as entries:
        return sorted(path / entry.name for entry in entries if not entry.name.startswith(".") and entry.is_dir())


def _is_dataset(path: Path) -> bool:
    return len(class_folders(path)) > 1 or bool(own_files_of(path)) or is_split(path)


def _may_be_dataset(path: Path) -> bool:
    """Whether a folder has classes in subfolders of its folders, in a table, or in file names."""
    folders = _inner(path)
    stamps = []
    for folder in (path, *folders):
        stamps.append(folder.stat().st_mtime_ns)
        with os.scandir(folder) as entries:
            stamps += [entry.stat().st_mtime_ns for entry in entries if is_table(entry.name)]
    return _has_classes(path, tuple(stamps))


@lru_cache(maxsize=_MAX_FOLDERS)
def _has_classes(path: Path, stamps: tuple[int, ...]) -> bool:
    """Cached by the modification times of the folder and the folders in it.

    A folder that takes long is listed, and its survey tells why it cannot be read.
    """
    try:
        with limit_work(path.name, _LOOK_SECONDS):
            return has_classes(path)
    except TooMuchWork:
        return True


def check_spec(spec: str) -> str:
    """Validate a spec from a request, and return it as `list_folders` spells it, with the level of its classes.

    Raises:
        InvalidDataset: neither a named dataset nor one of `list_folders`, or without this level.
    """
    if spec in (*TORCHVISION, "shapes"):
        return spec
    if spec.startswith("folder:"):
        sought, listed = f"folder:{os.path.abspath(spec.removeprefix('folder:'))}", list_folders()
        if sought in listed:  # compared with the list; the path from the request is never opened
            return sought
        if sought.rpartition("#")[0] in listed and folders_of_classes(Path(sought.removeprefix("folder:"))):
            return sought
    raise InvalidDataset(
        f"There is no dataset {spec[:100]!r} here. Choose {', '.join(NAMES[:-1])}, or a folder of class folders in the "
        "server's data folder."
    )


# --- Deleting ---------------------------------------------------------------------------------------------------


def is_upload(spec: str) -> bool:
    """Whether a dataset comes from an uploaded archive."""
    return spec.startswith("folder:") and dataset_folder(spec).parent == uploads_folder()
