"""Read untrusted zip and tar archives file by file, within a budget of memory and disk space."""

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
from functools import partial
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from vit.data.archives.archive_names import safe_path, unusual
from vit.data.archives.name_encodings import TITLES, UTF8, encodings_of
from vit.data.file_names import printable_name, printable_path
from vit.errors import InvalidDataset, UserError
from vit.untrusted import spend

MAX_ENTRIES = 500_000  # entries of any kind; macOS adds a shadow file to every file
ENTRIES_FLOOR, MIN_ENTRY = 20_000, 50  # entries that are always allowed; [packed bytes] of each further one
MAX_BYTES = 8 << 30  # [bytes] unpacked in total
MAX_RATIO = 200  # unpacked to packed size; deflate reaches 1,032 on zeros, real pictures hardly 2
RATIO_FLOOR = 100_000_000  # [bytes] unpacked, below which any ratio is harmless
MIN_FREE = 1 << 30  # [bytes] of disk space to leave

_ZIP_HEADER = 30  # [bytes] of the local header, without the name
_MAX_EXTRA = 4096  # [bytes] of an entry's extra fields in a zip, for which Python's time grows quadratically
_MAX_DIRECTORY = 64 << 20  # [bytes] of a zip's central directory, which Python reads at once
_MAX_HEADER = 32 << 10  # [bytes] of a file's header in a tar, which Python reads at once
_MAX_DICTIONARY = 256 << 20  # [bytes] of memory for xz; `xz -9` needs 65 MB
_CHUNK_BYTES = 1 << 18
_BLOCK_BYTES = 4096  # [bytes] that the smallest file occupies on disk
_FOREIGN = (
    (rb"Rar!", "a RAR archive"),
    (rb"7z\xbc\xaf", "a 7-Zip archive"),
    (rb"\x28\xb5\x2f\xfd", "a Zstandard file"),
)

# Exceptions that Python's readers raise on damaged or hostile input.
DAMAGE = (
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
    RuntimeError,  # and its subclasses RecursionError and NotImplementedError
)


# --- Reading --------------------------------------------------------------------------------------------------


class Member(NamedTuple):
    """A file in an archive: its path, a function that reads it in chunks, the progress, and its name as it is there."""

    path: tuple[str, ...]
    chunks: Callable[[], Iterator[bytes]]
    done: int  # [bytes] of the archive read so far
    name: str


