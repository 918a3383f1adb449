"""Datasets with many pictures in few files: WebDataset tar files, and parquet as on the Hugging Face Hub.

A folder of such files can be used like a folder of class folders. `index.npz` beside the files stores the position of
each picture, so that pictures can be read in random order: the order of training depends only on seed and epoch, and a
resumed run continues exactly. Pictures in parquet files are compressed together, so they are copied once into
`pictures.bin`.

    train-*.tar, val-*.tar, test-*.tar      records KEY.jpg with KEY.cls, or KEY.json with "label"
    train-*.parquet, ...                    columns `image` (with `bytes`) or `img`, and `label` or `fine_label`
    classes.json                            {"0": "tench", "1": ...}, if the files name no classes

A label is a number from 0, or a name; names are numbered in alphabetical order. Pictures without a label are left out
and counted, and so are those with the label -1 in parquet, which hides the labels of test pictures on the Hub.

A word in a file's name, else in its folder's, determines its split, see `vit.data.layouts.split_names`; all other files
are for training.
Source of the layouts: github.com/webdataset/webdataset, README; features `Image` and `ClassLabel` of Hugging Face's
`datasets` 4.
"""

import hashlib
import io
import json
import os
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from vit.data import arrays
from vit.data.archives.archive_readers import DAMAGE, Budget
from vit.data.file_names import PICTURES
from vit.data.layouts.class_names import FILE as CLASSES
from vit.data.layouts.class_names import MAX_NAME
from vit.data.layouts.split_names import Kind, split_name
from vit.data.picture_trees import DiskTree, pictures_below
from vit.data.readable import stamps_of
from vit.errors import InvalidDataset, UserError
from vit.files import replaced
from vit.progress import tqdm
from vit.stored_archives import read_arrays
from vit.untrusted import Unreadable, brief, brief_list, parse_json, read_bytes, spend

INDEX, COPIED = "index.npz", "pictures.bin"
SPLITS = ("train", "validation", "test")
MOST_BYTES = 1 << 28  # of one picture [bytes]
_SUFFIXES = (".tar", ".parquet")
_COPIED = (".parquet", *arrays.SUFFIXES)  # of files whose pictures are copied
SUFFIXES = frozenset((*_SUFFIXES, *_COPIED))
_BATCH_BYTES, _MOST_ROWS = 1 << 26, 200  # limits on a batch of parquet rows
_ROWS_FLOOR = 100_000  # rows of a parquet file in addition to one per byte; runs of equal values take hardly any bytes
_MOST_LABEL = 1 << 20
_MAX_HEADER = 1 << 20  # [bytes] in a tar, of a file's name and attributes
_HIDDEN = -1  # label of test pictures in parquet
_VERSION = 2


class _NoLabel(Enum):
    """Why a picture has no label, as the end of a sentence with "because"."""

    MISSING = "their label is missing or hidden (-1)"
    INVALID = f"their label is neither a whole number nor a name of at most {MAX_NAME} characters"
    NAMED = "their label is a name, and most labels are numbers"
    ALONE = "no KEY.cls with the class is beside KEY.jpg. If the folders in a tar are the classes, unpack it"
    NO_BYTES = "their bytes are not in the column of pictures, which may hold names of files only. Embed the pictures"


_Label = int | str | _NoLabel
_Row = tuple[int, int, int, _Label, int]  # file, offset, length, label, split


@dataclass(frozen=True)
class Records:
    """Positions of pictures in their files, without opening them.

    Attributes:
        files: that contain the pictures.
        file: (n,) index of each picture's file.
        offset, length: (n,) position in it [bytes].
    """

    files: tuple[Path, ...]
    file: NDArray[np.int32]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.file)

    def __getitem__(self, index: int) -> bytes:
        """Read the bytes of a picture; raises OSError if they are missing."""
        with self.files[self.file[index]].open("rb") as file:
            return os.pread(file.fileno(), int(self.length[index]), int(self.offset[index]))

    def name(self, index: int) -> str:
        """Describe a picture's position, for people."""
        return f"{self.files[self.file[index]].name} at byte {int(self.offset[index]):,}"

    def stamps(self) -> Iterator[str]:
        """Yield a cache key for the pictures: size and time of their files, and their positions."""
        yield from stamps_of(self.files)
        yield from (hashlib.blake2b(column.tobytes()).hexdigest() for column in (self.file, self.offset, self.length))

    def chosen(self, places: Sequence[int]) -> Self:
        """Select some records, in this order."""
        some = np.asarray(places, np.int64)
        return replace(self, file=self.file[some], offset=self.offset[some], length=self.length[some])


