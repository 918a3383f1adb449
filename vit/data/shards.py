"""Datasets with many pictures in few files: WebDataset tar files, and parquet as on the Hugging Face Hub.

A folder of such files can be used like a folder of class folders. `index.npz` beside the files stores the position of
each picture, so that pictures can be read in random order: the order of training depends only on seed and epoch, and a
resumed run continues exactly. Pictures in parquet files are compressed together, so they are copied once into
`pictures.bin`.

    train-*.tar, val-*.tar, test-*.tar      records KEY.jpg with KEY.cls (a number), or KEY.json with "label"
    train-*.parquet, ...                    columns `image` (with `bytes`) or `img`, and `label` or `fine_label`
    classes.json                            {"0": "tench", "1": ...}, if the files name no classes

A word in a file's name, else in its folder's, determines its split, see `vit.data.split_names`; all other files are for
training.
Source of the layouts: github.com/webdataset/webdataset, README; features `Image` and `ClassLabel` of Hugging Face's
`datasets` 4.
"""

import hashlib
import json
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from vit.data.class_names import FILE as CLASSES
from vit.data.file_names import PICTURES
from vit.data.readable import stamps_of
from vit.data.split_names import Kind, split_name
from vit.errors import InvalidDataset
from vit.files import replaced
from vit.progress import tqdm
from vit.untrusted import Unreadable, brief, parse_json, read_bytes

INDEX, COPIED = "index.npz", "pictures.bin"
SPLITS = ("train", "validation", "test")
MOST_BYTES = 1 << 28  # of one picture [bytes]
_SUFFIXES = (".tar", ".parquet")
_BATCH_BYTES, _MOST_ROWS = 1 << 26, 200  # limits on a batch of parquet rows
_MOST_LABEL = 1 << 20
_LISTED = 6  # files in a note
_VERSION = 2


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


def files_of(folder: Path) -> list[Path]:
    """List the tar and parquet files in a folder and its data/, train/, val/ and test/, but no other subfolders."""
    places = [folder, *(folder / name for name in ("data", "train", "val", "valid", "validation", "test"))]
    found = (entry for place in places if place.is_dir() for entry in place.iterdir())
    return sorted(
        path for path in found if path.suffix in _SUFFIXES and not path.name.startswith(".") and path.is_file()
    )


def split_of(folder: Path, file: Path) -> Kind | None:
    """Return the split that a file's name, else the name of its folder, contains as a word.

    >>> split_of(Path("d"), Path("d/imagenet1k-val-0003.tar")), split_of(Path("d"), Path("d/test/0.parquet"))
    ('validation', 'test')
    >>> split_of(Path("d"), Path("d/testament.tar"))
    """
    path = file.relative_to(folder).with_suffix("")
    return next((split.kind for part in reversed(path.parts) if (split := split_name(part))), None)


