"""Pictures of an archive as a folder of classes, however it was packed."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from vit.data.archive_names import check_class, printable_name, printable_path
from vit.data.folders import TEST_FOLDERS
from vit.errors import InvalidDataset

_LISTED_PICTURES = 20  # pictures of one folder that are left out by name; of more only the number is told


class PackedPicture(NamedTuple):
    """A picture in the pool, with the name it has in the archive."""

    path: tuple[str, ...]
    file: Path
    suffix: str


# --- Folders --------------------------------------------------------------------------------------------------

_Classes = dict[str, list[PackedPicture]]


@dataclass
class _Folder:
    """A folder of the archive as far as pictures lie in it or below."""

    folders: dict[str, "_Folder"] = field(default_factory=dict)
    pictures: list[PackedPicture] = field(default_factory=list)


def arrange(pictures: list[PackedPicture]) -> tuple[dict[str, _Classes], list[str]]:
    """Find the classes.

    Returns:
        the pictures by split ("train", "test" and perhaps "val", or "" for all) and class, in the order of their names;
        and what is in none of them, with the reason.
    """
    root = _Folder()
    for picture in sorted(pictures):
        folder = root
        for part in picture.path[:-1]:
            folder = folder.folders.setdefault(part, _Folder())
        folder.pictures.append(picture)

    while len(max(_splits(root).values(), key=len)) < 2 and len(root.folders) == 1:
        (inner,) = root.folders.values()
        if not inner.folders:
            break
        root = inner
    splits = _splits(root)
    for classes in splits.values():
        for name in list(classes):
            classes[check_class(name)] = classes.pop(name)
    _refuse_unfit(splits)

    used = {picture.file for classes in splits.values() for own in classes.values() for picture in own}
    unused: dict[tuple[str, ...], list[PackedPicture]] = {}
    for picture in sorted(pictures):
        if picture.file not in used:
            unused.setdefault(picture.path[:-1], []).append(picture)
    lines = []
    for path, own in unused.items():
        if len(own) > _LISTED_PICTURES:
            lines.append(f"{printable_path(path)}/: {len(own):,} pictures, in none of the class folders")
        else:
            lines += [f"{printable_path(picture.path)}: in none of the class folders" for picture in own]
    return splits, lines


def _splits(root: _Folder) -> dict[str, _Classes]:
    """Read a folder as train/, test/ and val/ with class folders in each, or else as class folders."""
    named = {name.casefold(): folder for name, folder in root.folders.items()}
    train = _class_folders(named.get("train", _Folder()), unwrap=True)
    if len(train) > 1:
        beside = {name: _class_folders(named.get(name, _Folder()), unwrap=True) for name in TEST_FOLDERS}
        # without classes of train/ its pictures have no labels, as in a competition
        matching = {name: classes for name, classes in beside.items() if set(classes) & set(train)}
        if matching:
            first, *others = matching
            val = {"val": matching[others[0]]} if first == "test" and others else {}
            return {"train": train, "test": matching[first], **val}
    return {"": train if len(train) > 1 else _class_folders(root)}


def _class_folders(root: _Folder, unwrap: bool = False) -> _Classes:
    """Folders that hold pictures, or that each hold one folder of pictures, the same name in all."""
    direct = {name: folder.pictures for name, folder in root.folders.items() if folder.pictures}
    if direct:
        return direct
    inner = {name for folder in root.folders.values() for name in folder.folders}
    if len(root.folders) > 1 and len(inner) == 1:
        nested = {name: next(iter(folder.folders.values())).pictures for name, folder in root.folders.items()}
        if all(nested.values()):
            return nested
    if unwrap and len(root.folders) == 1:
        return _class_folders(next(iter(root.folders.values())))
    return {}


def _refuse_unfit(splits: dict[str, _Classes]) -> None:
    """Refuse what cannot be trained on."""
    classes = splits["train"] if "train" in splits else splits[""]
    if len(classes) < 2:
        raise InvalidDataset(
            f"Class folders with readable pictures in the archive: {len(classes)}. A classifier needs at least two: "
            "pack one folder of pictures per class."
        )
    strangers = sorted({name for split in splits.values() for name in split} - set(classes))
    if strangers:
        names = ", ".join(printable_name(name) for name in strangers[:10])
        raise InvalidDataset(f"The archive has classes for testing that train/ lacks: {names}. Add or remove them.")
    if "test" not in splits and all(len(own) < 2 for own in classes.values()):
        raise InvalidDataset("The archive has one picture per class, and none to test on. Add more.")


def place_pictures(splits: dict[str, _Classes], folder: Path) -> None:
    """Move pictures from the pool into their class folders, numbered."""
    for split, classes in splits.items():
        for name, pictures in classes.items():
            home = folder / split / name
            home.mkdir(parents=True)
            for number, picture in enumerate(pictures):
                picture.file.rename(home / f"{number:06}{picture.suffix}")
