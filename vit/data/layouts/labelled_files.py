"""Determine the classes of pictures in one folder, from a table beside them or from their file names.

The content of a table's columns determines their roles. One column contains file names, with or without folders and
suffix. The class column has a common name for it, or else is the only other column with repeated values.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from itertools import islice
from os.path import splitext
from pathlib import PurePosixPath
from typing import NamedTuple
from urllib.parse import unquote

from vit.data.file_names import NOT_READ, PICTURES, Parts, printable_name, printable_path
from vit.data.layouts.split_names import split_name, split_of
from vit.data.layouts.table_columns import (
    Accepted,
    classes_in,
    file_column,
    is_set,
    label_columns,
    names_splits,
    splits_in,
    title_of,
)
from vit.data.tables import MOST_BYTES, Table, TableTooLong, read_table
from vit.untrusted import Unreadable, spend

MOST_TABLES = 50  # maximum number of tables to read
_MOST_TABLE_BYTES = 2 * MOST_BYTES  # of all tables together
_MOST_FILE_COLUMNS = 10  # columns of which all rows are looked up; those that name most pictures in a sample of rows
_MOST_TRIED = 500  # rows sampled to find the column of file names; up to twice as many
_MISSING = {"nan", "<na>"}  # as pandas writes cells without a value
_UPLOADED = re.compile("[0-9a-f]{8}-(.+)")  # as Label Studio calls uploaded files
_CAMERAS = {
    "img", "image", "dsc", "dscn", "dscf", "pxl", "photo", "pic", "picture", "p", "mvi", "vid", "screenshot", "scan",
    "frame", "whatsapp", "received", "fb", "file", "untitled", "download", "unnamed", "sample", "train", "test", "val",
    "dji", "gopr", "gh", "gx", "cimg", "sam", "mvimg", "imag", "signal", "telegram", "snapchat", "instagram",
    "facebook", "capture",
}  # fmt: skip


class PictureLabels(NamedTuple):
    """Classes of single pictures.

    Attributes:
        labels: (class, split) of each; the split is "train", "validation", "test" or "".
        notes: where the classes are from, and what was left out.
        tables: those that were used.
    """

    labels: dict[Parts, tuple[str, str]]
    notes: tuple[str, ...]
    tables: tuple[Parts, ...] = ()


class NoLabels(NamedTuple):
    """Why no table names classes, in a sentence; "" if no table lists these pictures.

    Attributes:
        by_table: a table lists these pictures, so file names should not be tried.
    """

    reason: str = ""
    by_table: bool = False


# --- Tables ---------------------------------------------------------------------------------------------------


class Listing(NamedTuple):
    """A table that lists pictures.

    Attributes:
        path: of the table.
        pictures: one per row.
        splits: (picture, split) pairs, from a column or the table's name.
        values: cells of each column but those of file names and splits, one per picture.
        columns: titles, if it has any.
        files: the column of file names.
        unknown: title of a column of splits that are not understood, or "".
    """

    path: Parts
    pictures: list[Parts]
    splits: list[tuple[Parts, str]]
    values: dict[int, list[str]]
    columns: Sequence[str] | None
    files: int
    unknown: str


class Listings(NamedTuple):
    """The tables that list some pictures; for the others, the reason by its kind and the table."""

    tables: list[Listing]
    others: dict[str, dict[Parts, str]]


class _Reading(NamedTuple):
    """Content of one table: classes of each picture."""

    classes: dict[Parts, set[str]]
    note: str


def list_tables(pictures: Iterable[Parts], tables: Iterable[Parts], read: Callable[[Parts], bytes]) -> Listings:
    """Find the tables that list these pictures.

    Args:
        read: returns the content of a table; raises OSError or Unreadable.
    """
    index, found, tried, size = _Index(pictures), Listings([], defaultdict(dict)), 0, 0
    unmatched: list[tuple[Parts, Table]] = []
    for path in sorted(tables, key=lambda path: (len(path), path)):
        shown, name = printable_path(path), PurePosixPath(path[-1].casefold())
        if name.stem in index.by_stem:
            found.others["single"][path] = f"Annotations of single pictures, such as {shown}, are not read."
            continue
        if "submission" in name.stem:  # with made-up predictions
            continue
        if name.suffix in NOT_READ:
            found.others["unread"][path] = f"{shown} is not read. Save it as CSV."
            continue
        spend()
        if (tried := tried + 1) > MOST_TABLES or size > _MOST_TABLE_BYTES:
            found.others["left"][path] = f"Only the first {tried - 1} tables are read, before {shown}."
            break
        try:
            size += len(content := read(path))
            table = read_table(content, name.suffix)
        except (OSError, Unreadable, TableTooLong) as error:
            found.others["failed"][path] = f"{shown} {error}" if isinstance(error, TableTooLong) else str(error)
            continue
        listing = _list(table, path, index) if table else None
        if isinstance(listing, Listing):
            found.tables.append(listing)
        elif listing:
            found.others["unclear"][path] = listing
        elif table:
            unmatched.append((path, table))
    for one in found.tables:  # CUB-200's images.txt numbers the pictures, and its other tables have the numbers
        for cells in one.values.values():
            if len({*cells} - {""}) == len(cells):
                index.by_key.update(zip(cells, one.pictures, strict=True))
    for path, table in unmatched:
        listing = _list(table, path, index) if index.by_key else None
        if isinstance(listing, Listing) and 10 * len({*listing.pictures}) > 9 * len({*index.by_key.values()}):
            found.tables.append(listing)
        else:
            kind = "text" if path[-1].lower().endswith(".txt") else "unmatched"  # any text, or a table
            why = f"{printable_path(path)} names fewer than half of the pictures, so it is not used."
            found.others[kind][path] = why
    return found


def labels_in(listings: Listings, pictures: Collection[Parts], accepted: Accepted) -> PictureLabels | NoLabels:
    """Read the classes in tables; only folders determine the splits.

    Args:
        pictures: all of which the tables should name the class.
        accepted: titles of a class column.
    """
    found = [(one.path, _read(one, accepted)) for one in listings.tables if one.values or one.unknown]
    readings = [(path, own) for path, own in found if isinstance(own, _Reading)]
    reasons = [*listings.others["unclear"].values(), *(own for _, own in found if isinstance(own, str))]
    failed = [*listings.others["failed"].values()]
    if not readings:
        reasons += failed
        kinds = ("unread", "unmatched", "single", "left")
        others = [reason for kind in kinds for reason in listings.others[kind].values()]
        return NoLabels(reasons[0], by_table=True) if reasons else NoLabels("".join(others[:1]))
    merged = _merged(readings, pictures)
    failed += listings.others["left"].values()
    return merged._replace(notes=(*merged.notes, *failed)) if isinstance(merged, PictureLabels) else merged


def _merged(readings: list[tuple[Parts, _Reading]], pictures: Collection[Parts]) -> PictureLabels | NoLabels:
    """Merge several tables about the same pictures; the longest takes precedence."""
    readings.sort(key=lambda one: -len(one[1].classes))
    labels: dict[Parts, tuple[str, str]] = {}
    notes, used, several = list[str](), list[Parts](), set[Parts]()
    for path, reading in readings:
        spend()
        pairs = {
            picture: (labels[picture][0], next(iter(names)) if len(names) == 1 else "")
            for picture, names in reading.classes.items()
            if picture in labels
        }
        if not agree(pairs.values()):
            other = min(picture for picture, (one, another) in pairs.items() if one != another)
            return NoLabels(
                f"{printable_path(used[0])} and {printable_path(path)} name different classes of pictures, such as "
                f"{printable_path(other)}. Leave one.",
                by_table=True,
            )
        own = {picture: names for picture, names in reading.classes.items() if picture not in labels}
        if not own:
            continue
        before, classes = {label for label, _ in labels.values()}, {name for names in own.values() for name in names}
        if min(len(before), len(classes)) > 1 and before.isdisjoint(classes):
            return NoLabels(
                f"{printable_path(used[0])} and {printable_path(path)} have no class in common. Leave one of them.",
                by_table=True,
            )
        for picture, names in own.items():
            if len(names) > 1:
                several.add(picture)
                continue
            by_folder = split_of(name for name in picture[:-1] if (known := split_name(name)) and known.rank < 2)
            labels[picture] = next(iter(names)), by_folder.kind if by_folder else ""
        notes.append(reading.note)
        used.append(path)
    several -= set(labels)
    if len(several) > 3 * len(labels):
        much = f"{len(several):,} of the pictures have several classes in {printable_path(readings[0][0])}"
        return NoLabels(f"{much}, a multi-label dataset. Only one class per picture can be learnt.", by_table=True)
    if several:
        verb = "has" if len(several) == 1 else "have"
        notes.append(f"{len(several):,} of the pictures {verb} several classes there and cannot be used.")
    if unnamed := len({*pictures} - labels.keys() - several):
        notes.append(f"No class is given there for {unnamed:,} of {len(pictures):,} pictures.")
    if len({label for label, _ in labels.values()}) > 1:
        return PictureLabels(labels, tuple(notes), tuple(used))
    if several:
        return NoLabels(" ".join(notes), by_table=True)
    return NoLabels(f"{notes[0]} It names one class only." if labels else "", by_table=bool(labels))


def agree(pairs: Collection[tuple[str, str]]) -> bool:
    """Whether pairs of classes of the same pictures are mostly equal, or different names of the same classes."""
    if 2 * sum(one == other for one, other in pairs) >= len(pairs):
        return True
    ones, others = ({pair[side] for pair in pairs} for side in (0, 1))
    return len(set(pairs)) == len(ones) == len(others) and not ones & others


class _Index:
    """Pictures indexed by file name, stem and number."""

    def __init__(self, pictures: Iterable[Parts]):
        self.by_name: dict[str, list[Parts]] = defaultdict(list)
        self.by_stem: dict[str, list[Parts]] = defaultdict(list)
        self.by_number: dict[str, list[Parts]] = defaultdict(list)
        self.by_key = dict[str, Parts]()  # that tables use instead of names
        self.count = 0
        self._inner: dict[int, dict[str, list[Parts]]] = {}  # by id of a list in this index and the next folder
        self._chosen: dict[tuple[int, Parts, str], Parts | None] = {}
        for path in pictures:
            spend()
            self.count += 1
            name = path[-1].casefold()
            self.by_name[name].append(path)
            stem = splitext(name)[0]
            self.by_stem[stem].append(path)
            if stem.isdecimal():
                self.by_number[stem.lstrip("0")].append(path)

    def find(self, text: str, home: Parts, split: str) -> Parts | None:
        """Find the picture that a cell refers to; None if there is none, or the reference is ambiguous.

        Args:
            home: folder of the table.
            split: that the table belongs to, or "".
        """
        found = self._find(text, home, split) or self.by_key.get(text)
        if found or not ("%" in text or "?" in text):
            return found
        address, _, query = map(unquote, text.partition("?"))
        return self._find(address, home, split) or self._find(query.rpartition("=")[2], home, split)

    def _find(self, text: str, home: Parts, split: str) -> Parts | None:
        parts = [part.casefold() for part in text.replace("\\", "/").split("/") if part not in ("", ".")]
        if not parts:
            return None
        name = parts[-1]
        known = self.by_name.get(name) or self.by_stem.get(name)
        if not known:
            stem, suffix = splitext(name)
            stem = stem if suffix in PICTURES else name
            known = self.by_stem.get(stem)
            if not known and (uploaded := _UPLOADED.fullmatch(name)):
                known = self.by_name.get(uploaded[1])
            if not known and stem.isdecimal():  # spreadsheets remove leading zeros
                known = self.by_number.get(stem.lstrip("0"))
        if not known or len(known) == 1:
            return known[0] if known else None
        return self._most_like(known, parts[:-1], home, split)

    def _most_like(self, known: list[Parts], folders: Sequence[str], home: Parts, split: str) -> Parts | None:
        """Return the picture that shares most of the last folders, else is in the table's folder, else in its split."""
        for depth, folder in enumerate(reversed(folders), 2):
            inner = self._inner.get(id(known))
            if inner is None:  # each list is divided once, so that many equal names take no more time
                inner = self._inner[id(known)] = defaultdict(list)
                for path in known:
                    if len(path) >= depth:
                        inner[path[-depth].casefold()].append(path)
            if folder not in inner:
                break
            known = inner[folder]
        if len(known) == 1:
            return known[0]
        if (key := (id(known), home, split)) not in self._chosen:

            def likeness(path: Parts) -> tuple[bool, bool]:
                own = split_of(path[:-1])
                return path[: len(home)] == home and bool(home), bool(own and own.kind == split)

            best = max(map(likeness, known))
            alike = [path for path in known if likeness(path) == best]
            self._chosen[key] = alike[0] if len(alike) == 1 else None
        return self._chosen[key]


