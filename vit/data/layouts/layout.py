"""Find the classes and splits of a tree of pictures in folders, tables and file names, for archives and folders alike.

Folders have priority, see `vit.data.layouts.folder_structure`. If two sources give different classes, `find_layout`
raises, or adds a note on the one that it uses.
"""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from os.path import splitext

from vit.data.archives.archive_names import check_class
from vit.data.file_names import OTHER_PICTURES, PICTURES, Parts, printable_name, printable_path
from vit.data.layouts.companions import parse_folder
from vit.data.layouts.folder_structure import (
    Content,
    Layout,
    folder_list,
    from_folders,
    pictures_of,
    splits_in_names,
    unknown_classes,
)
from vit.data.layouts.labelled_files import (
    PERSON,
    Listings,
    NoLabels,
    PictureLabels,
    agree,
    from_names,
    labels_in,
    list_tables,
    name_numeric_classes,
)
from vit.data.layouts.split_lists import split_by_lists
from vit.data.layouts.split_names import is_generic, split_name, without_split
from vit.data.picture_trees import Tree, companions_below, others_below, pictures_below, stems, tables_below, walk
from vit.errors import InvalidDataset
from vit.untrusted import brief_list

_HASH = re.compile("[0-9a-f]{1,3}|[0-9a-f-]{6,}", re.IGNORECASE)
_LISTED = 20  # excluded pictures per folder that a message lists; of more it states the number


def find_layout(root: Tree, read: Callable[[Parts], bytes], where: str) -> Layout:
    """Find the classes of a tree of pictures: in its folders, else in a table, else in file names.

    Args:
        read: returns the content of a table; raises OSError or Unreadable.
        where: name of the tree in error messages, such as "The archive".

    Raises:
        InvalidDataset: fewer than two classes, or it is ambiguous which folders are the classes.
    """
    # The folders are read first, because a folder's name is a statement about each of its pictures. Tables and file
    # names are read instead if the folders are no classes: named by hashes, fewer than two, or all named like splits. A
    # table beside class folders cuts their splits, and names the classes where the folders look like mere parts of the
    # data.
    if _are_hashes(root) and isinstance(labelled := _from_files(root, read), PictureLabels):
        return _split(labelled, where)
    found = from_folders(root, where)
    layout = _without_companions(splits_in_names(found) or found)
    names, reason, only_splits = layout.classes, "", False
    if len(names) < 2 or set(layout.splits) <= {""}:
        only_splits = _are_splits(names)
        if len(names) < 2 or all(map(split_name, names)):
            labelled = _from_files(root, read)
            if isinstance(labelled, PictureLabels):
                return _split(labelled, where)
            reason = labelled.reason
    if len(names) < 2 or only_splits:
        raise InvalidDataset(_too_few(root, names, only_splits, reason, where))
    for split in layout.splits.values():
        if unknown := sorted(set(split) - set(names)):
            raise unknown_classes(unknown, where)
    layout = _note_unread(root, _note_alike(layout))
    return _with_tables(root, layout, read, where) if set(layout.splits) == {""} else layout


def _are_hashes(root: Tree) -> bool:
    """Whether all pictures are in folders named by hashes, or by the first characters of the pictures' own names."""
    lettered = False  # years and digits are names of classes
    for folder in walk(root):
        if folder.holds_pictures:
            name = folder.path[-1] if folder.path else ""
            starts = tuple("".join(folder.path[depth:]).casefold() for depth in range(len(folder.path)))
            own = [splitext(picture)[0].casefold() for picture in folder.pictures]
            by_start = all(_HASH.fullmatch(stem) and stem.startswith(starts) for stem in own)
            if not _HASH.fullmatch(name) or (len(name) < 8 and not by_start):
                return False
            lettered |= not name.isdecimal()
    return lettered