class Index(NamedTuple):
    """Index of a folder of such files.

    Attributes:
        records: of all splits.
        labels: (n,) int64.
        split: (n,) index in `SPLITS`.
        classes: one name per label.
        notes: assumptions, for people.
    """

    records: Records
    labels: NDArray[np.int64]
    split: NDArray[np.int8]
    classes: tuple[str, ...]
    notes: tuple[str, ...] = ()


def own_files_of(folder: Path) -> list[Path]:
    """List the tar and parquet files in a folder and its data/, train/, val/ and test/, but no other subfolders.

    Without these, and without pictures, arrays of NumPy are listed. A single file is listed alone.
    """
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    places = [place for place in inside if place.is_dir() and (place.name == "data" or split_name(place.name))]
    found = [*inside, *(entry for place in places for entry in place.iterdir())]
    found = [path for path in found or [folder] if not path.name.startswith(".") and path.is_file()]
    if packed := sorted(path for path in found if path.suffix in _SUFFIXES):
        return packed
    saved = sorted(path for path in found if path.suffix in arrays.SUFFIXES and path.name != INDEX)
    return [] if saved and folder.is_dir() and pictures_below(DiskTree(folder)) else saved


def files_of(folder: Path) -> list[Path]:
    """List the files of `own_files_of`, or those of the only subfolder that has some: a configuration of the Hub.

    Raises:
        InvalidDataset: several subfolders have such files, and none has pictures.
    """
    if (found := own_files_of(folder)) or not folder.is_dir():
        return found
    below = {name: own for name in DiskTree(folder).folders if (own := own_files_of(folder / name))}
    if below and pictures_below(DiskTree(folder)):
        return []
    if len(below) > 1:
        names = brief_list(f"{brief(name)}/" for name in below)
        raise InvalidDataset(f"There are several datasets, in {names}. Choose one of these folders.")
    return next(iter(below.values()), [])


def split_of(folder: Path, file: Path) -> Kind | None:
    """Return the split that a file's name, else the name of its folder, contains as a word.

    >>> split_of(Path("d"), Path("d/imagenet1k-val-0003.tar")), split_of(Path("d"), Path("d/test/0.parquet"))
    ('validation', 'test')
    >>> split_of(Path("d"), Path("d/testament.tar"))
    """
    path = PurePosixPath(os.path.relpath(file, folder)).with_suffix("")
    return next((split.kind for part in reversed(path.parts) if (split := split_name(part))), None)


