"""The index of a dataset with many pictures in few files, such as WebDataset tars, parquet and arrays of NumPy.

A folder of such files can be used like a folder of class folders. `.index.npz` beside the files stores the position of
each picture, so that pictures can be read in random order: the order of training depends only on seed and epoch, and a
resumed run continues exactly. Pictures that cannot be read where they are, are copied once into `pictures.bin`.

Pictures without a label are left out and counted. A word in a file's name, else in its folder's, determines its split,
see `vit.data.layouts.split_names`; all other files are for training. `classes.json`, {"0": "tench", "1": ...}, names
the classes if the files do not.
"""

import hashlib
import json
import os
import sys
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import groupby
from pathlib import Path, PurePosixPath
from pkgutil import iter_modules
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from vit.data.archives.archive_readers import Budget
from vit.data.layouts.split_names import Kind, split_name
from vit.data.packed import formats
from vit.data.packed.contract import MOST_BYTES, Files
from vit.data.packed.labels import HIDDEN, Label, NoLabel, checked, class_names, notes_on_unlabelled, numbered
from vit.data.picture_trees import DiskTree, pictures_below
from vit.data.readable import stamps_of
from vit.errors import InvalidDataset
from vit.files import replaced
from vit.stored_archives import read_arrays
from vit.untrusted import Unreadable, brief, brief_list, parse_json

INDEX, COPIED = ".index.npz", "pictures.bin"
_OLD_INDEX = "index.npz"  # of earlier versions, beside pictures.bin
SPLITS = ("train", "validation", "test")
_MODULES: tuple[Any, ...] = tuple(
    import_module(f"{formats.__name__}.{name}") for _, name, _ in iter_modules(formats.__path__)
)
_FORMATS = {suffix: module for module in _MODULES for suffix in module.SUFFIXES}
SUFFIXES = frozenset(_FORMATS)
_COLUMNS = ("number", "offset", "length", "start", "end", "labels", "split")
_MOST_LABEL = 1 << 20
_MOST_NAME = 1000  # [characters]
_VERSION = 4

_Row = tuple[int, int, int, Label, int, int, int, int]  # file, offset, length, label, split, file to read, name's place


@dataclass(frozen=True)
class Records:
    """Positions of pictures in their files, without opening them.

    Attributes:
        files: that contain the pictures.
        file: (n,) index of each picture's file.
        offset, length: (n,) position in it [bytes].
        names: names of pictures in UTF-8, one after the other.
        start, end: (n,) position of each name there [bytes].
    """

    files: tuple[Path, ...]
    file: NDArray[np.int32]
    offset: NDArray[np.int64]
    length: NDArray[np.int64]
    names: NDArray[np.uint8]
    start: NDArray[np.int64]
    end: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.file)

    def __getitem__(self, index: int) -> bytes:
        """Read the bytes of a picture; raises OSError if they are missing."""
        with self.files[self.file[index]].open("rb") as file:
            return os.pread(file.fileno(), int(self.length[index]), int(self.offset[index]))

    def name(self, index: int) -> str:
        """Return the file that holds a picture, and the picture's name there."""
        return self.names[self.start[index] : self.end[index]].tobytes().decode(errors="replace")

    def stamps(self) -> Iterator[str]:
        """Yield a cache key for the pictures: size and time of their files, and their positions."""
        yield from stamps_of(self.files)
        yield from (hashlib.blake2b(column.tobytes()).hexdigest() for column in (self.file, self.offset, self.length))

    def chosen(self, places: Sequence[int]) -> Self:
        """Select some records, in this order."""
        some = np.asarray(places, np.int64)
        columns = ("file", "offset", "length", "start", "end")
        return replace(self, **{name: getattr(self, name)[some] for name in columns})


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
    """List such files in a folder and its data/, train/, val/ and test/, but no other subfolders.

    Those of formats that are `ALONE` are listed without others, and without pictures. A single file is listed alone.
    """
    inside = sorted(folder.iterdir()) if folder.is_dir() else []
    places = [place for place in inside if place.is_dir() and (place.name == "data" or split_name(place.name))]
    found = [*inside, *(entry for place in places for entry in place.iterdir())] or [folder]
    own = (COPIED, _OLD_INDEX) if folder / COPIED in inside else ()
    found = [path for path in found if path.name[:1] not in (".", "") and path.name not in own and path.is_file()]
    packed = sorted(path for path in found if path.suffix.lower() in _FORMATS)
    if first := [path for path in packed if not getattr(_format(path), "ALONE", False)]:
        return first
    return [] if packed and folder.is_dir() and pictures_below(DiskTree(folder)) else packed


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


def index_of(folder: Path, bar: bool = True) -> Index:
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
    copied = len(made.records.files) > len(files)
    document = dict(version=_VERSION, files=stamps, copied=copied, classes=made.classes, notes=made.notes)
    columns = dict(zip(_COLUMNS, _columns(made), strict=True))
    columns |= {"document": np.frombuffer(json.dumps(document).encode(), np.uint8), "names": made.records.names}
    with suppress(OSError), replaced(folder / INDEX) as out:  # a read-only folder is indexed each time
        np.savez(out, **columns)  # type: ignore[arg-type]
    return made


