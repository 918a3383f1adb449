"""Trees of pictures, in an archive or on disk, read lazily."""

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import cached_property
from os.path import splitext
from pathlib import Path
from typing import Literal

from vit.data.file_names import Parts, is_ignored, is_picture, is_table
from vit.data.layouts.companions import NO_PICTURES, companions_among, parse, parse_folder
from vit.untrusted import spend


class Tree:
    """A folder.

    Attributes:
        path: names of the folders from the root to this one.
        folders: subfolders.
        all_pictures, tables, others: names of its files.
    """

    path: Parts
    folders: Mapping[str, "Tree"]
    all_pictures: list[str]
    tables: list[str]
    others: list[str]

    @property
    def holds_pictures(self) -> bool:
        """Whether the folder contains pictures directly."""
        return bool(self.all_pictures)

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
        """Subfolders whose pictures accompany those beside them: masks/ beside images/, or lung masks/."""
        marked = {name: own for name in self.folders if (own := parse_folder(name)).words}
        if not marked:
            return set()
        beside = [path for name in self.folders.keys() - marked for path in pictures_below(self.folders[name])]
        plain = stems([*beside, *((name,) for name in self.pictures)])
        return {
            name
            for name, own in marked.items()
            if plain
            if (not own.rest and {*own.words} <= NO_PICTURES) or stems(pictures_below(self.folders[name])) <= plain
        }


def stems(pictures: Iterable[Parts]) -> set[Parts]:
    """Return what distinguishes the names of pictures; equal for a picture and those that accompany it."""
    return {parse(splitext(path[-1])[0]).rest for path in pictures}


class PackedTree(Tree):
    """A folder in an archive; complete before it is read."""

    def __init__(self, path: Parts = ()):
        self.path = path
        self.folders: dict[str, PackedTree] = {}
        self.all_pictures, self.tables, self.others = [], [], []

    def add(self, path: Parts, kind: Literal["all_pictures", "tables", "others"]) -> None:
        """Add a file below this folder."""
        folder = self
        for name in path[:-1]:
            if name not in folder.folders:
                folder.folders[name] = PackedTree((*folder.path, name))
            folder = folder.folders[name]
        getattr(folder, kind).append(path[-1])


class DiskTree(Tree):
    """A folder on disk; symbolic links to parent folders are skipped."""

    def __init__(self, place: Path, path: Parts = (), around: tuple[str, ...] = ()):
        self.place, self.path, self._around = place, path, around

    def __getattr__(self, name: str) -> object:  # lists the folder when its content is first used
        if name not in ("folders", "all_pictures", "tables", "others"):
            raise AttributeError(name)
        spend()
        folders, pictures, tables, others = dict[str, DiskTree](), list[str](), list[str](), list[str]()
        around = (*self._around, os.path.realpath(self.place))
        with os.scandir(self.place) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if is_ignored(entry.name):
                    continue
                if entry.is_dir():
                    if not entry.is_symlink() or os.path.realpath(entry.path) not in around:
                        folders[entry.name] = DiskTree(self.place / entry.name, (*self.path, entry.name), around)
                else:
                    kind = pictures if is_picture(entry.name) else tables if is_table(entry.name) else others
                    kind.append(entry.name)
        self.folders, self.all_pictures, self.tables, self.others = folders, pictures, tables, others
        return self.__dict__[name]

    @cached_property
    def holds_pictures(self) -> bool:
        """Whether the folder contains pictures directly; stops at the first one."""
        if "all_pictures" in self.__dict__:
            return bool(self.all_pictures)
        with os.scandir(self.place) as entries:
            return any(is_picture(entry.name) and not entry.is_dir() for entry in entries)


def walk(folder: Tree, enter: Callable[[Tree, str], bool] = lambda folder, name: True) -> Iterator[Tree]:
    """Yield a folder and those below it.

    Args:
        enter: whether to visit a folder's subfolder of some name.
    """
    spend()
    yield folder
    for name, inner in folder.folders.items():
        if enter(folder, name):
            yield from walk(inner, enter)


def pictures_below(folder: Tree, all_of_them: bool = True) -> list[Parts]:
    """Return the paths of all pictures in a folder and below, sorted, without those that accompany others beside them.

    Args:
        all_of_them: include folders of pictures that accompany others.
    """
    found = walk(folder, lambda folder, name: all_of_them or name not in folder.companion_folders)
    return sorted((*inner.path, name) for inner in found for name in inner.pictures)


def tables_below(folder: Tree, without: Collection[Parts] = ()) -> list[Parts]:
    """Return the paths of all tables in a folder and below.

    Args:
        without: folders that are not searched.
    """
    found = walk(folder, lambda folder, name: (*folder.path, name) not in without)
    return [(*inner.path, name) for inner in found for name in inner.tables]


def others_below(folder: Tree) -> list[Parts]:
    """Return the paths of all files in a folder and below that are neither pictures nor tables."""
    return [(*inner.path, name) for inner in walk(folder) for name in inner.others]


def companions_below(folder: Tree) -> dict[Parts, str]:
    """Map all pictures in a folder and below that accompany others to the word that says so; "" if a folder does."""
    found = {(*inner.path, name): word for inner in walk(folder) for name, word in inner.companions.items()}
    for inner in walk(folder):
        for name in inner.companion_folders:
            found |= dict.fromkeys(pictures_below(inner.folders[name]), "")
    return found