def index(folder: Path, bar: bool = True) -> Index:
    """Read the index of a folder, or create it first, with a progress bar.

    Raises:
        InvalidDataset: a file is damaged, or no picture has a label.
    """
    files = files_of(folder)
    if not folder.is_dir():  # the index of a single file
        folder = folder.with_name(f".{folder.name}.index")
        with suppress(OSError):  # then writing into it raises
            folder.mkdir(exist_ok=True)
    stats = [file.stat() for file in files]
    stamps = [
        # Microseconds, because nanoseconds have 19 digits, and `parse_json` refuses integers of more than 18.
        [os.path.relpath(file, folder), stat.st_size, stat.st_mtime_ns // 1000]
        for file, stat in zip(files, stats, strict=True)
    ]
    if (known := _read(folder, stamps)) is not None:
        return known
    try:
        made = _make(folder, files, bar)
    except OSError as error:
        what = Path(error.filename or folder).name
        raise InvalidDataset(f"{brief(what)} cannot be read or written: {error.strerror or error}.") from error
    arrays: dict[str, Any] = {
        "number": made.records.file,
        "offset": made.records.offset,
        "length": made.records.length,
        "labels": made.labels,
        "split": made.split,
    }
    document = {"version": _VERSION, "files": stamps, "classes": made.classes, "notes": made.notes}
    with suppress(OSError), replaced(folder / INDEX) as out:  # a read-only folder is indexed each time
        np.savez(out, document=np.frombuffer(json.dumps(document).encode(), np.uint8), **arrays)
    return made


def _read(folder: Path, stamps: list[list[Any]]) -> Index | None:
    """Read the index if it belongs to these files."""
    path = folder / INDEX
    try:
        arrays = read_arrays(path, path.stat().st_size)  # `index` does not compress it
        document = parse_json(arrays["document"].tobytes())
        if document["version"] != _VERSION or document["files"] != stamps:
            return None
        file, offset, length, labels, split = (
            arrays[name] for name in ("number", "offset", "length", "labels", "split")
        )
        files = tuple(folder / name for name, *_ in stamps)
        if any(path.suffix in _COPIED for path in files):
            files = (*files, folder / COPIED)
        classes, notes = (tuple(map(str, document[name])) for name in ("classes", "notes"))
        known = Index(Records(files, file, offset, length), labels, split, classes, notes)
        return known if _is_sound(known) else None
    except (OSError, ValueError, KeyError, TypeError, Unreadable):
        return None


def _is_sound(known: Index) -> bool:
    """Validate an index, which is as untrusted as any other file."""
    records, labels, split, classes, _ = known
    columns: tuple[NDArray[Any], ...] = (records.file, records.offset, records.length, labels, split)
    if not all(column.ndim == 1 and column.dtype.kind == "i" and len(column) == len(labels) for column in columns):
        return False
    sizes = np.array([path.stat().st_size for path in records.files])
    limits = (len(records.files), int(sizes.max()) + 1, MOST_BYTES + 1, len(classes), len(SPLITS))
    if not len(labels):
        return False
    if any(int(column.min()) < 0 or int(column.max()) >= most for column, most in zip(columns, limits, strict=True)):
        return False
    return bool((records.length > 0).all() and (records.offset + records.length <= sizes[records.file]).all())


def _make(folder: Path, files: Sequence[Path], bar: bool) -> Index:
    rows: list[_Row] = []
    names: tuple[str, ...] = ()
    copied = [file for file in files if file.suffix in _COPIED]
    size = sum(file.stat().st_size for file in copied)
    budget = Budget(size, folder, "The dataset", sys.maxsize)
    splits, assumed = [split_of(folder, file) for file in files], list[str]()
    with replaced(folder / COPIED) if copied else open(os.devnull, "wb") as out:
        if files[0].suffix in arrays.SUFFIXES:  # then all are
            with tempfile.TemporaryDirectory(dir=folder, prefix=".") as empty:
                read = arrays.read_arrays(files, splits, Path(empty), budget, assumed)
                rows = [
                    (number, *_copied(picture, own, out, budget), SPLITS.index(kind))
                    for number, picture, own, kind in read
                ]
        for number, file in enumerate(tqdm(files, desc="reading where pictures lie", unit="files", disable=not bar)):
            split = SPLITS.index(splits[number] or "train")
            if file.suffix == ".tar":
                rows += [(number, *place, split) for place in _in_tar(file)]
            elif file.suffix == ".parquet":
                own, named = _in_parquet(file, out, budget)
                if names and named and named != names:
                    raise InvalidDataset(
                        f"{brief(file.name)} numbers its classes differently from the files before it. Write all files "
                        "with the same ClassLabel."
                    )
                names = names or named
                rows += [(number, *place, split) for place in own]
    numbers, names = _numbered([row[3] for row in rows], names)
    notes = _notes_on_unlabelled(files, [row for row, label in zip(rows, numbers, strict=True) if label is None])
    table = [(*row[:3], label, row[4]) for row, label in zip(rows, numbers, strict=True) if label is not None]
    if not table:
        advice = " ".join(notes) or "Name them KEY.jpg and KEY.cls."
        raise InvalidDataset(f"No record has both a picture and a label. {advice}")
    lowest, highest = min(row[3] for row in table), max(row[3] for row in table)
    if lowest < 0 or highest >= _MOST_LABEL:
        raise InvalidDataset(
            f"Labels run from {brief(lowest)} to {brief(highest)}. They must be numbers from 0 to {_MOST_LABEL - 1:,}."
        )
    number, offset, length, labels, split = np.array(table, np.int64).T.copy()
    stored = np.array([len(files) if file in copied else i for i, file in enumerate(files)], np.int32)
    where = tuple(files) + ((folder / COPIED,) if copied else ())
    classes = _classes(folder, int(labels.max()) + 1, names)
    notes = (*_split_notes(files, splits), *assumed, *notes)
    return Index(Records(where, stored[number], offset, length), labels, split.astype(np.int8), classes, notes)


def _numbered(labels: Sequence[_Label], names: tuple[str, ...]) -> tuple[list[int | None], tuple[str, ...]]:
    """Return the number of each label, None without one, and the names of the classes.

    Args:
        labels: numbers, or names; the names are numbered if they are the majority, and left out otherwise.
        names: of the classes, if the labels are numbers.
    """
    known = [label for label in labels if not isinstance(label, _NoLabel)]
    if 2 * sum(isinstance(label, str) for label in known) <= len(known):
        return [label if isinstance(label, int) else None for label in labels], names
    names = tuple(sorted(set(map(str, known))))
    places = {name: place for place, name in enumerate(names)}
    return [None if isinstance(label, _NoLabel) else places[str(label)] for label in labels], names


def _split_notes(files: Sequence[Path], splits: Sequence[Kind | None]) -> tuple[str, ...]:
    """Return a note about files whose names state no split, if those of others do."""
    unnamed = [file.name for file, split in zip(files, splits, strict=True) if split is None]
    if not unnamed or len(unnamed) == len(files):
        return ()
    return (f"Read as training pictures, because their names state no split: {brief_list(map(brief, unnamed))}.",)


def _notes_on_unlabelled(files: Sequence[Path], rows: Sequence[_Row]) -> tuple[str, ...]:
    """Count the pictures without a label, by the reason."""
    by_reason: dict[str, list[str]] = {}
    for number, _, _, label, _ in rows:
        reason = label if isinstance(label, _NoLabel) else _NoLabel.NAMED
        by_reason.setdefault(reason.value, []).append(files[number].name)
    return tuple(
        f"Pictures left out of {brief_list(map(brief, sorted(set(own))))}: {len(own):,}, because {reason}."
        for reason, own in by_reason.items()
    )


def _classes(folder: Path, count: int, names: Sequence[str]) -> tuple[str, ...]:
    """Return the names from `classes.json`, else from the files, else numbers."""
    names_by_label: Any = {}
    with suppress(OSError, Unreadable, ValueError):
        names_by_label = parse_json(read_bytes(folder / CLASSES, 1 << 20))
    if isinstance(names_by_label, list):
        names_by_label = {str(number): name for number, name in enumerate(names_by_label)}
    names_by_label = names_by_label if isinstance(names_by_label, dict) else {}
    known = [names_by_label.get(str(i), names[i] if i < len(names) else str(i)) for i in range(max(count, len(names)))]
    texts = tuple(str(name)[:100] for name in known)
    return texts if len(set(texts)) == len(texts) else tuple(map(str, range(len(texts))))


class _Headers(io.FileIO):
    """A tar file whose headers are read by `tarfile`, which allocates as much for one as it claims."""

    def read(self, count: int | None = -1) -> Any:
        if count is None or not 0 <= count <= _MAX_HEADER:
            raise tarfile.ReadError("a header is too long")
        return super().read(count)


def _in_tar(path: Path) -> Iterator[tuple[int, int, _Label]]:
    """Yield offset, length and label of each picture."""
    pending: dict[str, dict[str, tuple[int, int]]] = {}
    try:
        with _Headers(path) as raw, tarfile.open(fileobj=raw, mode="r:") as archive:
            for member in archive:
                spend()
                if archive.offset <= member.offset:
                    raise tarfile.ReadError("its sizes contradict each other")
                archive.members = []  # type: ignore[attr-defined]  # tarfile would keep a million of them in memory
                if not member.isreg() or member.issparse():
                    continue
                place = PurePosixPath(member.name)
                stem, _, kind = place.name.partition(".")
                key, kind = str(place.parent / stem), kind.lower()
                what = "picture" if f".{kind}" in PICTURES else kind if kind in ("cls", "json") else ""
                if not what or not 0 < member.size <= MOST_BYTES:
                    continue
                record = pending.setdefault(key, {})
                record[what] = (member.offset_data, member.size)
                if "picture" in record and not isinstance(label := _label_of(record, raw.fileno()), _NoLabel):
                    yield (*record["picture"], label)
                    del pending[key]
            # At a damaged header or the end of the file, tarfile stops as at the end of the archive, which is a block
            # of zeros.
            if os.pread(raw.fileno(), tarfile.BLOCKSIZE, archive.offset) != bytes(tarfile.BLOCKSIZE):
                raise tarfile.ReadError("it is cut off or damaged")
            for record in pending.values():
                if "picture" in record:
                    yield (*record["picture"], _label_of(record, raw.fileno()))
    except DAMAGE as error:  # tarfile raises almost anything on hostile bytes
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InvalidDataset(f"{brief(path.name)} is a damaged tar: {brief(str(error))}. Copy it again.") from error


def _label_of(record: Mapping[str, tuple[int, int]], file: int) -> _Label:
    """Read the label of a record from its KEY.cls, else from its KEY.json.

    Args:
        record: offset and length of its parts.
    """
    label: _Label = _NoLabel.ALONE
    for source in ("cls", "json"):
        if source in record and isinstance(label, _NoLabel):
            offset, size = record[source]
            label = _label(os.pread(file, min(size, 1 << 16), offset), source)
    return label


def _label(content: bytes, source: str) -> _Label:
    """Read the content of KEY.cls or KEY.json."""
    try:
        if source == "json":
            return _checked_label(parse_json(content).get("label"))
        return int(content)
    except (ValueError, AttributeError):
        return _checked_label(content.decode(errors="replace")) if source == "cls" else _NoLabel.INVALID


def _checked_label(value: object) -> _Label:
    """Return a value as a label; a list is read as its only element, and a fraction of zero is ignored."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    if value is None:
        return _NoLabel.MISSING
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if type(value) is int:
        return value
    name = str(value).strip() if isinstance(value, str | bool) else ""
    return name if 0 < len(name) <= MAX_NAME else _NoLabel.INVALID


def _in_parquet(path: Path, out: Any, budget: Budget) -> tuple[list[tuple[int, int, _Label]], tuple[str, ...]]:
    """Copy the pictures out; return offset, length and label of each, and names of the classes."""
    try:
        import pyarrow.parquet as pq  # noqa: PLC0415 # an optional dependency
    except ModuleNotFoundError as error:
        raise InvalidDataset(
            "Parquet files are read by pyarrow, which is not installed: pip install pyarrow"
        ) from error
    found: list[tuple[int, int, _Label]] = []
    try:
        table = pq.ParquetFile(path)
        columns = table.schema_arrow.names
        image = next((name for name in ("image", "img") if name in columns), None)
        label = next((name for name in ("label", "fine_label", "labels") if name in columns), None)
        if image is None or label is None:
            names = brief_list(map(brief, columns))
            raise InvalidDataset(f"{brief(path.name)} has the columns {names}; image and label are needed.")
        most = _ROWS_FLOOR + path.stat().st_size
        if table.metadata.num_rows > most:
            raise InvalidDataset(f"{brief(path.name)} declares more rows than its size can hold. Copy it again.")
        for batch in _batches(table, image, label, most):
            for picture, value in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                content = picture.get("bytes") if isinstance(picture, dict) else picture
                found.append(_copied(content, value, out, budget))
        return found, _names_in(table.schema_arrow.metadata or {}, label)
    except UserError:
        raise
    except Exception as error:  # Arrow's own kinds, and of Python those of values that it cannot hold
        if isinstance(error, OSError) and error.errno is not None:  # a disk error; Arrow's have no errno
            raise
        reason = brief(str(error).partition("\n")[0])
        raise InvalidDataset(f"{brief(path.name)} is a damaged parquet file: {reason}. Copy it again.") from error


def _copied(content: object, value: object, out: Any, budget: Budget) -> tuple[int, int, _Label]:
    """Copy a picture with a label; return offset, length and label."""
    own = _checked_label(value)
    if not isinstance(content, bytes) or not 0 < len(content) <= MOST_BYTES:
        content, own = b"", _NoLabel.NO_BYTES
    elif own == _HIDDEN:
        own = _NoLabel.MISSING
    place = out.tell()
    if not isinstance(own, _NoLabel):
        budget.unpack(len(content))
        budget.store(len(content))
        out.write(content)
    return place, len(content), own


def _batches(table: Any, image: str, label: str, most: int) -> Iterator[Any]:
    """Read rows of a parquet file in batches that fit into `_BATCH_BYTES`, of at least one row.

    A dictionary stores a value once for all its rows, so a kilobyte can expand to gigabytes. No value is larger than
    its uncompressed column chunk, and without a dictionary neither are all values together.
    """
    for group in range(table.num_row_groups):
        spend()
        part = table.metadata.row_group(group)
        columns = [part.column(number) for number in range(part.num_columns)]
        size = 1
        for column in columns:
            if column.path_in_schema.partition(".")[0] not in (image, label):
                continue
            texts, more = column.physical_type == "BYTE_ARRAY", column.num_values - part.num_rows
            if column.num_values > most or (texts and more > 0 and more * column.total_uncompressed_size > MOST_BYTES):
                raise InvalidDataset("A column has long lists in its rows. Write one picture and one label per row.")
            if texts:
                shared = any("DICTIONARY" in encoding for encoding in column.encodings)
                size += column.total_uncompressed_size // (1 if shared else max(part.num_rows, 1))
        rows = min(max(_BATCH_BYTES // size, 1), _MOST_ROWS)
        yield from table.iter_batches(rows, row_groups=[group], columns=[image, label])


def _names_in(metadata: dict[bytes, bytes], label: str) -> tuple[str, ...]:
    """Read class names from the metadata that the Hub's `datasets` library writes."""
    try:
        names = parse_json(metadata[b"huggingface"])["info"]["features"][label]["names"]
        return tuple(map(str, names)) if isinstance(names, list) else ()
    except (KeyError, TypeError, ValueError):
        return ()