def _read(folder: Path, stamps: list[list[Any]]) -> Index | None:
    """Read the index if it belongs to these files."""
    path = folder / INDEX
    try:
        arrays = read_arrays(path, path.stat().st_size)  # `index_of` does not compress it
        document = parse_json(arrays["document"].tobytes())
        if document["version"] != _VERSION or document["files"] != stamps:
            return None
        file, offset, length, start, end, labels, split = (arrays[name] for name in _COLUMNS)
        files = (*(folder / name for name, *_ in stamps), *([folder / COPIED] if document["copied"] else []))
        classes, notes = (tuple(map(str, document[name])) for name in ("classes", "notes"))
        records = Records(files, file, offset, length, arrays["names"], start, end)
        known = Index(records, labels, split, classes, notes)
        return known if _is_sound(known) else None
    except (OSError, ValueError, KeyError, TypeError, Unreadable):
        return None


def _columns(index: Index) -> tuple[NDArray[Any], ...]:
    records = index.records
    return records.file, records.offset, records.length, records.start, records.end, index.labels, index.split


def _is_sound(known: Index) -> bool:
    """Validate an index, which is as untrusted as any other file."""
    records, labels, _, classes, _ = known
    columns = _columns(known)
    if not all(column.ndim == 1 and column.dtype.kind == "i" and len(column) == len(labels) for column in columns):
        return False
    sizes = np.array([path.stat().st_size for path in records.files])
    text = len(records.names) + 1
    limits = (len(records.files), int(sizes.max()) + 1, MOST_BYTES + 1, text, text, len(classes), len(SPLITS))
    if not len(labels) or records.names.ndim != 1 or records.names.dtype != np.uint8:
        return False
    if any(int(column.min()) < 0 or int(column.max()) >= most for column, most in zip(columns, limits, strict=True)):
        return False
    return bool((records.length > 0).all() and (records.offset + records.length <= sizes[records.file]).all())


def _make(folder: Path, files: Sequence[Path], bar: bool) -> Index:
    places, splits = {file: place for place, file in enumerate(files)}, [split_of(folder, file) for file in files]
    budget = Budget(sum(file.stat().st_size for file in files), folder, "The dataset", sys.maxsize)
    root = os.path.commonpath([file.parent for file in files])
    rows, assumed, names, text = list[_Row](), list[str](), tuple[str, ...](), bytearray()
    stated, unstated = set[str](), set[str]()  # names of files with pictures whose split is known, or not
    with ExitStack() as stack:
        out: Any = None
        for reader, group in groupby(files, _format):
            paths = list(group)
            some = Files(paths, [splits[places[path]] for path in paths], budget, bar, assumed, names)
            for file, content, value, split, name in reader.read(some):
                source = place = places[file]
                label, kind = checked(value), SPLITS.index(split or splits[place] or "train")
                (stated if split or splits[place] else unstated).add(file.name)
                if isinstance(content, bytes):
                    out = out or stack.enter_context(replaced(folder / COPIED))
                    source, (content, label) = len(files), _copied(content, label, out, budget)
                start = len(text)
                name = f"{os.path.relpath(file, root)}/{name[:_MOST_NAME]}".rstrip("/")
                text += name.encode(errors="surrogateescape")
                rows.append((place, *content, label, kind, source, start, len(text)))
            names = some.classes
    numbers, names = numbered([row[3] for row in rows], names)
    left_out = [(files[row[0]], row[3]) for row, number in zip(rows, numbers, strict=True) if number is None]
    notes = (*_split_notes(stated, unstated), *assumed, *notes_on_unlabelled(left_out))
    table = [(*row[1:3], number, *row[4:]) for row, number in zip(rows, numbers, strict=True) if number is not None]
    if not table:
        advice = " ".join(notes_on_unlabelled(left_out)) or "Name them KEY.jpg and KEY.cls."
        raise InvalidDataset(f"No record has both a picture and a label. {advice}")
    lowest, highest = min(row[2] for row in table), max(row[2] for row in table)
    if lowest < 0 or highest >= _MOST_LABEL:
        raise InvalidDataset(
            f"Labels run from {brief(lowest)} to {brief(highest)}. They must be numbers from 0 to {_MOST_LABEL - 1:,}."
        )
    offset, length, labels, split, file, start, end = np.array(table, np.int64).T.copy()
    where = (*files, folder / COPIED) if out else tuple(files)
    records = Records(where, file.astype(np.int32), offset, length, np.frombuffer(text, np.uint8), start, end)
    return Index(records, labels, split.astype(np.int8), class_names(folder, int(labels.max()) + 1, names), notes)


def _copied(content: bytes, label: Label, out: Any, budget: Budget) -> tuple[tuple[int, int], Label]:
    """Copy a picture with a label; return its position in the copy, and its label."""
    if not 0 < len(content) <= MOST_BYTES:
        label = NoLabel.NO_BYTES
    elif label == HIDDEN:
        label = NoLabel.MISSING
    place = out.tell(), len(content)
    if not isinstance(label, NoLabel):
        budget.unpack(len(content))
        budget.store(len(content))
        out.write(content)
    return place, label


def _format(file: Path) -> Any:
    """Return the module that reads a file."""
    return _FORMATS[file.suffix.lower()]


def _split_notes(stated: AbstractSet[str], unstated: AbstractSet[str]) -> tuple[str, ...]:
    """Return a note about files that state no split, if others do."""
    if not stated or not unstated:
        return ()
    names = brief_list(map(brief, sorted(unstated)))
    return (f"Read as training pictures, because their names state no split: {names}.",)
