"""List a folder's pictures in three splits, without opening any picture."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from vit.data.file_names import PICTURES as PICTURES
from vit.data.file_names import Parts
from vit.data.layouts.class_levels import choose_level
from vit.data.layouts.class_names import names_of
from vit.data.layouts.folder_structure import Content, Layout, has_splits, pictures_of
from vit.data.layouts.layout import find_layout, left_out, no_test_pictures_error, no_training_pictures_error
from vit.data.packed.index import files_of
from vit.data.picture_trees import DiskTree, walk
from vit.data.splits import hold_out, test_count, validation_count
from vit.data.tables import MOST_BYTES
from vit.errors import InvalidDataset
from vit.paths import split_part
from vit.untrusted import counted, read_bytes

UNLABELLED = "unlabelled"  # the class of pictures in a folder without classes


class Files(NamedTuple):
    """The pictures of a folder as (file, label) per split.

    Attributes:
        classes: display names, see `vit.data.layouts.class_names`, in the order of their folders.
        left_out: pictures in no class or of other formats, for people.
        notes: assumptions about the folder, for people.
        folders: names of the classes without display names: their folders' names, or those in a table.
        levels: the same by level of nested folders, of which any can be the classes.
    """

    classes: tuple[str, ...]
    train: list[tuple[Path, int]]
    validation: list[tuple[Path, int]]
    test: list[tuple[Path, int]]
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    folders: tuple[str, ...] = ()
    levels: tuple[tuple[str, ...], ...] = ()


def list_files(path: Path, only_test: bool = False) -> Files:
    """List the pictures of a folder of class folders, by names only.

    Class folders may be directly in `path`: then a tenth of each class is for testing, and a part of the rest for
    validation. They may be below folders for training and testing (or validation instead of testing), with names that
    `vit.data.layouts.split_names` knows: then a part of the former is for validation. Or they may be below three such
    folders. A part is 5% of a class and at least 10 pictures, but no more than a fifth. All are chosen with a fixed
    seed: the same files give the same splits. Without class folders, a table beside the pictures or the file names
    determine the classes, see `vit.data.layouts.labelled_files`.

    Args:
        path: the folder, or PATH#2 if the classes are the folders within the class folders, and so on.
        only_test: list test pictures only, and do not require others.

    Raises:
        InvalidDataset: no such folder or level, fewer than two classes, a split that is missing or does not match the
            others.
    """
    path, level = split_part(path)
    if not path.is_dir():
        raise InvalidDataset(f"There is no folder {str(path)!r}. Name one that holds a folder of pictures per class.")
    tree = DiskTree(path)
    layout, levels = choose_level(_layout(path, tree), level, repr(str(path)))
    splits, classes = layout.splits, layout.classes
    if "test" in splits and "train" not in splits and not only_test:
        raise no_training_pictures_error(repr(str(path)))
    train = _labelled(path, splits.get("train", splits.get("", {})), classes)
    test = _labelled(path, splits.get("test", {}), classes)
    if not test:
        train, test = _split_off(train, test_count)
        if not test:
            raise no_test_pictures_error(repr(str(path)), layout)
    names = names_of(path, classes)
    unused = tuple(left_out(tree, layout))
    if only_test:
        return Files(names, [], [], test, unused, layout.notes, classes, levels)
    if "validation" in splits:
        validation = _labelled(path, splits["validation"], classes)
    else:
        train, validation = _split_off(train, validation_count)
    return Files(names, train, validation, test, unused, layout.notes, classes, levels)


def list_unlabelled(path: Path) -> Files:
    """List all pictures in a folder and below as test pictures of one class, sorted by path."""
    found = list(walk(DiskTree(path))) if path.is_dir() else []
    pictures = sorted((*inner.path, name) for inner in found for name in inner.all_pictures)
    others = sum(len(inner.tables) + len(inner.others) for inner in found)
    verb = "is no picture and was" if others == 1 else "are no pictures and were"
    notes = (f"{counted(others, 'file')} in {str(path)!r} {verb} skipped.",) if others else ()
    return Files((UNLABELLED,), [], [], [(path.joinpath(*parts), 0) for parts in pictures], notes=notes)


def _layout(path: Path, tree: DiskTree) -> Layout:
    def read(table: Parts) -> bytes:
        return read_bytes(path.joinpath(*table), MOST_BYTES)

    return find_layout(tree, read, repr(str(path)))


def folders_of_classes(path: Path) -> tuple[str, ...]:
    """Return the class names of a dataset from its folders or table, in order; empty if it is not a dataset.

    Args:
        path: the folder, or PATH#LEVEL.
    """
    path, level = split_part(path)
    try:
        return choose_level(_layout(path, DiskTree(path)), level, "")[0].classes if path.is_dir() else ()
    except InvalidDataset:
        return ()


def has_classes(path: Path) -> bool:
    """Whether a folder is a dataset itself, not just the parent of one."""
    try:
        layout = _layout(path, DiskTree(path))
    except InvalidDataset:
        return False
    contents = [content for classes in layout.splits.values() for content in classes.values()]
    paths = [path for own in contents for path in (own if isinstance(own, list) else [own.path])]
    return len({path[0] for path in (*paths, *layout.tables)}) > 1


def is_packed(path: Path) -> bool:
    """Whether a folder's pictures are packed in tar and parquet files, see `vit.data.packed`.

    Args:
        path: the folder, or PATH#LEVEL.
    """
    path, _ = split_part(path)
    return not (class_folders(path / "train") or class_folders(path)) and bool(files_of(path))


def class_folders(root: Path) -> tuple[str, ...]:
    """Return the names of subfolders that contain pictures directly; empty if `root` is not a folder."""
    tree = DiskTree(root)
    return tuple(name for name, folder in tree.folders.items() if folder.holds_pictures) if root.is_dir() else ()


def is_split(path: Path) -> bool:
    """Whether a folder has subfolders for training and testing, with class folders in each."""
    return has_splits(DiskTree(path))


def _labelled(path: Path, own: dict[str, Content], classes: Sequence[str]) -> list[tuple[Path, int]]:
    return [
        (path.joinpath(*picture), label)
        for label, name in enumerate(classes)
        if name in own
        for picture in pictures_of(own[name])
    ]


_Labelled = list[tuple[Path, int]]


def _split_off(files: _Labelled, count: Callable[[int], int]) -> tuple[_Labelled, _Labelled]:
    """Split off some files of each class; return the remaining ones, and those."""
    chosen = set(hold_out([label for _, label in files], count))
    return (
        [file for index, file in enumerate(files) if index not in chosen],
        [file for index, file in enumerate(files) if index in chosen],
    )
