"""Determine the roles of a table's columns: file names, classes and splits."""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Literal

from vit.data.file_names import Parts, is_picture, printable_name
from vit.data.layouts.companions import COMPANION_WORDS
from vit.data.layouts.split_names import split_kinds, split_name
from vit.untrusted import brief_list, spend

Accepted = Literal["any", "usual", "label"]  # titles of a class column: any, a common one, or `label` only
_USUAL = (
    "label", "labels", "class", "classes", "category", "categories", "classname", "target", "species", "breed", "dx",
    "diagnosis", "tag", "tags", "choice", "y",
)  # fmt: skip
_FILE = {
    "file", "files", "filename", "filenames", "filepath", "filepaths", "fname", "path", "paths", "image", "images",
    "img", "imageid", "imagename", "imagepath", "picture", "photo", "datei", "dateiname", "bild",
}  # fmt: skip
_KEY = {"id", "ids", "name", "names", "key", "code", "uid"}
_SPLITS = {"split", "splits", "partition", "fold", "folds", "kfold", "subset", "setid"}
_MOST_SPLITS = 20  # different words in a column of splits
_FLAGS = {"0", "1", "0.0", "1.0", "true", "false", "yes", "no"}
_LIST = re.compile(r"(?:\{\"choices\": *)?\[(.*)\]\}?")  # the first part as in Label Studio's CSV
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_INDEX = re.compile(r"|unnamed: ?\d+|index|level_\d+", re.IGNORECASE)  # as pandas names the numbers of rows
_SOME = 1000  # rows sampled for the form of names
_MOST_NUMBERS = 20  # maximum number of different numbers in a class column, unless its name is a common one


def file_column(
    rows: Sequence[Sequence[str]], found: Mapping[int, Sequence[Parts | None]], titles: Sequence[str]
) -> int | str:
    """Find the column of file names among columns that name pictures; else return the rest of an error message.

    A number may count rows, or be an age, and still be the name of a picture. So a column with suffixes or folders has
    priority, then one whose title means a file; a column that counts the rows is used only without an alternative.

    Args:
        rows: without titles.
        found: column -> the picture that each cell names; None if it names none.
        titles: one per column, "" without one.
    """

    def score(column: int) -> tuple[bool, bool, int, bool]:
        spend()
        named = (row[column] for row, picture in zip(rows, found[column], strict=True) if picture)
        cells = list(islice(named, _SOME))
        names = sum(is_picture(cell) or "/" in cell or "\\" in cell for cell in cells)
        words = _words(titles[column])
        meant = 0 if words & {*_USUAL, *COMPANION_WORDS} else 2 if words & _FILE else 1 if words & _KEY else 0
        counts_rows = any(all(row[column] == str(n) for n, row in enumerate(rows, first)) for first in (0, 1))
        return 2 * names > len(cells), not _INDEX.fullmatch(titles[column]), meant, meant > 0 and not counts_rows

    scores = {column: score(column) for column in found}
    best = [column for column in found if scores[column] == max(scores.values())]
    if any(len({*pictures} - {None}) > 1 for pictures in zip(*(found[column] for column in best), strict=True)):
        names = " and ".join(title_of(column, titles) for column in best[:6])
        return f"its columns {names} name different ones. Keep one of them, or call it `filename`."
    return max(best, key=lambda column: (sum(map(bool, found[column])), -column))


def _words(title: str) -> set[str]:
    return {word.casefold() for word in re.findall(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])", title)}


def is_usual(title: str) -> bool:
    """Whether a title is a common one for classes."""
    return not _words(title).isdisjoint(_USUAL)


def title_of(column: int, titles: Sequence[str] | None) -> str:
    """Return the printable title of a column; its number from 1 without one."""
    return printable_name(titles[column]) if titles and titles[column] else str(column + 1)


def is_set(cell: str) -> bool:
    """Whether a cell of a column of 0 and 1 is 1."""
    return cell.casefold() in ("1", "1.0", "true", "yes")


def _are_flags(cells: set[str]) -> bool:
    return {cell.casefold() for cell in cells} <= _FLAGS


def names_splits(column: int, columns: Sequence[str] | None) -> bool:
    """Whether a column's name suggests splits, whose values may be unknown numbers."""
    words = set(re.split(r"[\W_]+", columns[column].casefold())) if columns else set()
    return not words.isdisjoint(_SPLITS) or words == {"data", "set"}