def _list(table: Table, path: Parts, index: _Index) -> Listing | str | None:
    """Find the pictures that a table lists; a sentence if it is ambiguous which, None if it lists none."""
    rows = table.rows
    of_table = split_name(stem := PurePosixPath(path[-1]).stem)
    split = of_table.kind if of_table else ""
    some = rows[:: max(len(rows) // _MOST_TRIED, 1)]

    @cache
    def find(cell: str) -> Parts | None:
        spend()
        return index.find(cell, path[:-1], split)

    named = {column: {find(row[column]) for row in some} - {None} for column in range(len(rows[0]))}
    likely = sorted(filter(named.get, named), key=lambda column: -len(named[column]))[:_MOST_FILE_COLUMNS]
    found = {column: [find(row[column]) for row in rows] for column in sorted(likely)}
    different = {column: len({*own} - {None}) for column, own in found.items()}
    fit = {
        column: own
        for column, own in found.items()
        if 2 * different[column] > max(different.values())
        and (2 * sum(map(bool, own)) >= len(rows) - 1 or 2 * different[column] >= index.count)
    }
    if not fit:
        return None
    columns = table.columns
    first = columns is None  # the row that may contain the titles
    titles = columns or ["" if column in fit and fit[column][0] else title for column, title in enumerate(rows[0])]
    files = file_column(rows[first:], {column: own[first:] for column, own in fit.items()}, titles)
    if isinstance(files, str):
        return f"{printable_path(path)} names these pictures, but {files}"
    pictures = fit[files]
    if columns is None and pictures[0] is None:
        columns, rows, pictures = rows[0], rows[1:], pictures[1:]
    named_rows = [row for row, picture in zip(rows, pictures, strict=True) if picture]
    named_pictures = list(filter(None, pictures))
    others = [column for column in range(len(rows[0])) if column != files] if rows else []
    values = {column: _without_missing([row[column] for row in named_rows]) for column in others}
    known = splits_in(values, columns, stem)
    unknown = [column for column in others if column not in known and names_splits(column, columns)]
    splits = [
        (picture, own[cell])
        for column, own in islice(known.items(), 1)
        for picture, cell in zip(named_pictures, values[column], strict=True)
        if cell in own
    ] or [(picture, split) for picture in named_pictures if split]
    values = {column: own for column, own in values.items() if column not in known and column not in unknown}
    return Listing(
        path, named_pictures, splits, values, columns, files, title_of(unknown[0], columns) if unknown else ""
    )


def _read(listing: Listing, accepted: Accepted) -> _Reading | str:
    """Read the classes in a table; a sentence if they are ambiguous."""
    shown, columns, values = printable_path(listing.path), listing.columns, listing.values
    chosen = label_columns(values, columns, accepted)
    if isinstance(chosen, str):
        return f"{shown} names these pictures, but {chosen}"
    classes: dict[Parts, set[str]] = defaultdict(set)
    for column in chosen:
        spend()
        names = classes_in(values[column])
        if len(chosen) > 1 and columns:
            names = {cell: {columns[column]} for cell in names if is_set(cell)}
        for picture, cell in zip(listing.pictures, values[column], strict=True):
            if names.get(cell):
                classes[picture] |= names[cell]
    title = ", ".join(title_of(column, columns) for column in (listing.files, *chosen[:3])) + ", …" * (len(chosen) > 3)
    return _Reading(classes, f"Classes are from {shown} (columns {title}).")


def _without_missing(cells: list[str]) -> list[str]:
    """Replace cells without a value by ""."""
    spend()
    missing = {cell for cell in set(cells) if cell.casefold() in _MISSING}
    return ["" if cell in missing else cell for cell in cells] if missing else cells


def name_numeric_classes(labelled: PictureLabels) -> PictureLabels:
    """Replace a table's numeric classes by words in the file names, if both distinguish the same classes."""
    if not all(label.isdecimal() for label, _ in labelled.labels.values()):
        return labelled
    named = from_names(list(labelled.labels))
    if named is None or named.labels.keys() != labelled.labels.keys():
        return labelled
    pairs = {(label, named.labels[picture][0]) for picture, (label, _) in labelled.labels.items()}
    words = dict(pairs)
    if len({*words.values()}) < len(pairs):
        return labelled
    labels = {picture: (words[label], split) for picture, (label, split) in labelled.labels.items()}
    return labelled._replace(labels=labels, notes=(*labelled.notes, "The names of the files give them in words."))


# --- Names of files -------------------------------------------------------------------------------------------

_CLASS_FIRST = re.compile(r"(?P<name>.*\w)(?P<mark>[ ._-])\(?\d+\)?|(?P<word>.*[^\W\d_])\d+")
_MOMENT = re.compile(r"(19|20)\d\d[-_. ]?[01]\d[-_. ]?[0-3]\d|^[\d\W_]{4,}$")  # a camera's date, or many digits
PERSON = re.compile(r"-?\d+_c\d")  # and a camera, as in Market-1501's 0002_c1s1_000451_00.jpg
_CLASS_LAST = re.compile(r"\d+(?P<mark>[ ._-])(?P<name>[^\W\d_].*)")


def from_names(pictures: Sequence[Parts]) -> PictureLabels | None:
    """Determine classes from names such as cat.0.jpg, cat_001.jpg or 001-cat.jpg; None if a name does not match.

    All names of a folder must have the same form. Test folders with other names are left out.
    """
    folders: dict[Parts, list[Parts]] = defaultdict(list)
    for picture in pictures:
        folders[picture[:-1]].append(picture)
    for pattern in (_CLASS_FIRST, _CLASS_LAST):
        labels: dict[Parts, tuple[str, str]] = {}
        marks = set()
        for folder, own in folders.items():
            split = split_of(folder)
            found = [pattern.fullmatch(splitext(picture[-1])[0]) for picture in own]
            if not all(found):
                if split and split.kind == "test":
                    continue
                break
            for picture, match in zip(own, found, strict=True):
                groups = match.groupdict() if match else {}
                labels[picture] = groups["name"] or groups["word"], split.kind if split else ""
                marks.add(groups["mark"])
        else:
            counts = Counter(label for label, _ in labels.values())
            train = {label for label, split in labels.values() if split == "train"}
            if train and train != set(counts):
                continue
            first = {re.split(r"[\W\d_]+", label.casefold())[0] for label in counts}
            if any(map(_MOMENT.search, counts)) or all(PERSON.match(picture[-1]) for picture in labels):
                continue
            if len(marks) == 1 and len(counts) > 1 and 2 * len(counts) <= len(labels) and not first & _CAMERAS:
                example = next(iter(labels))
                note = f"Classes are from the names of the files: {printable_name(example[-1])} is of "
                return PictureLabels(labels, (f"{note}{printable_name(labels[example][0])}.",))
    return None
