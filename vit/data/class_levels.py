"""Levels of nested class folders: any of them can be the classes, as in Fruit/Apple/Golden-Delicious."""

from collections import Counter
from collections.abc import Sequence

from vit.data.file_names import Parts, printable_name
from vit.data.folder_structure import Classes, Content, Layout, unknown_classes
from vit.data.picture_trees import NO_PICTURES, Tree
from vit.data.split_names import is_generic, split_name
from vit.errors import InvalidDataset
from vit.untrusted import brief, brief_list, spend

MOST_LEVELS = 6

_Nested = list[tuple[Parts, list[Parts]]]


def nesting(name: str, content: Content) -> _Nested:
    """Return the pictures of a class by the names of the folders around them, from the class down.

    Folders of masks are left out. Folders that only have names of splits, or such as `images`, are no level.
    """
    if isinstance(content, list):
        return [((name,), content)]
    return [((name, *names)[:MOST_LEVELS], own) for names, own in _below(content)]


def _below(folder: Tree) -> _Nested:
    spend()
    inner = {name: found for name, one in folder.folders.items() if name.casefold() not in NO_PICTURES
             and (found := _below(one))}  # fmt: skip
    plain = all(is_generic(name) or ((split := split_name(name)) and split.rank < 2) for name in inner)
    own = [((), [(*folder.path, picture) for picture in folder.pictures])] if folder.pictures else _Nested()
    return own + [(names if plain else (name, *names), some) for name, found in inner.items() for names, some in found]


def _at_level(layout: Layout, level: int) -> Layout:
    """Return the layout whose classes are the folders of a level; a picture above it belongs to its own folder."""
    if level == 1:
        return layout
    found = {
        split: [(names[:level], own) for name, content in classes.items() for names, own in nesting(name, content)]
        for split, classes in layout.splits.items()
    }
    alike = Counter(names[-1] for names in {names for own in found.values() for names, _ in own})
    splits = dict[str, Classes]()
    for split, nested in found.items():
        classes: dict[str, list[Parts]] = {}
        for names, own in nested:
            classes.setdefault(names[-1] if alike[names[-1]] == 1 else "/".join(names), []).extend(own)
        splits[split] = {name: sorted(own) for name, own in classes.items()}
    return layout._replace(splits=splits)


def levels_of(layout: Layout) -> tuple[tuple[str, ...], ...]:
    """Return the classes by level; a single level if folders are not nested, or if most have a single picture."""
    every = [one for classes in layout.splits.values() for name in classes for one in nesting(name, classes[name])]
    pictures, depth = sum(len(own) for _, own in every), max((len(names) for names, _ in every), default=1)
    levels = [_at_level(layout, level).classes for level in range(1, depth + 1)]
    while len(levels) > 1 and (2 * len(levels[-1]) > pictures or len(levels[-1]) == len(levels[-2])):
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


def choose_level(layout: Layout, level: str, where: str) -> tuple[Layout, tuple[tuple[str, ...], ...]]:
    """Return the layout at a level, with a note if there are several, and the classes by level.

    Classes of equal names in different folders are called as in `Fruit/Red`.

    Args:
        level: its number from 1; "" for the first.
        where: name of the folder in messages.

    Raises:
        InvalidDataset: there is no such level, or it has classes for testing only.
    """
    levels = levels_of(layout)
    if level and level not in map(str, range(1, len(levels) + 1)):
        known = ", ".join(f"#{number} ({len(names):,} classes)" for number, names in enumerate(levels, 1))
        raise InvalidDataset(f"{where} has no level {brief(level)!r} of class folders. Choose from {known}.")
    chosen = _at_level(layout, int(level or 1))
    names = set(chosen.classes)
    if unknown := sorted({name for classes in chosen.splits.values() for name in classes} - names):
        raise unknown_classes(unknown, where)
    if len(levels) > 1:
        used = f"Level {level} is used." if level else "Level 1 is used; PATH#2 stands for level 2."
        note = f"Folders are nested: {', '.join(level_titles(levels))}. {used}"
        chosen = chosen._replace(notes=(*chosen.notes, note))
    return chosen, levels
