"""Trees of pictures, in an archive or on disk, read lazily."""

import os
from collections.abc import Collection
from functools import cached_property
from pathlib import Path
from typing import Literal

from vit.data.file_names import Parts, is_ignored, is_picture, is_table
from vit.untrusted import spend

# Folders beside or within classes that contain none of their pictures.
NO_PICTURES = {
    "mask", "masks", "annotation", "annotations", "segmentation", "segmentations", "groundtruth", "ground_truth", "gt",
    "trimaps", "thumbs", "thumbnails", "label", "labels",
}  # fmt: skip


class PackedTree:
    """A folder in an archive.

    Attributes:
        path: names of the folders from the root to this one.
        folders: subfolders.
        pictures, tables, others: names of its files.
    """

    def __init__(self, path: Parts = ()):
        self.path = path
        self.folders: dict[str, PackedTree] = {}
        self.pictures: list[str] = []
        self.tables: list[str] = []
        self.others: list[str] = []

    @property
    def holds_pictures(self) -> bool:
        """Whether the folder contains pictures directly."""
        return bool(self.pictures)

    def add(self, path: Parts, kind: Literal["pictures", "tables", "others"]) -> None:
        """Add a file below this folder."""
        folder = self
        for name in path[:-1]:
            if name not in folder.folders:
                folder.folders[name] = PackedTree((*folder.path, name))
            folder = folder.folders[name]
        getattr(folder, kind).append(path[-1])


class DiskTree:
    """A folder on disk, with the interface of `PackedTree`; symbolic links to parent folders are skipped."""

    def __init__(self, place: Path, path: Parts = (), around: tuple[str, ...] = ()):
        self.place, self.path, self._around = place, path, around

    @cached_property
    def _entries(self) -> tuple[dict[str, "DiskTree"], list[str], list[str], list[str]]:
        spend()
        folders: dict[str, DiskTree] = {}
        pictures, tables, others = [], [], []
        around = (*self._around, os.path.realpath(self.place))
        with os.scandir(self.place) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if is_ignored(entry.name):
                    continue
                if entry.is_dir():
                    if not entry.is_symlink() or os.path.realpath(entry.path) not in around:
                        inner = DiskTree(self.place / entry.name, (*self.path, entry.name), around)
                        folders[entry.name] = inner
                elif is_picture(entry.name):
                    pictures.append(entry.name)
                elif is_table(entry.name):
                    tables.append(entry.name)
                else:
                    others.append(entry.name)
        return folders, pictures, tables, others

    @property
    def folders(self) -> dict[str, "DiskTree"]:
        """Subfolders."""
        return self._entries[0]

    @property
    def pictures(self) -> list[str]:
        """Names of pictures, sorted."""
        return self._entries[1]

    @property
    def tables(self) -> list[str]:
        """Names of tables, sorted."""
        return self._entries[2]

    @property
    def others(self) -> list[str]:
        """Names of other files, sorted."""
        return self._entries[3]

    @cached_property
    def holds_pictures(self) -> bool:
        """Whether the folder contains pictures directly; stops at the first one."""
        if "_entries" in self.__dict__:
            return bool(self.pictures)
        with os.scandir(self.place) as entries:
            return any(is_picture(entry.name) and not entry.is_dir() for entry in entries)


Tree = PackedTree | DiskTree


def pictures_below(folder: Tree, all_of_them: bool = True) -> list[Parts]:
    """Return the paths of all pictures in a folder and below, sorted.

    Args:
        all_of_them: include folders of masks and the like, which are not pictures of a class.
    """
    spend()
    found = [(*folder.path, name) for name in folder.pictures]
    for name, inner in folder.folders.items():
        if all_of_them or name.casefold() not in NO_PICTURES:
            found += pictures_below(inner, all_of_them)
    return sorted(found)


def tables_below(folder: Tree, without: Collection[Parts] = ()) -> list[Parts]:
    """Return the paths of all tables in a folder and below.

    Args:
        without: folders that are not searched.
    """
    found = [(*folder.path, name) for name in folder.tables]
    for inner in folder.folders.values():
        if inner.path not in without:
            found += tables_below(inner, without)
    return found


def others_below(folder: Tree) -> list[Parts]:
    """Return the paths of all files in a folder and below that are neither pictures nor tables."""
    found = [(*folder.path, name) for name in folder.others]
    for inner in folder.folders.values():
        found += others_below(inner)
    return found
