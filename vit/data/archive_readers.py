"""Read archives that nobody trusts: what is in them comes one file at a time, within a budget."""

import bz2
import gzip
import lzma
import re
import shutil
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from vit.data.archive_names import safe_path, unusual
from vit.data.file_names import printable_name, printable_path
from vit.data.name_encodings import TITLES, UTF8, encodings_of
from vit.errors import InvalidDataset

MAX_ENTRIES = 500_000  # of any kind; macOS adds a shadow to every file
MAX_BYTES = 8 << 30  # of everything that is unpacked
MAX_RATIO = 200  # unpacked to packed; deflate reaches 1,032 on zeros, honest pictures hardly 2
RATIO_FLOOR = 100_000_000  # [bytes] unpacked, below which any ratio is harmless
MIN_FREE = 1 << 30  # [bytes] of disk that are left to others

_ZIP_HEADER = 30  # [bytes] before each file, without its name
_MAX_DIRECTORY = 64 << 20  # [bytes] of a zip's list of files, which Python reads at once
_MAX_HEADER = 32 << 10  # [bytes] before a file in a tar, likewise
_MAX_DICTIONARY = 256 << 20  # [bytes] of memory for xz; `xz -9` asks for 65 MB
_CHUNK_BYTES = 1 << 18
_BLOCK_BYTES = 4096  # [bytes] that the smallest file takes on a disk
_FOREIGN = (
    (rb"Rar!", "a RAR archive"),
    (rb"7z\xbc\xaf", "a 7-Zip archive"),
    (rb"\x28\xb5\x2f\xfd", "a Zstandard file"),
)

# What Python's readers raise on damaged and on hostile bytes.
_DAMAGE = (
    zipfile.BadZipFile,
    tarfile.TarError,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    EOFError,
    OSError,
    ValueError,
    OverflowError,
    IndexError,
    RuntimeError,  # and its kinds RecursionError, NotImplementedError
)


# --- Reading --------------------------------------------------------------------------------------------------


class Member(NamedTuple):
    """A file in an archive: the folders it lies in and its name, how to read it, and where the reading stands."""

    path: tuple[str, ...]
    chunks: Callable[[], Iterator[bytes]]
    done: int  # [bytes] of the archive


class Budget:
    """What one archive may still unpack to, in memory and on the disk.

    Attributes:
        packed: size of the archive [bytes].
        folder: on the disk that is written to.
        unpacked: what came out of the archive so far [bytes].
        stored: what was written so far, in whole blocks for small files [bytes].
    """

    def __init__(self, packed: int, folder: Path):
        self.packed, self.folder = packed, folder
        self.unpacked = self.stored = 0
        self.store(0)

    def unpack(self, count: int) -> None:
        """Count bytes that came out of the archive.

        Raises:
            InvalidDataset: there are too many, in all or for the size of the archive.
        """
        self.unpacked += count
        if self.unpacked > MAX_BYTES:
            raise InvalidDataset(
                f"The archive unpacks to more than {MAX_BYTES / 1e9:.1f} GB, the limit. Make the pictures smaller."
            )
        if self.unpacked > max(RATIO_FLOOR, MAX_RATIO * self.packed):
            raise InvalidDataset(
                f"The archive unpacks to more than {MAX_RATIO} times its size, which pictures never do. "
                "Pack the pictures themselves again."
            )

    def store(self, count: int) -> None:
        """Count bytes before they are written; now and then look whether the disk has room for more.

        Raises:
            InvalidDataset: it has not.
        """
        before, self.stored = self.stored, self.stored + max(count, _BLOCK_BYTES)
        if before == 0 or before // (64 << 20) != self.stored // (64 << 20):
            free = shutil.disk_usage(self.folder).free
            if free < MIN_FREE + (64 << 20):
                raise InvalidDataset(
                    f"The disk is too full ({free / 1e9:.1f} GB free). Nothing was kept; make room and import again."
                )


@contextmanager
def undamaged() -> Iterator[None]:
    """Turn what Python's readers raise into one sentence.

    Raises:
        InvalidDataset: the archive is damaged or incomplete.
    """
    try:
        yield
    except InvalidDataset:
        raise
    except _DAMAGE as error:
        reason = printable_name(str(error).partition("\n")[0]) or type(error).__name__
        raise InvalidDataset(f"The archive is damaged or incomplete ({reason}). Copy or pack it again.") from error


