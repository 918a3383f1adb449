"""Available datasets: titles, permissions, and change detection."""

import hashlib
import os
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import streamlit as st

from pages.server import access
from pages.shared.escape import visible
from vit.data import catalog, downloads
from vit.data.file_names import is_table
from vit.paths import data_roots, dataset_folder

NAMED = {
    "shapes": "Shapes (generated)",
    "cifar10": "CIFAR-10",
    "cifar100": "CIFAR-100",
    "mnist": "MNIST",
    "fashion-mnist": "Fashion-MNIST",
}
_HASH = re.compile(r"-[0-9a-f]{8}(?=#\d$|$)")  # suffix of an uploaded folder's name
LISTED = 200  # files that a list names


def root_of(spec: str) -> str:
    """Return the `data_root` of a dataset; only named datasets are downloaded elsewhere."""
    root = data_roots()[0]
    elsewhere = spec in NAMED and spec != "shapes" and root != Path("data").absolute()
    return str(root) if elsewhere else "data"


def label(spec: str) -> str:
    """Return a dataset's name, without the path of a folder and the hash of an upload.

    >>> label("folder:/srv/data/uploads/birds-0123abcd"), label("cifar10")
    ('birds', 'cifar10')
    """
    kind, colon, path = spec.partition(":")
    return _HASH.sub("", Path(path).name) if colon else kind


def folder_title(spec: str, roots: list[Path]) -> str:
    """Return the title of a folder: its path relative to a data root."""
    path = dataset_folder(spec)
    for root in roots:
        if path.is_relative_to(root):
            path = path.relative_to(root)
            break
    if path.parts[:1] == ("uploads",):
        return f"{re.sub(r'-[0-9a-f]{8}$', '', path.name)} (uploaded)"
    return f"{path} (folder)"


def is_here(spec: str, root: str) -> bool:
    """Whether a dataset can be read without a download."""
    return spec.startswith("folder:") or downloads.is_downloaded(spec, Path(root))


def here() -> dict[str, str]:
    """Return titles by spec of all datasets that need no download and that the visitor may see."""
    roots = data_roots()
    sets = {spec: title for spec, title in NAMED.items() if is_here(spec, root_of(spec))}
    return sets | {spec: folder_title(spec, roots) for spec in catalog.list_folders() if may_see(spec)}


def may_see(spec: str) -> bool:
    """Whether the visitor may see pictures of a dataset. Without permission to train, only the named public ones."""
    return spec in NAMED or access.may_train()


def stamp(spec: str) -> int:
    """Return a timestamp that changes when class folders are added or removed, or tables beside pictures change."""
    if not spec.startswith("folder:"):
        return 0
    folder = dataset_folder(spec)
    try:
        tables = (path for pattern in ("*.*", "*/*.*") for path in folder.glob(pattern) if is_table(path.name))
        return max(path.stat().st_mtime_ns for path in [folder, *folder.glob("*/"), *folder.glob("*/*/"), *tables])
    except OSError:
        return 0


def digest(spec: str) -> str:
    """Return a digest of names, sizes and times of a folder's files; "" for named datasets, which never change."""
    if not spec.startswith("folder:"):
        return ""
    facts = hashlib.sha256()
    for folder, folders, names in os.walk(dataset_folder(spec)):
        folders.sort()
        for name in sorted(names):
            with suppress(OSError):
                status = os.stat(os.path.join(folder, name))
                facts.update(f"{folder}/{name} {status.st_size} {status.st_mtime_ns}\n".encode("utf-8", "replace"))
    return facts.hexdigest()


def show_list(title: str, lines: Sequence[str], count: int = 0) -> None:
    """Show file names in an expander, if there are any; `count` is their number if `lines` is truncated."""
    if lines:
        with st.expander(f"{title}: {count or len(lines):,}"):
            high: int | Literal["content"] = 160 if len(lines) > 6 else "content"
            st.code("\n".join(map(visible, lines[:LISTED])), language=None, wrap_lines=True, height=high)
