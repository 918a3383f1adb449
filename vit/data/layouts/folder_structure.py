"""Find classes and splits by the structure and names of folders alone.

A class is a folder of pictures, including those in its subfolders. Class folders may lie in split folders, and all of
them in folders that hold nothing else. If two levels repeat the same names, the classes are ambiguous: `from_folders`
raises.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from vit.data.file_names import Parts, printable_name
from vit.data.layouts.split_names import SplitName, split_name, without_split
from vit.data.picture_trees import Tree, pictures_below
from vit.errors import InvalidDataset
from vit.untrusted import brief_list, spend

Content = Tree | list[Parts]  # of a class: its folder including subfolders, or a list of pictures
Classes = dict[str, Content]


class Layout(NamedTuple):
    """Classes by split.

    Attributes:
        splits: classes by split, with the keys "train", "test" and perhaps "validation"; without "train" if there is
            nothing to train on; only "" if the data has no splits.
        notes: assumptions, for people.
        tables: those that name classes.
    """

    splits: dict[str, Classes]
    notes: tuple[str, ...] = ()
    tables: tuple[Parts, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        """Names of the training classes, sorted."""
        return tuple(sorted(next((self.splits[name] for name in ("train", "", "test") if name in self.splits), ())))


def pictures_of(content: Content) -> list[Parts]:
    """Return the paths of a class's pictures, sorted."""
    return content if isinstance(content, list) else pictures_below(content, all_of_them=False)


def folder_list(names: Iterable[str]) -> str:
    """Join names of folders for a message, see `brief_list`."""
    return brief_list(f"{printable_name(name)}/" for name in names)


def unknown_classes(names: Iterable[str], where: str) -> InvalidDataset:
    """Return the error for classes that the test split has and the training split lacks."""
    classes = brief_list(map(printable_name, names))
    return InvalidDataset(f"{where} has classes for testing that train/ lacks: {classes}. Add or remove them.")


def _has_pictures(folder: Tree) -> bool:
    spend()
    return folder.holds_pictures or any(map(_has_pictures, folder.folders.values()))


def _with_pictures(folder: Tree) -> dict[str, Tree]:
    return {name: inner for name, inner in folder.folders.items() if _has_pictures(inner)}


# --- Classes and splits ----------------------------------------------------------------------------------------


def from_folders(root: Tree, where: str) -> Layout:
    """Find the class folders, and the folders of splits around or within them.

    Args:
        where: name of the tree in error messages.

    Raises:
        InvalidDataset: it is ambiguous which folders are the classes or splits.
    """
    while True:
        if splits := _splits(root, where):
            return splits
        inner = _with_pictures(root)
        if len(inner) != 1:
            break
        (only,) = inner.values()
        if not _with_pictures(only):
            break
        root = only
    if sum(folder.holds_pictures for folder in inner.values()) > 1:
        return _classes_of(root, where)
    deeper = [layout for folder in _nested(root) for layout in _splits_below(folder, where)]
    if len(deeper) == 1:
        return deeper[0]
    if len(deeper) > 1:
        raise InvalidDataset(
            f"{where} holds several sets of pictures, each with splits, in {folder_list(inner)}. Choose one of these "
            "folders."
        )
    return _classes_of(root, where)


def _nested(root: Tree) -> list[Tree]:
    return [folder for folder in _with_pictures(root).values() if not folder.holds_pictures]


def _splits_below(folder: Tree, where: str) -> list[Layout]:
    if layout := _splits(folder, where):
        return [layout] if "train" in layout.splits else []
    return [layout for inner in _nested(folder) for layout in _splits_below(inner, where)]


def _splits(root: Tree, where: str) -> Layout | None:
    """Read a folder as folders of splits; None if it is not."""
    # With train/: its class folders are the classes. Siblings named like splits that share a class are the other
    # splits: the first in order is for testing, one of another name for validation.
    # With train/ but no such sibling: unlabelled test pictures, or folders without its classes, leave one set without
    # splits. Pictures of unknown classes are an error. Otherwise this is a folder like any other (None).
    # Without train/: there may be sets for testing only.
    inner = _with_pictures(root)
    named = sorted((split, name) for name in inner if (split := split_name(name)))
    train = _training_folder([(split, name) for split, name in named if split.kind == "train"], inner, where)
    others = [(split, name) for split, name in named if split.kind != "train"]
    if train is None:
        return _testing_only(inner, others, where)
    learnt, own = train
    classes = _class_level(inner[own], where)
    beside = [(split, name, _class_level(inner[name], where, classes)) for split, name in others]
    matching = [(split, found) for split, _, found in beside if set(found) & set(classes)]
    if matching:
        splits = {"train": classes, "test": matching[0][1]}
        others_of_it = [found for split, found in matching if split.order != matching[0][0].order]
        if others_of_it and matching[0][0].kind == "test":
            splits["validation"] = others_of_it[0]
        return Layout({split: dict(found) for split, found in splits.items()})
    if len(classes) < 2:
        return None
    plain = [(name, found) for split, name, found in beside if split.others == learnt.others]
    if plain:  # unlabelled test pictures, as in a competition
        for name, found in plain:
            if len(found) > 1:
                raise unknown_classes(sorted(found), f"{where}, in {printable_name(name)}/,")
        return Layout({"": dict(classes)}, (f"{printable_name(plain[0][0])}/ has no folders of these classes.",))
    if learnt.rank == 2:
        return None
    siblings = {name: folder for name, folder in inner.items() if name != own}
    if any(_with_pictures(folder).keys() & classes.keys() for folder in siblings.values()):
        return Layout({"": dict(classes)}, (f"Only {printable_name(own)}/ is read.",))
    if siblings and not any(map(_with_pictures, siblings.values())):
        raise InvalidDataset(
            f"{where} has class folders in {printable_name(own)}/ and pictures beside it, in {folder_list(siblings)}. "
            "Move the others away, or the pictures of a class into one folder."
        )
    return None