def index(folder: Path, bar: bool = True) -> Index:
    """Read the index of a folder, or create it first, with a progress bar.

    Raises:
        InvalidDataset: a file is damaged, or no picture has a label.
    """
    files = files_of(folder)
    stats = [file.stat() for file in files]
    stamps = [
        # Microseconds, because nanoseconds have 19 digits, and `parse_json` refuses integers of more than 18.
        [str(file.relative_to(folder)), stat.st_size, stat.st_mtime_ns // 1000]
        for file, stat in zip(files, stats, strict=True)
    ]
    if (known := _read(folder, stamps)) is not None:
        return known
    try:
        made = _make(folder, files, bar)
    except OSError as error:
        raise InvalidDataset(f"{error.filename or folder} cannot be read or written: {error.strerror}.") from error
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
    try:
        with np.load(folder / INDEX, allow_pickle=False) as arrays:
            document = parse_json(arrays["document"].tobytes())
            if document["version"] != _VERSION or document["files"] != stamps:
                return None
            names = ("number", "offset", "length", "labels", "split")
            file, offset, length, labels, split = (arrays[name] for name in names)
        files = tuple(folder / name for name, *_ in stamps)
        if any(path.suffix == ".parquet" for path in files):
            files = (*files, folder / COPIED)
        classes, notes = (tuple(map(str, document[name])) for name in ("classes", "notes"))
        known = Index(Records(files, file, offset, length), labels, split, classes, notes)
        return known if _is_sound(known) else None
    except (
        OSError, ValueError, KeyError, TypeError, EOFError, MemoryError, Unreadable, zipfile.BadZipFile, zlib.error
    ):  # fmt: skip
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
    rows: list[tuple[int, int, int, int, int]] = []  # file, offset, length, label, split
    names: tuple[str, ...] = ()
    parquet = any(file.suffix == ".parquet" for file in files)
    splits = [split_of(folder, file) for file in files]
    copied = folder / (COPIED + ".partial")
    with copied.open("wb") if parquet else open(os.devnull, "wb") as out:
        for number, file in enumerate(tqdm(files, desc="reading where pictures lie", unit="files", disable=not bar)):
            split = SPLITS.index(splits[number] or "train")
            if file.suffix == ".tar":
                rows += [(number, *place, split) for place in _in_tar(file)]
            else:
                own, named = _in_parquet(file, out)
                names = names or named
                rows += [(len(files), *place, split) for place in own]
    if parquet:
        copied.replace(folder / COPIED)
    if not rows:
        raise InvalidDataset(
            f"No record of {str(folder)!r} has both a picture and a label. Name it KEY.jpg and KEY.cls."
        )
    lowest, highest = min(row[3] for row in rows), max(row[3] for row in rows)
    if lowest < 0 or highest >= _MOST_LABEL:
        raise InvalidDataset(
            f"Labels in {str(folder)!r} run from {brief(lowest)} to {brief(highest)}. They must be numbers from 0 to "
            f"{_MOST_LABEL - 1:,}."
        )
    table = np.array(rows, np.int64)
    where = tuple(files) + ((folder / COPIED,) if parquet else ())
    records = Records(where, table[:, 0].astype(np.int32), table[:, 1].copy(), table[:, 2].copy())
    labels = table[:, 3].copy()
    classes = _classes(folder, int(labels.max()) + 1, names)
    return Index(records, labels, table[:, 4].astype(np.int8), classes, _split_notes(files, splits))


def _split_notes(files: Sequence[Path], splits: Sequence[Kind | None]) -> tuple[str, ...]:
    """Return a note about files whose names state no split, if those of others do."""
    unnamed = [file.name for file, split in zip(files, splits, strict=True) if split is None]
    if not unnamed or len(unnamed) == len(files):
        return ()
    listed = ", ".join(unnamed[:_LISTED]) + (f" and {len(unnamed) - _LISTED:,} more" if len(unnamed) > _LISTED else "")
    return (f"Read as training pictures, because their names state no split: {listed}.",)


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


def _in_tar(path: Path) -> Iterator[tuple[int, int, int]]:
    """Yield offset, length and label of each picture."""
    pending: dict[str, dict[str, tuple[int, int]]] = {}
    try:
        with tarfile.open(path, "r:") as archive, path.open("rb") as raw:
            for member in archive:
                if not member.isreg():
                    continue
                place = PurePosixPath(member.name)
                stem, _, kind = place.name.partition(".")
                key, kind = str(place.parent / stem), kind.lower()
                what = "picture" if f".{kind}" in PICTURES else kind if kind in ("cls", "json") else ""
                if not what or not 0 < member.size <= MOST_BYTES:
                    continue
                record = pending.setdefault(key, {})
                record[what] = (member.offset_data, member.size)
                label = None
                for source in ("cls", "json"):
                    if "picture" in record and source in record and label is None:
                        offset, size = record[source]
                        label = _label(os.pread(raw.fileno(), min(size, 1 << 16), offset), source)
                if label is not None:
                    yield (*record["picture"], label)
                    del pending[key]
                archive.members = []  # type: ignore[attr-defined]  # tarfile would keep a million of them in memory
            # At a damaged header or the end of the file, tarfile stops as at the end of the archive, which is a block
            # of zeros.
            if os.pread(raw.fileno(), tarfile.BLOCKSIZE, archive.offset) != bytes(tarfile.BLOCKSIZE):
                raise tarfile.ReadError("it is cut off or damaged")
    except tarfile.TarError as error:
        raise InvalidDataset(f"{path.name} is a damaged tar: {error}. Copy it again.") from error


def _label(content: bytes, source: str) -> int | None:
    try:
        if source == "cls":
            return int(content)
        value = parse_json(content).get("label")
        return value if type(value) is int else None
    except (ValueError, AttributeError):
        return None


def _in_parquet(path: Path, out: Any) -> tuple[list[tuple[int, int, int]], tuple[str, ...]]:
    """Copy the pictures out; return offset, length and label of each, and names of the classes."""
    try:
        import pyarrow  # noqa: PLC0415 # an optional dependency
        import pyarrow.parquet as pq  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise InvalidDataset(
            "Parquet files are read by pyarrow, which is not installed: pip install pyarrow"
        ) from error
    found = []
    try:
        table = pq.ParquetFile(path)
        columns = table.schema_arrow.names
        image = next((name for name in ("image", "img") if name in columns), None)
        label = next((name for name in ("label", "fine_label", "labels") if name in columns), None)
        if image is None or label is None:
            raise InvalidDataset(f"{path.name} has the columns {', '.join(columns)[:200]}; image and label are needed.")
        for batch in _batches(table, image, label):
            for picture, number in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
                content = picture.get("bytes") if isinstance(picture, dict) else picture
                if isinstance(content, bytes) and 0 < len(content) <= MOST_BYTES and type(number) is int:
                    found.append((out.tell(), len(content), number))
                    out.write(content)
        return found, _names_in(table.schema_arrow.metadata or {}, label)
    except (pyarrow.ArrowException, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:  # a disk error; Arrow's have no errno
            raise
        reason = str(error).partition("\n")[0]
        raise InvalidDataset(f"{path.name} is a damaged parquet file: {reason[:200]}. Copy it again.") from error


def _batches(table: Any, image: str, label: str) -> Iterator[Any]:
    """Read rows of a parquet file in batches that fit into `_BATCH_BYTES`, of at least one row.

    A dictionary stores a value once for all its rows, so a kilobyte can expand to gigabytes. No value is larger than
    its uncompressed column chunk, and without a dictionary neither are all values together.
    """
    for group in range(table.num_row_groups):
        part = table.metadata.row_group(group)
        columns = [part.column(number) for number in range(part.num_columns)]
        size = 1
        for column in columns:
            if column.path_in_schema.partition(".")[0] in (image, label) and column.physical_type == "BYTE_ARRAY":
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
