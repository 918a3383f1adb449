"""Read tables beside pictures as rows of text: CSV and similar formats, JSON, and COCO annotations.

Source of COCO's layout: cocodataset.org/#format-data.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from vit.data.archives.name_encodings import UTF8, encoding_of
from vit.untrusted import parse_json, spend

MOST_BYTES = 32 << 20  # of a file; a million COCO annotations may exceed it, and are not read
_MOST_COLUMNS = 200
_MOST_ROWS, _LONGEST_LINE = 1_000_000, 100_000
_MOST_CELLS = MOST_BYTES // 2  # a character and a separator each
_MOST_UNITS = 7_000_000  # of 50 bytes that a parsed JSON table takes, see `_parsed`
_MOST_FOREIGN = 10_000  # lines used to detect the encoding
_LOOKED_AT = 20  # lines used to detect the separator
_FIRST = re.compile(r"(.+?\.[A-Za-z]{3,4}|\S+) (.+)")
_CHOICES = ("choices", "rectanglelabels", "polygonlabels", "brushlabels", "labels")  # of Label Studio
_LISTS = ("annotations", "images", "labels", "data", "items", "samples")


class TableTooLong(ValueError):
    """A table is too long; the message continues a sentence that begins with its name."""


class Table(NamedTuple):
    """Rows of equal length.

    Attributes:
        rows: stripped strings.
        columns: their names; None if there are none, or if the first row contains them.
    """

    rows: list[tuple[str, ...]]
    columns: tuple[str, ...] | None = None


def read_table(content: bytes, suffix: str) -> Table | None:
    """Parse a table; None if the file is not one.

    Args:
        suffix: of the file name, such as ".csv".

    Raises:
        TableTooLong: more rows, cells or JSON values than this module reads.
    """
    if suffix in (".json", ".jsonl", ".ndjson"):
        try:
            return _from_json(_parsed(content, suffix))
        except TableTooLong:
            raise
        except ValueError:
            return None
    if content.count(b"\n") + content.count(b"\r") > 2 * _MOST_ROWS:
        raise _too_long("rows", _MOST_ROWS)
    rows = _lines(_text(content), spaces=suffix == ".txt")
    width = max(map(len, rows), default=0)
    if not 1 <= width <= _MOST_COLUMNS:
        return None
    _limit_cells(len(rows), width)
    return Table([(*row, *[""] * (width - len(row))) for row in rows])


def _too_long(what: str, most: int) -> TableTooLong:
    return TableTooLong(
        f"has more than {most:,} {what}, so it is not read. Leave out other pictures and columns, or split it."
    )


def _limit_cells(rows: int, columns: int) -> None:
    if rows * columns > _MOST_CELLS:
        raise _too_long("cells", _MOST_CELLS)


def _text(content: bytes) -> str:
    if content.startswith((b"\xff\xfe", b"\xfe\xff")):
        return content.decode("utf-16", "replace")
    try:
        return content.removeprefix(b"\xef\xbb\xbf").decode(UTF8)
    except UnicodeDecodeError:
        marked = content.startswith(b"\xef\xbb\xbf")
    foreign = islice((line for line in io.BytesIO(content) if not line.isascii()), _MOST_FOREIGN)
    return content[3 * marked :].decode(UTF8 if marked else encoding_of(foreign), "replace")


def _lines(text: str, spaces: bool) -> list[tuple[str, ...]]:
    lines = [stripped for line in io.StringIO(text, newline=None) if (stripped := line.rstrip("\n")).strip()]
    if len(lines) > _MOST_ROWS:
        raise _too_long("rows", _MOST_ROWS)
    if not lines or max(map(len, lines)) > _LONGEST_LINE:
        return []
    for separator in "\t;,|":
        counts = {len(row) for row in _cells(lines[:_LOOKED_AT], separator)}
        if len(counts) == 1 and counts.pop() > 1:
            return list(_cells(io.StringIO(text, newline=""), separator))
    if spaces:
        return _words(lines)
    return list(_cells(io.StringIO(text, newline=""), ","))


def _words(lines: list[str]) -> list[tuple[str, ...]]:
    """Split lines into words; if their number varies, into a file name or word, and the rest of the line."""
    rows = [tuple(line.split()) for line in [lines[0], *(line for line in lines[1:] if not line.startswith("#"))]]
    if len({len(row) for row in rows[1:]}) < 2:
        return rows
    return [(match[1], match[2]) for row in rows if (match := _FIRST.fullmatch(" ".join(row)))]


def _cells(lines: Iterable[str], separator: str) -> Iterator[tuple[str, ...]]:
    count, known = 0, dict[str, str]()  # one string for all equal cells takes a tenth of the memory
    try:
        for row in csv.reader(lines, delimiter=separator, skipinitialspace=True):
            spend()
            if any(cell.strip() for cell in row):
                _limit_cells(1, count := count + len(row))
                yield tuple([known.setdefault(text := cell.strip(), text) for cell in row])
    except csv.Error:  # a cell beyond the library's limits, or a zero byte
        return


# --- JSON -----------------------------------------------------------------------------------------------------


def _parsed(content: bytes, suffix: str) -> Any:
    units = sum(weight * content.count(mark) for mark, weight in ((b"{", 4), (b"[", 2), (b",", 1), (b":", 1)))
    if units > _MOST_UNITS:
        raise TableTooLong("has too many values for a table in JSON, so it is not read. Save it as CSV, or split it.")
    content = content.removeprefix(b"\xef\xbb\xbf")
    if suffix == ".json":
        return parse_json(content)
    return [_line(line) for line in content.splitlines() if line.strip()]


def _line(content: bytes) -> Any:
    spend()
    return parse_json(content)


def _from_json(value: Any) -> Table | None:
    if isinstance(value, dict):
        if isinstance(value.get("categories"), list) and isinstance(value.get("images"), list):
            return _from_coco(value)
        for name in _LISTS:
            if isinstance(value.get(name), list) and (table := _from_json(value[name])):
                return table
        if value and all(isinstance(inner, dict) for inner in value.values()):
            return _from_objects([{"key": name, **inner} for name, inner in value.items()])
        pairs = ((name, *map(_cell, _as_list(one))) for name, inner in value.items() for one in _as_list(inner))
        rows: list[tuple[str, ...]] = list(islice(pairs, _MOST_ROWS + 1))
        if len(rows) > _MOST_ROWS:
            raise _too_long("rows", _MOST_ROWS)
        return _from_rows(rows)
    if not isinstance(value, list) or not value:
        return None
    if all(isinstance(row, dict) for row in value):
        tasks = [_from_task(row) for row in value if isinstance(row.get("data"), dict) and "annotations" in row]
        return _from_objects(tasks or value)
    if all(isinstance(row, list) and len(row) == len(value[0]) for row in value):
        return _from_rows([tuple(map(_cell, row)) for row in value])
    return None


def _from_rows(rows: list[tuple[str, ...]]) -> Table | None:
    widths = {*map(len, rows)}
    if len(widths) != 1 or not 1 < max(widths) <= _MOST_COLUMNS:
        return None
    _limit_cells(len(rows), max(widths))
    return Table(rows)


def _as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _from_objects(rows: Sequence[dict[str, Any]]) -> Table | None:
    columns = tuple(dict.fromkeys(name for row in rows for name in row))
    if not 2 <= len(columns) <= _MOST_COLUMNS:
        return None
    _limit_cells(len(rows), len(columns))
    return Table([_row(row, columns) for row in rows], columns)


def _row(row: dict[str, Any], columns: Sequence[str]) -> tuple[str, ...]:
    spend()
    return tuple([_cell(row.get(name, "")) for name in columns])


def _from_task(task: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a picture in Label Studio's JSON: its file, and the choices of all annotators.

    Source: labelstud.io/guide/export, "JSON".
    """
    return {**task["data"], "label": "|".join(sorted({*_choices(task["annotations"])} - {""}))}


