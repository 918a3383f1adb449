"""Folders of pictures, in an archive or on the disk, read no further than is asked."""

import os
from functools import cached_property
from pathlib import Path

from vit.data.file_names import Parts, is_ignored, is_picture, is_table

# Folders that come beside or within classes and hold none of their pictures.
NO_PICTURES = {
    "mask", "masks", "annotation", "annotations", "segmentation", "segmentations", "groundtruth", "ground_truth", "gt",
    "trimaps", "thumbs", "thumbnails", "label", "labels",
}  # fmt: skip


class PackedTree:
    """A folder in an archive.

    Attributes:
        path: names of the folders from the root to this one.
        folders: those within it.
        pictures, tables: names of files in it.
    """

    def __init__(self, path: Parts = ()):
        self.path = path
        self.folders: dict[str, PackedTree] = {}
        self.pictures: list[str] = []
        self.tables: list[str] = []

    @property
    def holds_pictures(self) -> bool:
        """Whether there are pictures in it."""
        return bool(self.pictures)

    def add(self, path: Parts, table: bool = False) -> None:
        """Take in a file below this folder."""
        folder = self
        for name in path[:-1]:
            folder = folder.folders.setdefault(name, PackedTree((*folder.path, name)))
        (folder.tables if table else folder.pictures).append(path[-1])


class DiskTree:
    """A folder on the disk, as `PackedTree`; links to a folder around them are passed over."""

    def __init__(self, place: Path, path: Parts = (), around: tuple[str, ...] = ()):
        self.place, self.path, self._around = place, path, around

    @cached_property
    def _entries(self) -> tuple[dict[str, "DiskTree"], list[str], list[str]]:
        folders: dict[str, DiskTree] = {}
        pictures, tables = [], []
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
        return folders, pictures, tables

    @property
    def folders(self) -> dict[str, "DiskTree"]:
        """Those within it."""
        return self._entries[0]

    @property
    def pictures(self) -> list[str]:
        """Their names, sorted."""
        return self._entries[1]

    @property
    def tables(self) -> list[str]:
        """Their names, sorted."""
        return self._entries[2]

    @cached_property
    def holds_pictures(self) -> bool:
        """Whether there are pictures in it; a large folder is not read to its end for that."""
        if "_entries" in self.__dict__:
            return bool(self.pictures)
        with os.scandir(self.place) as entries:
            return any(is_picture(entry.name) and not entry.is_dir() for entry in entries)


Tree = PackedTree | DiskTree


def pictures_below(folder: Tree, all_of_them: bool = True) -> list[Parts]:
    """Paths of the pictures in a folder and below, sorted.

    Args:
        all_of_them: also those in folders of masks and the like, which are no pictures of a class.
    """
    found = [(*folder.path, name) for name in folder.pictures]
    for name, inner in folder.folders.items():
        if all_of_them or name.casefold() not in NO_PICTURES:
            found += pictures_below(inner, all_of_them)
    return sorted(found)


def tables_below(folder: Tree) -> list[Parts]:
    """Paths of the tables in a folder and below."""
    found = [(*folder.path, name) for name in folder.tables]
    for inner in folder.folders.values():
        found += tables_below(inner)
    return found