def list_members(raw: BufferedReader, size: int, budget: Budget, notes: list[str]) -> Iterator[Member]:
    """Open an archive by its content and yield its files one after the other; folders are passed over.

    Args:
        raw: the archive, at its beginning.
        size: of the archive [bytes].
        budget: all that is unpacked counts against it.
        notes: takes what was assumed about the archive, for people, before its first file comes.

    Raises:
        InvalidDataset: it is no zip or tar, or of another kind; while its files come, it is damaged, hostile or beyond
            the budget.
    """
    start = raw.read(512)
    raw.seek(0)
    for pattern, name in _FOREIGN:
        if re.match(pattern, start):
            raise InvalidDataset(f"This is {name}, which is not read here. Pack the folder as zip or tar.")
    if start.startswith((b"PK\3\4", b"PK\5\6")):
        return _zip_members(raw, budget, notes)
    stream: Any = raw
    if start.startswith(b"\x1f\x8b"):
        stream = gzip.GzipFile(fileobj=raw)
    elif start.startswith(b"BZh"):
        stream = bz2.BZ2File(raw)
    elif start.startswith(b"\xfd7zXZ\0"):
        stream = BufferedReader(_Xz(raw))
    return _tar_members(_Stream(stream, raw, budget))


def _zip_members(raw: BufferedReader, budget: Budget, notes: list[str]) -> Iterator[Member]:
    with undamaged():
        archive = zipfile.ZipFile(cast(BinaryIO, _Careful(raw)))
        entries = archive.infolist()
        paths = [_zip_path(entry, name) for entry, name in zip(entries, _zip_names(entries, notes), strict=True)]
        _refuse_overlap(archive)
    done = 0
    for entry, path in zip(entries, paths, strict=True):
        done += entry.compress_size
        if not entry.is_dir():
            yield Member(path, lambda entry=entry: _zip_chunks(archive, entry, budget), done)  # type: ignore[misc]


class _Careful(RawIOBase):
    """A zip file that is asked for at most its list of files at once, and that one only if it is not too long."""

    def __init__(self, raw: BufferedReader):
        self.raw = raw

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = 0) -> int:
        return self.raw.seek(offset, whence)

    def tell(self) -> int:
        return self.raw.tell()

    def read(self, count: int = -1) -> bytes:
        data = self.raw.read(min(count, _MAX_DIRECTORY)) if count >= 0 else self.raw.read(_MAX_DIRECTORY)
        if len(data) >= _MAX_DIRECTORY or (count > _CHUNK_BYTES and data.count(b"PK\1\2") > MAX_ENTRIES):
            raise InvalidDataset(f"The archive has more than {MAX_ENTRIES:,} entries, the limit. Leave some out.")
        return data


def _zip_names(entries: Sequence[zipfile.ZipInfo], notes: list[str]) -> list[str]:
    """Names of all entries, with slashes; their encoding and separator are decided for all together."""
    names = [entry.orig_filename for entry in entries]
    unmarked = [index for index, entry in enumerate(entries) if not entry.flag_bits & 0x800]  # not marked as UTF-8
    raw = [names[index].encode("cp437") for index in unmarked]  # as Python decoded them
    encoding, *others = encodings_of(raw)
    for index, name in zip(unmarked, raw, strict=True):
        names[index] = _unicode_path(entries[index], name) or name.decode(encoding)
    if encoding != UTF8:
        near = _first_difference(raw, encoding, others)
        notes.append(
            f"Names in the archive are read as {TITLES[encoding]}.{near} If they look wrong, pack it with names in "
            "UTF-8."
        )
    if any("\\" in name for name in names) and not any("/" in name.rstrip("/") for name in names):
        names = [name.replace("\\", "/") for name in names]  # of PowerShell 5.1 and other old programs of Windows
    return names


def _first_difference(names: Sequence[bytes], encoding: str, others: Sequence[str]) -> str:
    """A sentence about the first name that another likely encoding reads differently; "" where there is none."""
    for other in others:
        for name in names:
            if (one := name.decode(encoding)) != (another := name.decode(other)):
                return f" It may be {TITLES[other]} instead: {printable_name(one)} is {printable_name(another)} there."
    return ""


def _unicode_path(entry: zipfile.ZipInfo, name: bytes) -> str | None:
    """The name in UTF-8 that some programs add. Source: PKWARE's APPNOTE.TXT, 4.6.9."""
    extra = entry.extra
    while len(extra) >= 4:
        kind, length = struct.unpack("<HH", extra[:4])
        field, extra = extra[4 : 4 + length], extra[4 + length :]
        if kind == 0x7075 and len(field) > 5 and field[0] == 1 and field[1:5] == struct.pack("<I", zlib.crc32(name)):
            with suppress(UnicodeDecodeError):
                return field[5:].decode("utf-8")
    return None