def splits_in(
    values: Mapping[int, Sequence[str]], columns: Sequence[str] | None, name: str
) -> dict[int, dict[str, str]]:
    """Return {column: {cell: split}} of the columns of splits.

    They may have 0 and 1 and titles such as `is_train`, unless other columns have them too: these are classes.

    Args:
        name: of the table, instead of a title if it has none, as in train_test_split.txt.
    """
    found, flags = dict[int, dict[str, str]](), dict[int, list[str]]()
    for column, own in values.items():
        cells = _different(own)
        if 1 - names_splits(column, columns) < len(cells) <= _MOST_SPLITS:
            named = {cell: split.kind for cell in cells if (split := split_name(cell)) and split.rank < 2}
            if len(named) == len(cells):
                found[column] = dict(named)
            elif _are_flags(cells) and len(cells) > 1:
                kinds: list[str] = [*split_kinds(columns[column] if columns else name)]
                flags[column] = kinds if columns or len({*kinds}) > 1 else []
    for column, kinds in flags.items() if all(flags.values()) else ():
        other = "test" if kinds[0] == "train" else "train"
        found[column] = {cell: kinds[0] if is_set(cell) else other for cell in _different(values[column])}
    return found


def classes_in(cells: Iterable[str]) -> dict[str, set[str]]:
    """Map the different cells of a class column to their classes.

    A cell has several if it is written as a list, or with separators between names that are classes by themselves.
    """
    found = {}
    for cell in {*cells} - {""}:
        spend()
        if inner := _LIST.fullmatch(cell):
            parts = _QUOTED.findall(inner[1]) or inner[1].split("," if "," in inner[1] else None)
            parts = [part.strip("'\"") for part in parts]
        else:
            parts = re.split("[|;]", cell)
        found[cell] = {*map(str.strip, parts)} - {""}
    for mark, share in ((",", 1), ("[/+&]", 1), (r"\s", 2)):
        single = {name for own in found.values() if len(own) == 1 for name in own}
        joined = {}
        for name in single:
            spend()
            if len(own := {*map(str.strip, re.split(mark, name))} - {""}) > 1:
                joined[name] = own
        varied = len({len(own) for own in joined.values()}) > 1 or len(single) > len(joined)
        recurring = varied and share * len(set().union(*joined.values())) < len(joined)
        usual = recurring or 2 * sum(own <= single for own in joined.values()) > len(joined)
        for cell, own in found.items():
            parts = joined.get(min(own), set()) if len(own) == 1 else set()
            whole = usual or (mark == r"\s" and "_" in cell)  # instead of a space in a name
            if parts <= single or recurring or (whole and parts & single):
                found[cell] = parts or own
    return found


def label_columns(
    values: Mapping[int, Sequence[str]], columns: Sequence[str] | None, accepted: Accepted
) -> list[int] | str:
    """Find the class column, or one-hot columns; if neither is clear, return the rest of an error message."""
    different = {column: _different(own) for column, own in values.items()}
    usual = {
        column: min(_USUAL.index(word) for word in words)
        for column in different
        if columns and (words := set(re.split(r"[\W_]+", columns[column].casefold())) & set(_USUAL))
    }
    named = [column for column in usual if len(different[column]) > 1 and not _is_measure(values[column])]
    exact = [column for column in named if columns and columns[column].casefold() == "label"]
    if accepted == "label":
        return exact[:1] or "has no column `label`."
    if named:
        return _one_of(named, values, columns, exact)
    flags = [c for c, own in different.items() if own and _are_flags(own)]
    if len(flags) > 1 and columns:
        counts = [0] * len(values[flags[0]])
        for column in flags:
            spend()
            known = set(filter(is_set, different[column]))
            counts = [count + (cell in known) for count, cell in zip(counts, values[column], strict=True)]
        if 2 * counts.count(1) > len(counts):
            return flags
    repeated = [
        column
        for column, own in different.items()
        if accepted == "any"
        and 1 < len(own) < len(values[column])
        and (len(values) == 1 or 2 * len(own) <= len(values[column]))
        and not (len(own) > _MOST_NUMBERS and all(map(_is_number, own)))
    ]
    if not repeated and usual:
        return f"its column {title_of(min(usual), columns)} names no two classes."
    if not repeated:
        return "has no column that could be their class. Add one called `label`."
    return _one_of(repeated, values, columns, [])


def _different(cells: Sequence[str]) -> set[str]:
    spend()
    return set(cells) - {""}


def _one_of(
    fit: list[int], values: Mapping[int, Sequence[str]], columns: Sequence[str] | None, exact: list[int]
) -> list[int] | str:
    """Return the only candidate, or among equivalent ones the one with words."""
    first = fit[0]

    def is_same(column: int) -> bool:
        spend()
        pairs = set(zip(values[first], values[column], strict=True))
        return len(pairs) == len(set(values[first])) == len(set(values[column]))

    if all(map(is_same, fit)):
        return [next((column for column in fit if not all(map(_is_number, values[column]))), first)]
    if exact:
        return exact[:1]
    names = brief_list(title_of(column, columns) for column in fit)
    return f"several columns could be the class: {names}. Call the right one `label`."


def _is_number(text: str) -> bool:
    return not text or re.fullmatch(r"[-+]?(?:\d+(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d+)?", text) is not None


def _is_measure(values: Sequence[str]) -> bool:
    """Whether a column contains many different fractions, as measurements do."""
    different = set(values)
    return len(different) > _MOST_NUMBERS and all(map(_is_number, different)) and any("." in v for v in different)
