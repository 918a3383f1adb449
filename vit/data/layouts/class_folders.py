"""Arrange the pictures of an archive in class folders, whatever its structure."""

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from itertools import product, takewhile
from pathlib import Path
from typing import NamedTuple

from vit.data import own_names
from vit.data.archives.archive_names import check_class, stored_names
from vit.data.file_names import Parts, is_picture
from vit.data.layouts.class_levels import nesting
from vit.data.layouts.class_names import FILE
from vit.data.layouts.folder_structure import pictures_of
from vit.data.layouts.layout import find_layout, left_out, no_test_pictures_error, no_training_pictures_error
from vit.data.picture_trees import PackedTree
from vit.errors import InvalidDataset


class PackedPicture(NamedTuple):
    """A picture in the pool.

    Attributes:
        path: its place in the archive.
        suffix: that of its format.
        name: its path as the archive states it.
        inner: the folders around it within its class.
    """

    path: Parts
    file: Path
    suffix: str
    name: str
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
    by_path: dict[Parts, list[PackedPicture]] = {}  # an archive may have several files of the same name
    for picture in pictures:
        by_path.setdefault(picture.path, []).append(picture)
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
            nested = (one._replace(inner=inner[path]) for path in pictures_of(content) for one in by_path[path])
            classes.setdefault(check_class(name), []).extend(nested)
    if "test" not in splits and all(len(own) < 2 for own in splits[""].values()):
        raise no_test_pictures_error("The archive", layout)
    return ArrangedPictures(splits, left_out(root, layout), layout.notes, layout.tables)


def _reads_alike(places: Collection[Parts], depth: int) -> bool:
    """Whether pictures are read again with the folders at this depth as classes."""
    root = PackedTree()
    for path in places:
        root.add(path, "all_pictures")
    try:
        splits = find_layout(root, lambda _: b"", "").splits
    except InvalidDataset:
        return False
    read = {path: name for own in splits.values() for name, one in own.items() for path in pictures_of(one)}
    return read == {path: path[depth] for path in places}


def place_pictures(splits: dict[str, _Classes], folder: Path) -> None:
    """Move pictures from the pool into their class folders under their own names, and in their folders within these.

    If the nested folders are unclear by themselves, without tables beside them, all lie in the class folder. If the
    names make it unclear, such as that of a mask, pictures get numbers. Names and classes that differ from those in the
    archive are stored beside the classes.
    """
    pictures = [(split, name, one) for split, own in splits.items() for name, every in own.items() for one in every]
    try:
        pictures = [
            (split, name, one._replace(inner=tuple(map(check_class, one.inner)))) for split, name, one in pictures
        ]
    except InvalidDataset:  # the nested folders cannot be classes
        pictures = [(split, name, one._replace(inner=())) for split, name, one in pictures]
    names = sorted({name for _, own, one in pictures for name in (own, *one.inner)})
    folders = dict(zip(names, stored_names(names), strict=True))
    for nested, numbered in product((True, False), (False, True)):
        places = _places(pictures, folders, nested, numbered)
        if _reads_alike(places, int("" not in splits)):
            break
    for path, picture in places.items():
        file = folder.joinpath(*path)
        file.parent.mkdir(parents=True, exist_ok=True)
        picture.file.rename(file)
    if renamed := {own: name for name, own in folders.items() if own != name}:
        (folder / FILE).write_text(json.dumps(renamed, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    levels = zip(*(picture.path[:-1] for picture in places.values()), strict=False)
    around = "".join(f"{names[0]}/" for names in takewhile(lambda names: len({*names}) == 1, levels))
    own = {"/".join(path): one.name.removeprefix("./").removeprefix(around) for path, one in places.items()}
    own_names.store(folder, own)


def _places(
    pictures: Iterable[tuple[str, str, PackedPicture]], folders: Mapping[str, str], nested: bool, numbered: bool
) -> dict[Parts, PackedPicture]:
    """Return where pictures are stored."""
    together: dict[Parts, list[PackedPicture]] = {}
    taken = [*filter(is_picture, folders.values())]  # names that a picture could have, too
    for split, name, picture in pictures:
        inner = (folders[own] for own in picture.inner if nested)
        together.setdefault((*[split] * bool(split), folders[name], *inner), []).append(picture)
    places: dict[Parts, PackedPicture] = {}
    for path, own in together.items():
        files = [name if is_picture(name := one.path[-1]) else name + one.suffix for one in own]
        stored = [f"{number:06}{one.suffix}" for number, one in enumerate(own)] if numbered else files
        places |= {(*path, name): one for name, one in zip(stored_names(stored, taken), own, strict=True)}
    return places