def _choices(value: Any) -> Iterator[str]:
    spend()
    if isinstance(value, list):
        for one in value:
            yield from _choices(one)
    elif isinstance(value, dict) and not value.get("was_cancelled"):
        yield from (_cell(one) for key in _CHOICES for one in _as_list(value.get(key, [])))
        yield from _choices([value.get("result"), value.get("value")])


def _from_coco(value: dict[str, Any]) -> Table | None:
    """Return one row per annotation."""
    names: dict[Any, str] = {}
    files: dict[Any, str] = {}
    for source, key, into in ((value["categories"], "name", names), (value["images"], "file_name", files)):
        for one in source:
            if isinstance(one, dict) and isinstance(one.get("id"), int | str):
                into[one["id"]] = _cell(one.get(key, one["id"]))
    rows: list[tuple[str, ...]] = []
    annotations = value.get("annotations")
    for one in annotations if isinstance(annotations, list) else []:
        image, category = (one.get(key) if isinstance(one, dict) else None for key in ("image_id", "category_id"))
        if isinstance(image, int | str) and isinstance(category, int | str) and image in files and category in names:
            rows.append((files[image], names[category]))
    return Table(rows, ("file_name", "category")) if rows else None


def _cell(value: Any) -> str:
    """Convert a JSON value to the text of a cell; "" for other types."""
    if isinstance(value, list) and len(value) == 1:
        (value,) = value
    if isinstance(value, dict) and isinstance(value.get("choices"), list):  # Label Studio's JSON-MIN
        return "|".join(sorted(map(_cell, value["choices"])))
    return str(value).strip() if isinstance(value, str | int | float) else ""
