"""Trees of pictures, in an archive or on disk, read lazily."""

import os
from collections.abc import Collection, Iterable, Mapping
from functools import cached_property
from os.path import splitext
from pathlib import Path
from typing import Literal

from vit.data.companions import companions_among, parse
from vit.data.file_names import Parts, is_ignored, is_picture, is_table
from vit.untrusted import spend


class _Folder:
    """What trees have in common.

    Attributes:
        path: names of the folders from the root to this one.
        folders: subfolders.
        all_pictures, tables, others: names of its files.
    """

    path: Parts
    folders: Mapping[str, "Tree"]
    all_pictures: list[str]

    @cached_property
    def companions(self) -> dict[str, str]:
        """Pictures that accompany others in this folder, see `companions_among`."""
        return companions_among(self.all_pictures, self.path[-1] if self.path else "")

    @cached_property
    def pictures(self) -> list[str]:
        """Names of the other pictures."""
        return [name for name in self.all_pictures if name not in self.companions]

    @cached_property
    def companion_folders(self) -> set[str]:
        """Subfolders of pictures that accompany those beside them: masks/ beside images/, or lung masks/."""
        parsed = {name: parse(name) for name in self.folders}
        if not any(one.words for one in parsed.values()):
            return set()
        beside = [path for name, one in parsed.items() if not one.words for path in pictures_below(self.folders[name])]
        plain = stems([*beside, *((name,) for name in self.pictures)])
        return {
            name
            for name, one in parsed.items()
            if one.words and plain and (not one.rest or stems(pictures_below(self.folders[name])) <= plain)
        }


def stems(pictures: Iterable[Parts]) -> set[Parts]:
    """Return what distinguishes the names of pictures, and those of the pictures that accompany them."""
    return {parse(splitext(path[-1])[0]).rest for path in pictures}


class PackedTree(_Folder):
    """A folder in an archive; complete before it is read."""

    def __init__(self, path: Parts = ()):
        self.path = path
        self.folders: dict[str, PackedTree] = {}
        self.all_pictures: list[str] = []
        self.tables: list[str] = []
        self.others: list[str] = []

    @property
    def holds_pictures(self) -> bool:
        """Whether the folder contains pictures directly."""
        return bool(self.all_pictures)

    def add(self, path: Parts, kind: Literal["all_pictures", "tables", "others"]) -> None:
        """Add a file below this folder."""
        folder = self
        for name in path[:-1]:
            if name not in folder.folders:
                folder.folders[name] = PackedTree((*folder.path, name))
            folder = folder.folders[name]
        getattr(folder, kind).append(path[-1])


class DiskTree(_Folder):
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
    def folders(self) -> dict[str, "DiskTree"]:  # type: ignore[override]
        """Subfolders."""
        return self._entries[0]

    @property
    def all_pictures(self) -> list[str]:  # type: ignore[override]
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
            return bool(self.all_pictures)
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
        if all_of_them or name not in folder.companion_folders:
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


def companions_below(folder: Tree) -> dict[Parts, str]:
    """Map all pictures in a folder and below that accompany others to the word that says so; "" if a folder does."""
    found = {(*folder.path, name): word for name, word in folder.companions.items()}
    for name, inner in folder.folders.items():
        found |= companions_below(inner)
        if name in folder.companion_folders:
            found |= dict.fromkeys(pictures_below(inner), "")
    return found