class Budget:
    """Limits on the size of one archive in memory and on disk.

    Attributes:
        packed: size of the archive [bytes].
        folder: on the disk that is written to.
        name: of the archive, for messages.
        most: bytes that may come out of it; 0 for the usual limit.
        unpacked: bytes that came out of the archive so far.
        stored: bytes written so far; small files count as whole blocks.
        entries: files and folders so far.
    """

    def __init__(self, packed: int, folder: Path, name: str = "The archive", most: int = 0):
        self.packed, self.folder, self.name, self.most = packed, folder, name, most or MAX_BYTES
        self.unpacked = self.stored = self.entries = 0

    def enter(self) -> None:
        """Count an entry.

        Raises:
            InvalidDataset: there are too many, in total or relative to the size of the archive.
        """
        spend()
        self.entries += 1
        if self.entries > (most := min(MAX_ENTRIES, ENTRIES_FLOOR + self.packed // MIN_ENTRY)):
            raise InvalidDataset(f"{self.name} has more than {most:,} entries, the limit. Leave some out.")

    def unpack(self, count: int) -> None:
        """Count bytes that came out of the archive.

        Raises:
            InvalidDataset: too many, in total or relative to the size of the archive.
        """
        spend()
        self.unpacked += count
        if self.unpacked > self.most:
            raise InvalidDataset(
                f"{self.name} unpacks to more than {self.most / 1e9:.1f} GB, the limit. Make the pictures smaller."
            )
        if self.unpacked > max(RATIO_FLOOR, MAX_RATIO * self.packed):
            raise InvalidDataset(
                f"{self.name} unpacks to more than {MAX_RATIO} times its size, which pictures never do. "
                "Pack the pictures themselves again."
            )

    def store(self, count: int) -> None:
        """Count bytes before they are written; check the free disk space every 64 MB.

        Raises:
            InvalidDataset: the disk is too full.
        """
        before, self.stored = self.stored, self.stored + max(count, _BLOCK_BYTES)
        if before == 0 or before // (64 << 20) != self.stored // (64 << 20):
            free = shutil.disk_usage(self.folder).free
            if free < MIN_FREE + (64 << 20):
                raise InvalidDataset(
                    f"The disk is too full ({free / 1e9:.1f} GB free). Nothing was kept; make room and try again."
                )


@contextmanager
def translate_errors() -> Iterator[None]:
    """Convert exceptions of Python's readers to one sentence.

    Raises:
        InvalidDataset: the archive is damaged or incomplete.
    """
    try:
        yield
    except UserError:
        raise
    except DAMAGE as error:
        reason = printable_name(str(error).partition("\n")[0]) or type(error).__name__
        raise InvalidDataset(f"The archive is damaged or incomplete ({reason}). Copy or pack it again.") from error


def read_chunks(member: Member) -> Iterator[bytes]:
    """Read a file of an archive; raises InvalidDataset if it is damaged, hostile, or over budget."""
    with translate_errors():
        yield from member.chunks()


def list_members(raw: BufferedReader, budget: Budget, notes: list[str]) -> Iterator[Member]:
    """Detect the type of an archive and yield its files in order, without folders.

    Args:
        raw: the archive, at its start.
        budget: counts everything that is unpacked.
        notes: receives assumptions about the archive, for people, before the first file.

    Raises:
        InvalidDataset: unsupported type; during iteration: damaged, hostile, or over budget.
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
    with translate_errors():
        archive = zipfile.ZipFile(cast(BinaryIO, _LimitedReads(raw)))
        entries = archive.infolist()
        names = _zip_names(entries, notes)
        paths = [_zip_path(entry, name) for entry, name in zip(entries, names, strict=True)]
        _refuse_overlap(archive)
    done = 0
    for entry, path, name in zip(entries, paths, names, strict=True):
        done += entry.compress_size
        budget.enter()
        if not entry.is_dir():
            yield Member(path, lambda entry=entry: _zip_chunks(archive, entry, budget), done, name)  # type: ignore[misc]


class _LimitedReads(RawIOBase):
    """Wraps a zip file to limit the size of reads, and the number of entries before Python parses them."""

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
        position = 0
        while data[position : position + 4] == b"PK\1\2" and position + 46 <= len(data):
            name, extra, comment = struct.unpack_from("<HHH", data, position + 28)
            if extra > _MAX_EXTRA:
                raise InvalidDataset("A file in the zip has unusually long extra fields. Pack it again.")
            position += 46 + name + extra + comment
        return data


def _zip_names(entries: Sequence[zipfile.ZipInfo], notes: list[str]) -> list[str]:
    """Return the names of all entries, with slashes; encoding and separator are determined for all of them together."""
    names = [entry.orig_filename for entry in entries]
    unmarked = [index for index, entry in enumerate(entries) if not entry.flag_bits & 0x800]  # without the UTF-8 flag
    raw = [names[index].encode("cp437") for index in unmarked]  # undoes Python's default decoding
    encoding = encoding_among(raw, notes)
    for index, name in zip(unmarked, raw, strict=True):
        names[index] = _unicode_path(entries[index], name) or name.decode(encoding)
    if any("\\" in name for name in names) and not any("/" in name.rstrip("/") for name in names):
        names = [name.replace("\\", "/") for name in names]  # written by PowerShell 5.1 and other old Windows programs
    return names


def encoding_among(names: Sequence[bytes], notes: list[str]) -> str:
    """Return the likely encoding of all names of an archive, with a note unless it is UTF-8."""
    encoding, *others = encodings_of(names)
    if encoding != UTF8:
        near = _first_difference(names, encoding, others)
        notes.append(
            f"Names in the archive are read as {TITLES[encoding]}.{near} If they look wrong, pack it with names in "
            "UTF-8."
        )
    return encoding


def _first_difference(names: Sequence[bytes], encoding: str, others: Sequence[str]) -> str:
    """Describe the first name that another likely encoding decodes differently; "" if there is none."""
    for other in others:
        for name in names:
            if (one := name.decode(encoding)) != (another := name.decode(other)):
                return f" It may be {TITLES[other]} instead: {printable_name(one)} is {printable_name(another)} there."
    return ""


def _unicode_path(entry: zipfile.ZipInfo, name: bytes) -> str | None:
    """Read the UTF-8 name in the extra field that some programs write. Source: PKWARE's APPNOTE.TXT, 4.6.9."""
    extra = entry.extra
    while len(extra) >= 4:
        kind, length = struct.unpack("<HH", extra[:4])
        field, extra = extra[4 : 4 + length], extra[4 + length :]
        if kind == 0x7075 and len(field) > 5 and field[0] == 1 and field[1:5] == struct.pack("<I", zlib.crc32(name)):
            with suppress(UnicodeDecodeError):
                return field[5:].decode("utf-8")
    return None


def _zip_path(entry: zipfile.ZipInfo, name: str) -> tuple[str, ...]:
    """Check everything that a zip states about a file, except its size."""
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
    """Refuse overlapping files, by which a few bytes could unpack to any amount. Source: Fifield 2019, WOOT."""
    end = 0
    for entry in sorted(archive.infolist(), key=lambda entry: entry.header_offset):
        if entry.header_offset < end:
            raise InvalidDataset("Files in the zip overlap, as in a zip bomb. Pack it again.")
        end = entry.header_offset + _ZIP_HEADER + entry.compress_size


def _zip_chunks(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, budget: Budget) -> Iterator[bytes]:
    with archive.open(entry) as file:
        while chunk := file.read(_CHUNK_BYTES):
            budget.unpack(len(chunk))
            yield chunk


class _Xz(RawIOBase):
    """Decompress an xz file with a memory limit, which `lzma.open` does not support."""

    def __init__(self, raw: BufferedReader):
        self.raw, self.packed = raw, b""
        self.decompressor = self._start()

    def _start(self) -> lzma.LZMADecompressor:
        return lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_MAX_DICTIONARY)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            if self.decompressor.eof:  # another stream may follow after zero padding
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
    """A decompressed tar file, read sequentially; counts all bytes and limits the size of headers."""

    def __init__(self, file: Any, raw: BufferedReader, budget: Budget):
        self.file, self.raw, self.budget = file, raw, budget
        self.position = 0
        self.last = b""  # last read, to distinguish the end of a tar file from a truncated one
        self.header = 0  # [bytes] left for the current header

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int) -> int:
        if offset < self.position:
            raise tarfile.ReadError("its sizes contradict each other")
        for _ in self.chunks(offset - self.position):
            pass
        return self.position

    def read(self, count: int) -> bytes:
        """Read part of a header."""
        if not 0 <= count <= self.header:
            raise InvalidDataset(
                f"A file in the tar has a header of more than {_MAX_HEADER >> 10} kB. Pack without extended attributes."
            )
        self.header -= count
        self.last = b"".join(self.chunks(count))
        return self.last

    def chunks(self, count: int) -> Iterator[bytes]:
        """Yield `count` bytes in chunks, or fewer at the end of the file."""
        while count > 0 and (data := self.file.read(min(count, _CHUNK_BYTES))):
            self.position += len(data)
            self.budget.unpack(len(data))
            count -= len(data)
            yield data