def _without_companions(layout: Layout) -> Layout:
    """Leave out class folders whose pictures accompany those of the others, such as masks/ beside images/ or cats/."""
    classes = next(iter(layout.splits.values()), {})
    parsed = {name: parse_folder(name) for name in classes}
    plain = [name for name, own in parsed.items() if not own.words]
    marked = [name for name, own in parsed.items() if own.words]
    exact = {name for name in marked if not parsed[name].rest}
    partners = {name: [other for other in plain if parsed[other].rest == parsed[name].rest] for name in marked}
    found = set()
    if len(plain) < 2 and all(map(is_generic, plain)):
        found = exact if plain or len(exact) == len(marked) else set()
    elif exact and len(plain) > 1:  # numbers as names would be those of several classes
        found = {name for name in exact if _fits(name, plain, classes)}
    elif len(marked) > 1 and all(own and _fits(name, own, classes) for name, own in partners.items()):
        found = {*marked}
    if not found:
        return layout
    splits = {split: {name: own[name] for name in own if name not in found} for split, own in layout.splits.items()}
    note = f"No classes, as their pictures accompany those beside them: {folder_list(sorted(found))}."
    return layout._replace(splits=splits, notes=(*layout.notes, note))


def _fits(name: str, others: Iterable[str], classes: Mapping[str, Content]) -> bool:
    """Whether each picture of a class has the name of exactly one picture of other classes."""
    known = Counter(stem for other in others for stem in stems(pictures_of(classes[other])))
    return all(known[stem] == 1 for stem in stems(pictures_of(classes[name])))


def _are_splits(names: Iterable[str]) -> bool:
    """Whether folders are splits instead of classes: named as such, or by several splits and the same words."""
    kinds: dict[str, set[str]] = {}
    for name in names:
        split = split_name(name)
        if split is None:
            if parse_folder(name).words and not parse_folder(name).rest:
                continue  # gt_bbox/ beside query/
            return False
        kinds.setdefault(without_split(name).casefold() if split.rank == 2 else "", set()).add(split.kind)
    return "" in kinds or any(len(own) > 1 for own in kinds.values())


def _note_doubtful(layout: Layout) -> Layout:
    """Add a note about classes whose names suggest otherwise."""
    doubtful = [name for name in layout.classes if (own := split_name(name)) and own.rank < 2 and name != "train"]
    note = f"Read as classes, as the folders beside them: {folder_list(doubtful)}."
    return layout._replace(notes=(*layout.notes, note)) if doubtful else layout


def _note_alike(layout: Layout) -> Layout:
    """Add a note about classes whose names differ only in case."""
    spelled = Counter(map(str.casefold, layout.classes))
    alike = [name for name in layout.classes if spelled[name.casefold()] > 1]
    note = f"Classes that differ only in case are kept apart: {brief_list(map(printable_name, alike))}."
    return layout._replace(notes=(*layout.notes, note)) if alike and note not in layout.notes else layout


def _note_unread(root: Tree, layout: Layout) -> Layout:
    """Add a note on folders beside the class folders that have files, but no picture that can be read."""
    unread = []
    for path in sorted({folder.path[:-1] for folder in _class_folders(layout)}):
        level = reduce(lambda folder, name: folder.folders[name], path, root)
        for name, folder in level.folders.items():
            if (others := others_below(folder)) and not pictures_below(folder):
                unread.append(f"{printable_path((*path, name))}/ ({len(others):,})")
    note = f"Folders beside the classes with files, but no picture that can be read: {brief_list(unread)}."
    return layout._replace(notes=(*layout.notes, note)) if unread else layout


def _note_file_names(layout: Layout) -> Layout:
    """Add a note if file names give other classes than the folders."""
    folders = _folders_of(layout)
    named = from_names(list(folders))
    if named is None or agree([(label, folders[picture]) for picture, (label, _) in named.labels.items()]):
        return layout
    labels = brief_list(sorted({printable_name(label) for label, _ in named.labels.values()}))
    classes = folder_list(layout.classes)
    note = f"The folders are read as classes ({classes}), although the names of the files give {labels}."
    return layout._replace(notes=(*layout.notes, note))


