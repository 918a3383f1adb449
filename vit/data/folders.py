"""Folders of pictures, one folder per class, as files of three splits; nothing is opened here."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from vit.data.class_names import names_of
from vit.data.splits import set_aside, test_count, validation_count
from vit.errors import InvalidDataset

PICTURES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".avif", ".heic", ".heif"}
VALIDATION_FOLDERS = ("val", "valid", "validation")
TEST_FOLDERS = ("test", *VALIDATION_FOLDERS)  # the first that is there is for testing


class Files(NamedTuple):
    """What a folder of class folders holds: (file, label) of each split, nothing of it opened.

    Attributes:
        classes: their names for people, see `vit.data.class_names`, in the order of their folders.
    """

    classes: tuple[str, ...]
    train: list[tuple[Path, int]]
    validation: list[tuple[Path, int]]
    test: list[tuple[Path, int]]


def list_files(path: Path, only_test: bool = False) -> Files:
    """Find the pictures of a folder of class folders, by their names only.

    Class folders may lie directly in `path`: then a tenth of each class is for testing, and of the rest a part for
    validation. They may lie below train/ and test/ (or val/, valid/, validation/, where there is no test/): then a part
    of train/ is for validation. Or below train/, val/ and test/. A part is 5 % of a class and at least 10 pictures, but
    no more than a fifth. All are chosen by a fixed seed: the same files give the same splits.

    Args:
        only_test: list test pictures only, and be content without others.

    Raises:
        InvalidDataset: no such folder, fewer than two classes, a split that is missing or does not fit the others.
    """
    if not path.is_dir():
        raise InvalidDataset(f"There is no folder {str(path)!r}. Name one that holds a folder of pictures per class.")
    train_root = path / "train"
    beside = [path / name for name in TEST_FOLDERS if class_folders(path / name)]
    test_root = beside[0] if beside else None
    validation_root = beside[1] if len(beside) > 1 and beside[0].name == "test" else None
    if class_folders(train_root) and test_root is None:
        raise InvalidDataset(
            f"{str(path)!r} has train/ but no test/ or val/ beside it. Add one, or drop the train/ level."
        )
    if test_root and not class_folders(train_root):
        if not only_test:
            raise InvalidDataset(f"{str(path)!r} has {test_root.name}/ but no class folders in train/. Add them.")
        train_root = test_root
    root = train_root if test_root else path
    classes = class_folders(root)
    if len(classes) < 2:
        raise InvalidDataset(
            f"Folders with pictures in {str(root)!r}: {len(classes)}. A classifier needs at least two, one per class."
        )
    for other in filter(None, (validation_root, test_root)):
        if strangers := sorted(set(class_folders(other)) - set(classes)):
            raise InvalidDataset(f"{str(other)!r} has classes that train/ lacks: {', '.join(strangers)}.")
    if test_root:
        test = _labelled(test_root, classes)
        train = [] if only_test else _labelled(root, classes)
    else:
        train, test = _split_off(_labelled(root, classes), test_count)
        if not test:
            raise InvalidDataset(f"{str(path)!r} has one picture per class, and none to test on. Add more.")
    names = names_of(path, classes)
    if only_test:
        return Files(names, [], [], test)
    if validation_root:
        validation = _labelled(validation_root, classes)
    else:
        train, validation = _split_off(train, validation_count)
    return Files(names, train, validation, test)


def folders_of_classes(path: Path) -> tuple[str, ...]:
    """Names of the class folders of a dataset, in the order of its classes; none where it is no dataset."""
    return class_folders(path / "train") or class_folders(path)


def class_folders(root: Path) -> tuple[str, ...]:
    """Names of the folders that hold pictures; none where `root` is no folder."""
    if not root.is_dir():
        return ()
    folders = (entry for entry in root.iterdir() if entry.is_dir() and not entry.name.startswith("."))
    return tuple(sorted(folder.name for folder in folders if _holds_pictures(folder)))


def _holds_pictures(folder: Path) -> bool:
    with os.scandir(folder) as entries:
        return any(_is_picture(Path(entry.name)) for entry in entries)


def _is_picture(path: Path) -> bool:
    return path.suffix.lower() in PICTURES and not path.name.startswith(".")


def _picture_files(folder: Path) -> list[Path]:
    return sorted(filter(_is_picture, folder.iterdir()))


def _labelled(root: Path, classes: Sequence[str]) -> list[tuple[Path, int]]:
    return [
        (path, label)
        for label, name in enumerate(classes)
        if (root / name).is_dir()
        for path in _picture_files(root / name)
    ]


_Labelled = list[tuple[Path, int]]


def _split_off(files: _Labelled, count: Callable[[int], int]) -> tuple[_Labelled, _Labelled]:
    """Set some files of each class aside: those that are left, and those."""
    chosen = set(set_aside([label for _, label in files], count))
    return (
        [file for index, file in enumerate(files) if index not in chosen],
        [file for index, file in enumerate(files) if index in chosen],
    )
