"""WebDataset tar files: records KEY.jpg with KEY.cls, or KEY.json with "label".

Source: github.com/webdataset/webdataset, README.
"""

import io
import os
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

from vit.data.archives.archive_readers import DAMAGE
from vit.data.file_names import PICTURES
from vit.data.packed.contract import MOST_BYTES, Files, Picture
from vit.data.packed.labels import Label, NoLabel, checked
from vit.errors import InvalidDataset
from vit.untrusted import brief, parse_json, spend

SUFFIXES = (".tar",)
_MAX_HEADER = 1 << 20  # [bytes] of a file's name and attributes


def read(files: Files) -> Iterator[Picture]:
    """Yield the pictures of records, labelled or not.

    Raises:
        InvalidDataset: a file is damaged.
    """
    for path in files:
        for place, label, name in _records(path):
            yield Picture(path, place, label, name=name)


class _Headers(io.FileIO):
    """A tar file whose headers are read by `tarfile`, which allocates as much for one as it claims."""

    def read(self, count: int | None = -1) -> Any:
        if count is None or not 0 <= count <= _MAX_HEADER:
            raise tarfile.ReadError("a header is too long")
        return super().read(count)


def _records(path: Path) -> Iterator[tuple[tuple[int, int], Label, str]]:
    """Yield position (offset, length), label and name of each picture."""
    pending: dict[str, dict[str, tuple[int, int]]] = {}
    names: dict[str, str] = {}
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
                if what == "picture":
                    names[key] = member.name
                if "picture" in record and not isinstance(label := _label_of(record, raw.fileno()), NoLabel):
                    yield record["picture"], label, names.pop(key)
                    del pending[key]
            # At a damaged header or the end of the file, tarfile stops as at the end of the archive, which is a block
            # of zeros.
            if os.pread(raw.fileno(), tarfile.BLOCKSIZE, archive.offset) != bytes(tarfile.BLOCKSIZE):
                raise tarfile.ReadError("it is cut off or damaged")
            for key, record in pending.items():
                if "picture" in record:
                    yield record["picture"], _label_of(record, raw.fileno()), names[key]
    except DAMAGE as error:  # tarfile raises almost anything on hostile bytes
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InvalidDataset(f"{brief(path.name)} is a damaged tar: {brief(str(error))}. Copy it again.") from error


def _label_of(record: Mapping[str, tuple[int, int]], file: int) -> Label:
    """Read the label of a record from its KEY.cls, else from its KEY.json.

    Args:
        record: offset and length of its parts.
    """
    label: Label = NoLabel.ALONE
    for source in ("cls", "json"):
        if source in record and isinstance(label, NoLabel):
            offset, size = record[source]
            label = _label(os.pread(file, min(size, 1 << 16), offset), source)
    return label


def _label(content: bytes, source: str) -> Label:
    """Read the content of KEY.cls or KEY.json."""
    try:
        if source == "json":
            return checked(parse_json(content).get("label"))
        return int(content)
    except (ValueError, AttributeError):
        return checked(content.decode(errors="replace")) if source == "cls" else NoLabel.INVALID