def _with_tables(root: Tree, layout: Layout, read: Callable[[Parts], bytes], where: str) -> Layout:
    """Split class folders by the tables beside them, or read their pictures' classes there if the folders are parts.

    Raises:
        InvalidDataset: a column `label` gives most pictures other classes than the folders do.
    """
    parts = _are_parts(layout.classes)
    layout = _note_file_names(layout) if parts else _note_doubtful(layout)
    tables = tables_below(root, () if parts else {folder.path for folder in _class_folders(layout)})
    if not tables:
        return layout  # without listing the pictures
    folders = _folders_of(layout)
    others = set(pictures_below(root, all_of_them=False)) - folders.keys()
    listings = list_tables([*folders, *sorted(others)], tables, read)
    labelled = labels_in(listings, folders, "usual" if parts else "label")
    if isinstance(labelled, PictureLabels):
        pairs = [(label, folders[picture]) for picture, (label, _) in labelled.labels.items() if picture in folders]
        renamed = parts and 2 * sum(label == folder for label, folder in pairs) < len(pairs)
        if 2 * len(pairs) >= len(folders) and (renamed or not agree(pairs)):
            if parts or all(map(str.isdecimal, layout.classes)):  # numbers, as of years, are more likely parts
                return _split(_with_lists(labelled, listings), where)
            raise _two_sources(layout.classes, labelled, where)
    listed = split_by_lists(folders, others, listings)
    notes = (*layout.notes, *listed.notes)
    return _split(listed._replace(notes=notes), where) if listed.tables else layout._replace(notes=notes)


def _class_folders(layout: Layout) -> list[Tree]:
    contents = [content for classes in layout.splits.values() for content in classes.values()]
    return [content for content in contents if not isinstance(content, list)]


def _folders_of(layout: Layout) -> dict[Parts, str]:
    return {picture: name for name, content in layout.splits[""].items() for picture in pictures_of(content)}


def _two_sources(names: Sequence[str], labelled: PictureLabels, where: str) -> InvalidDataset:
    return InvalidDataset(
        f"{where} has the folders {folder_list(names)}, but {printable_path(labelled.tables[0])} has other classes in "
        "its column `label`. Move the table away, or put all pictures into one folder."
    )


def _are_parts(names: Iterable[str]) -> bool:
    """Whether names differ in a number only, like parts of a download, and so may not be classes."""
    stems = {re.sub(r"\d+", "", name).casefold() for name in names}
    return len(stems) == 1 and any(map(str.isalpha, stems.pop()))


# --- Tables and names of files ---------------------------------------------------------------------------------


def _from_files(root: Tree, read: Callable[[Parts], bytes]) -> PictureLabels | NoLabels:
    """Determine classes from tables or file names."""
    pictures = pictures_below(root, all_of_them=False)
    companions = [picture for picture, word in companions_below(root).items() if word]  # that a table may name
    listings = list_tables([*pictures, *companions], tables_below(root), read)
    labelled = labels_in(listings, pictures, "any")
    if isinstance(labelled, NoLabels):
        named = None if labelled.by_table else from_names(pictures)
        return _with_lists(named, listings) if named else labelled
    equal = sum(label in picture[:-1] for picture, (label, _) in labelled.labels.items())
    return NoLabels() if 2 * equal > len(labelled.labels) else _with_lists(labelled, listings)


def _with_lists(labelled: PictureLabels, listings: Listings) -> PictureLabels:
    """Split pictures by tables, if folders do not."""
    labelled = name_numeric_classes(labelled)
    if any(split for _, split in labelled.labels.values()):
        return labelled
    listed = split_by_lists({picture: label for picture, (label, _) in labelled.labels.items()}, (), listings)
    return PictureLabels(listed.labels, (*labelled.notes, *listed.notes), (*labelled.tables, *listed.tables))


def _split(labelled: PictureLabels, where: str) -> Layout:
    splits: dict[str, dict[str, list[Parts]]] = {}
    for picture, (label, split) in sorted(labelled.labels.items()):
        splits.setdefault(split, {}).setdefault(check_class(label), []).append(picture)
    if "train" not in splits or len(splits.keys() - {""}) == 1:
        merged: dict[str, list[Parts]] = {}
        for classes in splits.values():
            for label, own in classes.items():
                merged[label] = sorted(merged.get(label, []) + own)
        splits = {"": merged}
    else:
        for label, own in splits.pop("", {}).items():
            splits["train"].setdefault(label, []).extend(own)
        if "test" not in splits:
            splits["test"] = splits.pop("validation")
    train = splits.get("train") or splits[""]
    layout = Layout({name: dict(classes) for name, classes in splits.items()}, labelled.notes, labelled.tables)
    for classes in splits.values():
        if unknown := sorted(set(classes) - set(train)):
            raise unknown_classes(unknown, where)
    return _note_alike(layout)


