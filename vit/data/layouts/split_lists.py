"""Use the splits that a dataset publishes in tables: lists of the pictures of each split, or a column of splits."""

import re
from collections import Counter
from collections.abc import Collection, Mapping
from pathlib import PurePosixPath
from typing import NamedTuple

from vit.data.file_names import Parts, printable_name, printable_path
from vit.data.layouts.labelled_files import Listing, Listings, PictureLabels
from vit.data.layouts.split_names import split_kinds, split_of
from vit.data.layouts.table_columns import is_usual, names_splits, title_of
from vit.untrusted import brief_list, spend

_Labels = Mapping[Parts, str]
_LEAST_REST = 0.1  # share of the pictures that a list for training leaves for testing; fewer were forgotten


class _Lists(NamedTuple):
    """Tables that are used, those that are not with the reason, and notes on the former."""

    used: list[Parts]
    refused: dict[Parts, str]
    notes: list[str]


def split_by_lists(labels: _Labels, others: Collection[Parts], listings: Listings) -> PictureLabels:
    """Split pictures by the tables that list them; without such tables all splits are "".

    Args:
        labels: the class of each picture.
        others: pictures without a class, as those of a flat test/; tables may add them to these classes.

    Returns:
        The notes say which tables were used, or which were not and why.
    """
    lists = _Lists([], {}, [])
    splits = _splits_of_labelled(labels, listings, lists)
    added = _classes_of_others(labels, others, listings, lists)
    if lists.used:
        found = {picture: (labels[picture], split) for picture, split in splits.items()} | added
        note = f"Splits are from {brief_list(sorted(map(printable_path, lists.used)))}."
        return PictureLabels(found, (note, *lists.notes), tuple(lists.used))
    for path in (path for own in listings.others.values() for path in own):
        if split_kinds(stem := PurePosixPath(path[-1]).stem) or names_splits(0, [stem]):
            lists.refused[path] = "it is not understood"
    unused = [f"{printable_path(path)} ({why})" for path, why in sorted(lists.refused.items())]
    note = f"Pictures are split by chance, without {brief_list(unused, 2)}."
    return PictureLabels({picture: (label, "") for picture, label in labels.items()}, (note,) * bool(unused))


def _splits_of_labelled(labels: _Labels, listings: Listings, lists: _Lists) -> dict[Parts, str]:
    """Return the splits of the pictures with a class; all for training if no table is used."""
    splits, paths, reason = dict[Parts, str](), list[Parts](), ""
    for listing in sorted(listings.tables, key=_is_union):
        own = [(picture, split) for picture, split in listing.splits if picture in labels]
        if listing.unknown and not own:
            lists.refused[listing.path] = f"its column {listing.unknown} does not say train or test"
        paths += [listing.path] * bool(own)
        for picture, split in own:
            spend()
            if splits.setdefault(picture, split) != split and not (
                _is_union(listing) and splits[picture] == "validation"
            ):
                reason = f"{printable_name(picture[-1])} is in several splits"
    kinds, rest = {*splits.values()}, labels.keys() - splits.keys()
    if "train" in kinds and len(rest) > len(splits):
        reason = "fewer than half of the pictures are listed"
    elif "train" not in kinds or (len(kinds) == 1 and len(rest) < _LEAST_REST * len(labels)):
        splits |= dict.fromkeys(rest, "train")
    elif len(kinds) == 1:
        splits |= dict.fromkeys(rest, "test")
        lists.notes.append("Pictures in none are for testing.")
    elif rest:
        lists.notes.append(f"{len(rest):,} pictures are in none and left out.")
    learnt = {labels[picture] for picture, split in splits.items() if split == "train"}
    if without := {*labels.values()} - learnt:
        reason = reason or f"{printable_name(min(without))} has no pictures for training there"
    if reason:
        lists.refused.update(dict.fromkeys(paths, reason))
    if reason or {*splits.values()} == {"train"}:
        lists.notes.clear()
        return dict.fromkeys(labels, "train")
    lists.used.extend(paths)
    return splits


def _is_union(listing: Listing) -> bool:
    """Whether a list is of the pictures for training and validation together, as trainval.txt."""
    return "trainval" in re.sub(r"\W|_", "", listing.path[-1].casefold())


def _classes_of_others(
    labels: _Labels, others: Collection[Parts], listings: Listings, lists: _Lists
) -> dict[Parts, tuple[str, str]]:
    """Return the classes and splits of other pictures."""
    names = _names_of_classes(labels, listings)
    folders = {picture: split.kind for picture in others if (split := split_of(picture[:-1]))}
    sizes, added = Counter[str](folders.values()), dict[Parts, tuple[str, str]]()
    for listing in listings.tables:
        splits = dict(listing.splits) | folders
        rows = [row for row, picture in enumerate(listing.pictures) if picture in splits and picture not in labels]
        columns = []
        for column, cells in listing.values.items():
            named = [_class_of(cells[row], title_of(column, listing.columns), names) for row in rows]
            if all(named):
                columns.append((is_usual(title_of(column, listing.columns)), len({*named}), named))
        best = max(columns)[2] if columns else []
        pictures = [listing.pictures[row] for row in rows]
        own = {picture: (name, splits[picture]) for picture, name in zip(pictures, best, strict=False)}
        counts = Counter(kind for _, kind in own.values())
        if any(added.get(picture, one) != one for picture, one in own.items()):
            lists.refused[listing.path] = "another table gives other classes"
        elif any(2 * count < sizes[kind] for kind, count in counts.items()):
            lists.refused[listing.path] = "it names fewer than half of the pictures"
        elif own:
            added |= own
            lists.used.append(listing.path)
        elif rows and listing.values:
            lists.refused[listing.path] = "its classes are not those of the folders"
    return added


def _names_of_classes(labels: _Labels, listings: Listings) -> dict[tuple[str, str], str]:
    """Return {(title or "", cell): class}: names and numbers of classes, and the cells in rows of their pictures."""
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
                names |= {(title_of(column, listing.columns), cell): name for cell, name in pairs}
    return names


def _class_of(cell: str, title: str, names: Mapping[tuple[str, str], str]) -> str:
    """Return the class that a cell or its first word names, such as "n01443537 1 1 9 9"; "" for none."""
    spend()
    texts = [cell.casefold(), *cell.casefold().split()[:1]]
    keys = [(title, text) for text in texts] + [("", own) for text in texts for own in (text, text.lstrip("0"))]
    return next((names[key] for key in keys if key in names), "")