def has_splits(root: Tree) -> bool:
    """Whether a folder has folders for training and testing, with class folders in each."""
    try:
        layout = _splits(root, "")
    except InvalidDataset:
        return False
    return layout is not None and "test" in layout.splits and len(layout.classes) > 1


def _training_folder(
    named: list[tuple[SplitName, str]], inner: Mapping[str, Tree], where: str
) -> tuple[SplitName, str] | None:
    """Return the folder for training with class folders whose name fits best."""
    fit = sorted((split.rank, name, split) for split, name in named if _with_pictures(inner[name]))
    if len(fit) > 1 and fit[0][0] == fit[1][0]:
        names = [name for rank, name, _ in fit if rank == fit[0][0]]
        raise InvalidDataset(f"{where} has several folders for training: {folder_list(names)}. Keep one of them.")
    return (fit[0][2], fit[0][1]) if fit else None


def _testing_only(inner: Mapping[str, Tree], others: list[tuple[SplitName, str]], where: str) -> Layout | None:
    """Read a folder that has splits but none for training."""
    fit = [(split, name) for split, name in others if split.rank < 2 and _with_pictures(inner[name])]
    beside = [folder for name, folder in inner.items() if name not in {name for _, name in fit}]
    if not fit or len(beside) > 1 or any(map(_with_pictures, beside)):
        return None
    levels = [_class_level(inner[name], where) for _, name in fit]
    if len(levels) > 1 and not set(levels[0]).intersection(*levels[1:]):
        return None
    layout = Layout({"test": dict(levels[0])})
    if len(levels) > 1:
        layout.splits["validation"] = {name: level for name, level in levels[1].items() if name in levels[0]}
    return layout


def _class_level(folder: Tree, where: str, known: Iterable[str] = ()) -> dict[str, Tree]:
    """Return the class folders below a split, which may be nested in a single folder."""
    known = set(known)
    while True:
        inner = _with_pictures(folder)
        if len(inner) != 1 or folder.holds_pictures or set(inner) & known:
            break
        (only,) = inner.values()
        if not _with_pictures(only):
            break
        folder = only
    layout = _classes_of(folder, where, known)
    return {name: content for name, content in layout.splits.get("", {}).items() if not isinstance(content, list)}


def _classes_of(root: Tree, where: str, known: Iterable[str] = ()) -> Layout:
    """Read a folder as class folders."""
    inner = _with_pictures(root)
    nested = {
        name: _with_pictures(folder).keys() - folder.companion_folders
        for name, folder in inner.items()
        if not folder.holds_pictures
    }
    copies = {name for name, own in nested.items() if len(nested) < len(inner) and own <= inner.keys()}  # of classes
    if len(nested) < len(inner):
        return Layout({"": {name: folder for name, folder in inner.items() if name not in copies}})
    if len(inner) < 2 or set(inner) & set(known):
        return Layout({"": dict(inner)})
    if by_class := _splits_within(inner):
        return by_class
    counts = Counter(one for own in nested.values() for one in own)
    repeated = [name for name, count in counts.items() if count > 1]
    numbered = all(re.search(r"\d", name) for name in inner) and 2 * min(counts.values()) > len(inner)  # as patients
    if len([name for name in repeated if numbered or any(map(str.isalpha, name))]) < 2:
        return Layout({"": dict(inner)})
    real = [name for name in inner if name not in root.companion_folders]
    if len(real) == 1:
        return Layout({"": dict(_with_pictures(inner[real[0]]))}, (f"Only {printable_name(real[0])}/ is read.",))
    raise InvalidDataset(
        f"{where} holds pictures in {folder_list(inner)}, and in each of them in {folder_list(sorted(repeated))}. "
        "Keep one level of folders, named by the classes."
    )


def _splits_within(inner: Mapping[str, Tree]) -> Layout | None:
    """Read splits within class folders, if every class folder contains nothing else."""
    splits: dict[str, Classes] = {}
    for name, folder in inner.items():
        for own, content in _with_pictures(folder).items():
            split = split_name(own)
            if split is None or split.rank == 2 or name in splits.get(split.kind, {}):
                return None
            splits.setdefault(split.kind, {})[name] = content
    if "train" not in splits or len(splits) == 1:
        return None
    if "test" not in splits:
        splits["test"] = splits.pop("validation")
    return Layout(splits)


def splits_in_names(layout: Layout) -> Layout | None:
    """Read class folders as train-cat/, whose names combine split and class; None if others, or a split lacks one."""
    splits: dict[str, Classes] = {}
    spelled: dict[str, str] = {}
    for name, content in sorted(layout.splits.get("", {}).items()):
        split = split_name(name)
        if split is None or split.rank < 2:
            return None
        rest = without_split(name)
        label = spelled.setdefault(rest.casefold(), rest)
        if label in splits.setdefault(split.kind, {}):
            return None
        splits[split.kind][label] = content
    complete = all(len(own) == len(spelled) for own in splits.values())
    if "train" not in splits or len(splits) == 1 or len(spelled) < 2 or not complete:
        return None
    if "test" not in splits:
        splits["test"] = splits.pop("validation")
    note = f"Splits and classes are from the names of the folders: {folder_list(layout.classes)}."
    return Layout(splits, (*layout.notes, note))
