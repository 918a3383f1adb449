"""Use the splits that a dataset publishes in tables: lists of the pictures of each split, or a column of splits."""

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePosixPath

from vit.data.file_names import Parts, printable_name, printable_path
from vit.data.labelled_files import Listing, Listings, PictureLabels
from vit.data.split_names import split_kinds, split_of
from vit.data.table_columns import is_usual, names_splits
from vit.untrusted import brief_list, spend


def split_by_lists(labels: Mapping[Parts, str], others: Collection[Parts], listings: Listings) -> PictureLabels:
    """Split pictures by the tables that list them; if none can be used, all splits are "" and a note says why.

    Args:
        labels: the class of each picture.
        others: pictures without a class, as those of a flat test/; tables may add them to these classes.
    """
    found = {picture: (label, "") for picture, label in labels.items()}
    used, refused = list[Parts](), dict[Parts, str]()
    given, reason = _given(labels, listings, used)
    if reason or {*given.values()} <= {"train"}:
        refused |= dict.fromkeys(used, reason)
        used.clear()
    else:
        found = {picture: (labels[picture], split) for picture, split in given.items()}
    found |= _added(labels, others, listings, used, refused)
    if used:
        unlisted = f" {count:,} pictures are in none." if (count := len(labels.keys() - found.keys())) else ""
        notes = [f"Splits are from {brief_list(sorted(map(printable_path, used)))}.{unlisted}"]
        found = {picture: (label, split or "train") for picture, (label, split) in found.items()}
    else:
        for listing in listings.tables:
            if listing.unknown:
                refused[listing.path] = f"its column {listing.unknown} does not say train or test"
        for path in (path for own in listings.others.values() for path in own):
            stem = PurePosixPath(path[-1]).stem
            if split_kinds(stem) or names_splits(0, [stem]):
                refused[path] = "it is not understood"
        unused = [f"{printable_path(path)} ({why})" for path, why in refused.items() if why]
        notes = [f"Pictures are split by chance, without {brief_list(unused, 3)}."] if unused else []
    return PictureLabels(found, tuple(notes), tuple(used))


def _given(labels: Mapping[Parts, str], listings: Listings, used: list[Parts]) -> tuple[dict[Parts, str], str]:
    """Return the splits in the tables, which are added to `used`, and why they are not usable."""
    given: dict[Parts, str] = {}
    for listing in listings.tables:
        pairs = [(picture, split) for picture, split in _splits_in(listing) if picture in labels]
        used += [listing.path] * bool(pairs)
        for picture, split in pairs:
            if given.setdefault(picture, split) != split:
                return given, f"{printable_name(picture[-1])} is in several splits"
    rest = labels.keys() - given.keys()
    if "train" not in given.values():
        given |= dict.fromkeys(rest, "train")
    elif len(rest) > len(given):
        return given, "fewer than half of the pictures are listed"
    elif {*given.values()} == {"train"}:
        given |= dict.fromkeys(rest, "test")
    without = {*labels.values()} - {labels[picture] for picture, split in given.items() if split == "train"}
    return given, f"no pictures of {printable_name(min(without))} for training" if without else ""


def _splits_in(listing: Listing) -> Iterator[tuple[Parts, str]]:
    yield from listing.splits or ((picture, listing.split) for picture in listing.pictures if listing.split)


def _added(
    labels: Mapping[Parts, str],
    others: Collection[Parts],
    listings: Listings,
    used: list[Parts],
    refused: dict[Parts, str],
) -> dict[Parts, tuple[str, str]]:
    """Return classes and splits of other pictures, and add to `used` and `refused` the tables."""
    names = _names_of_classes(labels, listings)
    folders = {picture: own.kind for picture in others if (own := split_of(picture[:-1]))}
    sizes, added = Counter(folders.values()), dict[Parts, tuple[str, str]]()
    for listing in listings.tables:
        splits = dict(_splits_in(listing)) | folders
        rows = [row for row, picture in enumerate(listing.pictures) if splits.get(picture, "train") != "train"]
        rows = [row for row in rows if listing.pictures[row] not in labels]
        best: tuple[bool, int, list[str]] = (False, 0, [])
        for column, cells in listing.values.items():
            spend()
            title = listing.columns[column] if listing.columns else str(column)
            named = [name for row in rows if (name := _class_of(cells[row], title, names))]
            if rows and len(named) == len(rows):
                best = max(best, (is_usual(title), len({*named}), named))
        own = {
            listing.pictures[row]: (name, splits[listing.pictures[row]])
            for row, name in zip(rows, best[2], strict=False)
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


def _names_of_classes(labels: Mapping[Parts, str], listings: Listings) -> dict[tuple[str, str], str]:
    """Return the classes that the cells of columns name: {(title or "", cell): class}."""
    every = {*labels.values()}
    numbers = {match[1].lstrip("0"): name for name in every if (match := re.match(r"\D*(\d+)", name))}
    names = {("", number): name for number, name in numbers.items()} if len(numbers) == len(every) else {}
    names |= {("", name.casefold()): name for name in every}
    for listing in listings.tables:
        for column, cells in listing.values.items():
            pairs = {
                (cell, labels[picture])
                for picture, cell in zip(listing.pictures, cells, strict=True)
                if picture in labels
            }
            title = listing.columns[column] if listing.columns else str(column)
            if len(pairs) == len({cell for cell, _ in pairs}) == len({name for _, name in pairs}) > 1:
                names |= {(title, cell.casefold()): name for cell, name in pairs}
    return names


def _class_of(cell: str, title: str, names: Mapping[tuple[str, str], str]) -> str | None:
    """Return the class that a cell or its first word names, such as "n01443537 1 1 9 9"."""
    for text in (cell.casefold(), *cell.casefold().split()[:1]):
        for key in ((title, text), ("", text), ("", text.lstrip("0") if text.isdecimal() else text)):
            if key in names:
                return names[key]
    return None
