"""Arrange the pictures of an archive in class folders, whatever its structure."""

import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

from vit.data.archives.archive_names import check_class, folder_name
from vit.data.file_names import Parts
from vit.data.layouts.class_levels import nesting
from vit.data.layouts.class_names import FILE
from vit.data.layouts.folder_structure import pictures_of
from vit.data.layouts.layout import find_layout, left_out, no_test_pictures_error, no_training_pictures_error
from vit.data.picture_trees import PackedTree
from vit.errors import InvalidDataset


class PackedPicture(NamedTuple):
    """A picture in the pool, with its path in the archive, and the folders around it within its class."""

    path: tuple[str, ...]
    file: Path
    suffix: str
    inner: Parts = ()


_Classes = dict[str, list[PackedPicture]]


class ArrangedPictures(NamedTuple):
    """Pictures of an archive in order, by split ("train", "test" and perhaps "val", or "" for all) and class.

    Attributes:
        splits: the pictures.
        unused: pictures in no split, with the reason.
        notes: assumptions, for people.
        tables: tables that named classes.
    """

    splits: dict[str, _Classes]
    unused: list[str]
    notes: tuple[str, ...]
    tables: tuple[Parts, ...]


def arrange(
    pictures: Sequence[PackedPicture], tables: Iterable[Parts], others: Iterable[Parts], read: Callable[[Parts], bytes]
) -> ArrangedPictures:
    """Determine the classes and splits.

    Args:
        tables: paths in the archive of files that may name classes.
        others: paths of files that are neither, or of pictures that cannot be read.
        read: returns the content of one; raises OSError or Unreadable.

    Raises:
        InvalidDataset: fewer than two classes, it is ambiguous which folders are the classes, or several splits without
            one for training.
    """
    by_path = {picture.path: picture for picture in pictures}
    root = PackedTree()
    for path in sorted(by_path):
        root.add(path, "all_pictures")
    for path in sorted(tables):
        root.add(path, "tables")
    for path in others:
        root.add(path, "others")
    layout = find_layout(root, read, "The archive")
    found = layout.splits
    if set(found) == {"test"}:  # a single split is treated like any folder around the classes
        found = {"": found["test"]}
    if "test" in found and "train" not in found:
        raise no_training_pictures_error("The archive")
    splits: dict[str, _Classes] = {}
    for split, own in found.items():
        classes = splits.setdefault("val" if split == "validation" else split, {})
        for name, content in own.items():
            inner = {path: names[1:] for names, some in nesting(name, content) for path in some}
            nested = (by_path[path]._replace(inner=inner[path]) for path in pictures_of(content))
            classes.setdefault(check_class(name), []).extend(nested)
    if "test" not in splits and all(len(own) < 2 for own in splits[""].values()):
        raise no_test_pictures_error("The archive", layout)
    return ArrangedPictures(splits, left_out(root, layout), layout.notes, layout.tables)


def _reads_alike(places: Iterable[Parts], depth: int) -> bool:
    """Whether nested pictures are read again with the folders at this depth as classes, and all names are valid."""
    root = PackedTree()
    try:
        for path in places:
            root.add((*path[:depth], *map(check_class, path[depth:])), "all_pictures")
        splits = find_layout(root, lambda _: b"", "").splits
    except InvalidDataset:
        return False
    read = {path: name for own in splits.values() for name, one in own.items() for path in pictures_of(one)}
    return read == {path: path[depth] for path in places}


def place_pictures(splits: dict[str, _Classes], folder: Path) -> None:
    """Move pictures from the pool into their class folders, with numbers as names, and in their folders within these.

    If the nested folders are unclear by themselves, without tables beside them, all lie in the class folder.
    """
    names = {name: folder_name(name) for classes in splits.values() for name in classes}
    if len({own.casefold() for own in names.values()}) < len(names):  # equal names on some file systems
        names = {name: f"{own} {number}" for number, (name, own) in enumerate(sorted(names.items()), 1)}
    places = {
        (*[split] * bool(split), names[name], *picture.inner, f"{number:06}{picture.suffix}"): picture
        for split, classes in splits.items()
        for name, pictures in classes.items()
        for number, picture in enumerate(pictures)
    }
    depth = int("" not in splits)
    nested = any(picture.inner for picture in places.values()) and _reads_alike(places, depth)
    for path, picture in places.items():
        file = folder.joinpath(*(path if nested else (*path[: depth + 1], path[-1])))
        file.parent.mkdir(parents=True, exist_ok=True)
        picture.file.rename(file)
    if renamed := {own: name for name, own in names.items() if own != name}:
        (folder / FILE).write_text(json.dumps(renamed, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