# --- In words --------------------------------------------------------------------------------------------------


def _too_few(root: Tree, names: Sequence[str], only_splits: bool, reason: str, where: str) -> str:
    folders = Counter(path[:-1] for path in pictures_below(root))
    folder_count = f"{len(names)} class folder{'s' * (len(names) != 1)} with pictures"
    message = f"{where} has {folder_count}, and a classifier needs at least two. "
    if only_splits:
        message = f"{where} has only folders of splits ({folder_list(names)}), and no class folders in them. "
        if person := next((path[-1] for path in pictures_below(root) if PERSON.match(path[-1])), ""):
            name = printable_name(person)
            return f"{where} has only folders of splits. Names as {name} begin with identities: make a folder for each."
    if reason and folders:
        return message + reason
    advice = "Make one folder per class, or a table with a column `label`."
    if not folders and (held := [*tables_below(root), *others_below(root)]):
        message = f"{where} has no pictures, only {brief_list(map(printable_path, sorted(held)), 3)}. "
        advice = "Save arrays as images.npy and labels.npy, or pictures as PNG in a folder per class."
    kinds = Counter(splitext(path[-1])[1].lower() for path in others_below(root))
    kind, count = max(kinds.items(), key=lambda item: item[1], default=("", 0))
    if kind not in PICTURES and count > sum(folders.values()):
        message += f"Files {printable_name(kind) or 'without a suffix'}, {count:,} here, are not read. "
    elif folders and not only_splits:
        lie = brief_list(f"{printable_path(path) or '.'}/ ({count:,})" for path, count in sorted(folders.items()))
        message += f"Pictures lie in {lie}. "
    return message + advice


def no_training_pictures_error(where: str) -> InvalidDataset:
    """Return the error for splits without one for training."""
    return InvalidDataset(f"{where} has pictures for testing, but no class folders in train/. Add them.")


def no_test_pictures_error(where: str, layout: Layout) -> InvalidDataset:
    """Return the error for classes with one picture each."""
    notes = "".join(f" {note}" for note in layout.notes)
    return InvalidDataset(f"{where} has one picture per class, and none to test on. Add more.{notes}")


def left_out(root: Tree, layout: Layout) -> list[str]:
    """Describe the pictures that are in no class, one line per picture or large folder, and those of other formats."""
    used = {path for classes in layout.splits.values() for content in classes.values() for path in pictures_of(content)}
    companions = {picture: why for picture, why in companions_below(root).items() if picture not in used}
    unused: dict[Parts, list[Parts]] = {}
    for picture in sorted(set(pictures_below(root)) - used - companions.keys()):
        unused.setdefault(picture[:-1], []).append(picture)
    why = "in none of the class folders" if _class_folders(layout) else "it has no class, several, or no split"
    lines = []
    for path, own in unused.items():
        if len(own) > _LISTED:
            lines.append(f"{printable_path(path)}/: {len(own):,} pictures, {why}")
        else:
            lines += [f"{printable_path(picture)}: {why}" for picture in own]
    kinds = Counter((picture[:-1], word) for picture, word in companions.items())
    for (path, word), count in sorted(kinds.items()):
        named = f"with `{word}` in their names " if word else ""
        lines.append(f"{printable_path(path) or '.'}/: {count:,} pictures {named}accompany others")
    unread = Counter((path[:-1], splitext(path[-1])[1].lower()) for path in others_below(root))
    for (path, suffix), count in sorted(unread.items()):
        if suffix in OTHER_PICTURES:
            lines.append(
                f"{printable_path(path) or '.'}/: {count:,} files {suffix}, not read. Save them as JPEG or PNG."
            )
    return lines
