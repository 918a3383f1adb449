"""Levels of nested class folders: any of them can be the classes, as in Fruit/Apple/Golden-Delicious."""

from collections import Counter
from collections.abc import Sequence

from vit.data.file_names import Parts, printable_name
from vit.data.layouts.folder_structure import Content, Layout, unknown_classes
from vit.data.layouts.split_names import is_generic, split_name
from vit.data.picture_trees import Tree
from vit.errors import InvalidDataset
from vit.untrusted import brief, brief_list, spend

Levels = tuple[tuple[str, ...], ...]  # names of classes
_MOST_LEVELS = 6


def nesting(name: str, content: Content) -> list[tuple[Parts, list[Parts]]]:
    """Return the pictures of a class by the names of the folders around them, from the class down.

    Folders of masks are left out. Folders that only have names of splits, or such as `images`, are no level.
    """
    below = [((), content)] if isinstance(content, list) else _below(content)
    return [((name, *names)[:_MOST_LEVELS], own) for names, own in below]


def _below(folder: Tree) -> list[tuple[Parts, list[Parts]]]:
    spend()
    inner = {name: _below(one) for name, one in folder.folders.items() if name not in folder.companion_folders}
    splits = {name: split_name(name) for name, below in inner.items() if below}
    plain = all(is_generic(name) or (split and split.rank < 2) for name, split in splits.items())
    below = [(names if plain else (name, *names), own) for name in inner for names, own in inner[name]]
    return [((), [(*folder.path, name) for name in folder.pictures]), *below] if folder.pictures else below


def _at_level(layout: Layout, level: int) -> Layout:
    """Return the layout whose classes are the folders of a level; a picture above it belongs to its own folder."""
    found = [
        (split, names[:level], own)
        for split, classes in layout.splits.items()
        for name, content in classes.items()
        for names, own in nesting(name, content)
    ]
    alike = Counter(names[-1] for names in {names for _, names, _ in found})
    splits: dict[str, dict[str, list[Parts]]] = {split: {} for split in layout.splits}
    for split, names, own in found:
        splits[split].setdefault(names[-1] if alike[names[-1]] == 1 else "/".join(names), []).extend(own)
    return layout._replace(splits={split: dict(classes) for split, classes in splits.items()})


def _levels_of(layout: Layout) -> Levels:
    """Return the classes by level; a single level if folders are not nested, or if most have a single picture."""
    every = [one for classes in layout.splits.values() for name in classes for one in nesting(name, classes[name])]
    depth, most = max(len(names) for names, _ in every), sum(len(own) for _, own in every) / 2
    levels = [layout.classes, *(_at_level(layout, level).classes for level in range(2, depth + 1))]
    while len(levels) > 1 and (len(levels[-1]) > most or len(levels[-1]) == len(levels[-2])):
        levels.pop()
    return tuple(levels)


def level_titles(levels: Sequence[Sequence[str]]) -> list[str]:
    """Describe each level with its number of classes and examples.

    >>> level_titles([["Fruit", "Vegetables"], ["Apple", "Kiwi", "Leek", "Pear", "Plum"]])
    ['level 1 has 2 classes (Fruit, Vegetables)', 'level 2 has 5 classes (Apple, Kiwi, Leek and 2 more)']
    """
    return [
        f"level {number} has {len(names):,} classes ({brief_list(map(printable_name, names), 3)})"
        for number, names in enumerate(levels, 1)
    ]


def choose_level(layout: Layout, level: str, where: str) -> tuple[Layout, Levels]:
    """Return the layout at a level, with a note if there are several, and the classes of each.

    Classes of equal names in different folders are called as in `Fruit/Red`.

    Args:
        level: its number from 1; "" for the first.
        where: name of the folder in messages.

    Raises:
        InvalidDataset: there is no such level, or it has classes for testing only.
    """
    levels = _levels_of(layout)
    if level and level not in map(str, range(1, len(levels) + 1)):
        known = ", ".join(f"#{number} ({len(names):,} classes)" for number, names in enumerate(levels, 1))
        raise InvalidDataset(f"{where} has no level {brief(level)!r} of class folders. Choose from {known}.")
    if level not in ("", "1"):
        layout = _at_level(layout, int(level))
        if unknown := sorted({name for own in layout.splits.values() for name in own} - {*layout.classes}):
            raise unknown_classes(unknown, where)
    if len(levels) == 1:
        return layout, levels
    used = f"Level {level} is used." if level else "Level 1 is used; PATH#2 stands for level 2."
    note = f"Folders are nested: {', '.join(level_titles(levels))}. {used}"
    return layout._replace(notes=(*layout.notes, note)), levels