def _tar_members(stream: _Stream) -> Iterator[Member]:
    with translate_errors():
        stream.header = _MAX_HEADER
        try:
            archive: Any = tarfile.TarFile(fileobj=cast(BinaryIO, stream), encoding="utf-8")
        except (tarfile.ReadError, gzip.BadGzipFile) as error:
            if stream.position > 512:
                raise
            raise InvalidDataset("This is neither a zip nor a tar. Pack the folder of class folders as one.") from error
    while True:
        with translate_errors():
            stream.header = _MAX_HEADER
            entry = archive.next()
            archive.members.clear()  # tarfile would keep all entries in memory
            if entry is None:
                break
            stream.budget.enter()
            path = safe_path(entry.name)
            if entry.issym() or entry.islnk():
                raise unusual(path, "a link")
            if entry.issparse() or not (entry.isreg() or entry.isdir()):
                raise unusual(path, "a device or another unusual kind of file")
        if entry.isreg():
            chunks = partial(stream.chunks, entry.size)
            yield Member(path, chunks, stream.raw.tell(), entry.name)
    with translate_errors():
        if len(stream.last) < 512 or any(stream.last):
            raise EOFError("the end is missing")
        for _ in stream.chunks(MAX_BYTES):  # read to the end, because the checksum comes last
            pass