def _zip_path(entry: zipfile.ZipInfo, name: str) -> tuple[str, ...]:
    """Check everything that a zip says about a file except its size."""
    path = safe_path(name)
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise unusual(path, "a link" if kind == stat.S_IFLNK else "a device")
    if entry.flag_bits & 0x2041:  # encrypted, strongly encrypted, hidden headers
        raise InvalidDataset(f"{printable_path(path)} in the zip is encrypted. Pack the pictures without a password.")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        method = {9: "deflate64", 12: "bzip2", 14: "lzma"}.get(entry.compress_type, f"method {entry.compress_type}")
        raise InvalidDataset(f"The zip is compressed with {method}, which is not read here. Pack it with deflate.")
    return path


def _refuse_overlap(archive: zipfile.ZipFile) -> None:
    """Refuse files that share bytes: a few bytes could then unpack to any amount. Source: Fifield 2019, WOOT."""
    end = 0
    for entry in sorted(archive.infolist(), key=lambda entry: entry.header_offset):
        if entry.header_offset < end:
            raise InvalidDataset("Files in the zip lie over each other, which honest zips never do. Pack it again.")
        end = entry.header_offset + _ZIP_HEADER + entry.compress_size


def _zip_chunks(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, budget: Budget) -> Iterator[bytes]:
    with archive.open(entry) as file:
        while chunk := file.read(_CHUNK_BYTES):
            budget.unpack(len(chunk))
            yield chunk


class _Xz(RawIOBase):
    """An xz file, decompressed with a limit on memory, which `lzma.open` cannot set."""

    def __init__(self, raw: BufferedReader):
        self.raw, self.packed = raw, b""
        self.decompressor = self._start()

    def _start(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_DICTIONARY)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self.decompressor.eof:  # another stream may follow, after zeros
                self.packed = self.decompressor.unused_data.lstrip(b"\0") or self.raw.read(_CHUNK_BYTES).lstrip(b"\0")
                if not self.packed:
                    return 0
                self.decompressor = self._start()
            elif self.decompressor.needs_input:
                self.packed = self.raw.read(_CHUNK_BYTES)
                if not self.packed:
                    raise EOFError("the file ends too early")
            data = self.decompressor.decompress(self.packed, len(buffer))
            self.packed = b""
            if data:
                buffer[: len(data)] = data
                return len(data)


class _Stream:
    """A decompressed tar, read once from start to end: all of it is counted, and each header is bounded."""

    def __init__(self, file: Any, raw: BufferedReader, budget: Budget):
        self.file, self.raw, self.budget = file, raw, budget
        self.position = 0
        self.last = b""  # what was read last, to tell the end of a tar from a tar that is cut off
        self.header = 0  # [bytes] that the header being read may still have

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int) -> int:
        if offset < self.position:
            raise tarfile.ReadError("its sizes contradict each other")
        for _ in self.chunks(offset - self.position):
            pass
        return self.position

    def read(self, count: int) -> bytes:
        """Read for a header."""
        if not 0 <= count <= self.header:
            raise InvalidDataset(
                f"A file in the tar has a header of more than {_MAX_HEADER >> 10} kB. Pack without extended attributes."
            )
        self.header -= count
        self.last = b"".join(self.chunks(count))
        return self.last

    def chunks(self, count: int) -> Iterator[bytes]:
        """Read `count` bytes, or up to the end."""
        while count > 0 and (data := self.file.read(min(count, _CHUNK_BYTES))):
            self.position += len(data)
            self.budget.unpack(len(data))
            count -= len(data)
            yield data


def _tar_members(stream: _Stream) -> Iterator[Member]:
    with undamaged():
        stream.header = _MAX_HEADER
        try:
            archive: Any = tarfile.TarFile(fileobj=cast(BinaryIO, stream), encoding="utf-8")
        except (tarfile.ReadError, gzip.BadGzipFile) as error:
            if stream.position > 512:
                raise
            raise InvalidDataset("This is neither a zip nor a tar. Pack the folder of class folders as one.") from error
    while True:
        with undamaged():
            stream.header = _MAX_HEADER
            entry = archive.next()
            archive.members.clear()  # it would keep every one of them
            if entry is None:
                break
            path = safe_path(entry.name)
            if entry.issym() or entry.islnk():
                raise unusual(path, "a link")
            if entry.issparse() or not (entry.isreg() or entry.isdir()):
                raise unusual(path, "a device or another unusual kind of file")
        if entry.isreg():
            yield Member(path, lambda size=entry.size: stream.chunks(size), stream.raw.tell())  # type: ignore[misc]
    with undamaged():
        if len(stream.last) < 512 or any(stream.last):
            raise EOFError("the end is missing")
        for _ in stream.chunks(MAX_BYTES):  # up to the checksum, which comes last
            pass
