"""Use the splits that a dataset publishes in tables: lists of the pictures of each split, or a column of splits."""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath

from vit.data.file_names import Parts, printable_name, printable_path
from vit.data.labelled_files import Listing, Listings, PictureLabels
from vit.data.split_names import split_kinds, split_of
from vit.data.table_columns import is_usual, names_splits
from vit.untrusted import brief_list, spend

Labels = Mapping[Parts, str]


def split_by_lists(labels: Labels, others: Collection[Parts], listings: Listings) -> PictureLabels:
    """Split pictures by the tables that list them; without such tables all splits are "".

    Args:
        labels: the class of each picture.
        others: pictures without a class, as those of a flat test/; tables may add them to these classes.

    Returns:
        The notes say which tables were used, or which were not and why.
    """
    used, refused = list[Parts](), dict[Parts, str]()
    given = _given(labels, listings, used, refused)
    added = _added(labels, others, listings, used, refused)
    if used:
        found = {picture: (labels[picture], split) for picture, split in given.items()} | added
        note = f"Splits are from {brief_list(sorted(map(printable_path, used)))}."
        if unlisted := len(labels.keys() - found.keys()):
            note += f" {unlisted:,} pictures are in none and left out."
        return PictureLabels(found, (note,), tuple(used))
    for path in (path for own in listings.others.values() for path in own):
        if split_kinds(stem := PurePosixPath(path[-1]).stem) or names_splits(0, [stem]):
            refused[path] = "it is not understood"
    unused = [f"{printable_path(path)}, as {why}" for path, why in sorted(refused.items())]
    note = f"Pictures are split by chance, without {brief_list(unused, 2)}."
    return PictureLabels({picture: (label, "") for picture, label in labels.items()}, (note,) * bool(unused))


def _splits_in(listing: Listing) -> list[tuple[Parts, str]]:
    return listing.splits or [(picture, listing.split) for picture in listing.pictures if listing.split]


def _given(labels: Labels, listings: Listings, used: list[Parts], refused: dict[Parts, str]) -> dict[Parts, str]:
    """Return the split of each picture that the lists name, and add the lists to those used or refused."""
    given, lists, reason = dict[Parts, str](), list[Parts](), ""
    for listing in listings.tables:
        own = [(picture, split) for picture, split in _splits_in(listing) if picture in labels]
        if listing.unknown and not own:
            refused[listing.path] = f"its column {listing.unknown} does not say train or test"
        lists += [listing.path] * bool(own)
        for picture, split in own:
            if given.setdefault(picture, split) != split:
                reason = f"{printable_name(picture[-1])} is in several splits"
    kinds, rest = {*given.values()}, labels.keys() - given.keys()
    if "train" in kinds and len(rest) > len(given):
        reason = "fewer than half of the pictures are listed"
    elif len(kinds) == 1 and "train" in kinds:
        given |= dict.fromkeys(rest, "test")
    elif "train" not in kinds:
        given |= dict.fromkeys(rest, "train")
    learnt = {labels[picture] for picture, split in given.items() if split == "train"}
    if not reason and (without := {*labels.values()} - learnt):
        reason = f"{printable_name(min(without))} has no pictures for training there"
    if reason:
        refused |= dict.fromkeys(lists, reason)
        return dict.fromkeys(labels, "train")
    used += lists if {*given.values()} > {"train"} else []
    return given


def _added(
    labels: Labels, others: Collection[Parts], listings: Listings, used: list[Parts], refused: dict[Parts, str]
) -> dict[Parts, tuple[str, str]]:
    """Return the classes and splits of other pictures, and add the tables to those used or refused."""
    names = _names_of_classes(labels, listings)
    folders = {picture: own.kind for picture in others if (own := split_of(picture[:-1]))}
    sizes, added = Counter(folders.values()), dict[Parts, tuple[str, str]]()
    for listing in listings.tables:
        splits = dict(_splits_in(listing)) | folders
        rows = [row for row, picture in enumerate(listing.pictures) if picture in splits and picture not in labels]
        columns = []
        for column, cells in listing.values.items():
            spend()
            title = listing.columns[column] if listing.columns else str(column)
            named = [_class_of(cells[row], title, names) for row in rows]
            if all(named):
                columns.append((is_usual(title), len({*named}), named))
        best = max(columns)[2] if columns else []
        own = {
            listing.pictures[row]: (name, splits[listing.pictures[row]]) for row, name in zip(rows, best, strict=False)
        }
        counts = Counter(split for _, split in own.values())
        if any(added.get(picture, one) != one for picture, one in own.items()):
            refused[listing.path] = "another table gives other classes"
        elif any(2 * count < sizes[split] for split, count in counts.items()):
            refused[listing.path] = "it names fewer than half of the pictures"
        elif own:
            added |= own
            used.append(listing.path)
        elif rows and listing.values:
            refused[listing.path] = "its classes are not those of the folders"
    return added


def _names_of_classes(labels: Labels, listings: Listings) -> dict[tuple[str, str], str]:
    """Return the classes that cells name, {(title or "", cell): class}: by name, number, or the rows of other pictures."""
    every = {*labels.values()}
    numbers = {match[1].lstrip("0"): name for name in every if (match := re.match(r"\D*(\d+)", name))}
    names = {("", number): name for number, name in numbers.items()} if len(numbers) == len(every) else {}
    names |= {("", name.casefold()): name for name in every}
    for listing in listings.tables:
        for column, cells in listing.values.items():
            spend()
            rows = zip(listing.pictures, cells, strict=True)
            pairs = {(cell.casefold(), labels[picture]) for picture, cell in rows if picture in labels}
            if len(pairs) == len(dict(pairs)) == len({name for _, name in pairs}) > 1:
                title = listing.columns[column] if listing.columns else str(column)
                names |= {(title, cell): name for cell, name in pairs}
    return names


def _class_of(cell: str, title: str, names: Mapping[tuple[str, str], str]) -> str:
    """Return the class that a cell or its first word names, such as "n01443537 1 1 9 9"; "" for none."""
    texts = [cell.casefold(), *cell.casefold().split()[:1]]
    keys = ((title, text) for text in texts), (("", text) for text in texts), (("", text.lstrip("0")) for text in texts)
    return next((names[key] for own in keys for key in own if key in names), "")
