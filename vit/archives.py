"""From an untrusted zip or tar of class folders to a folder that `load_dataset` reads.

Nothing in an archive is believed: no name, no size, no count. Pictures are read piece by piece, decoded to see
whether they are pictures, and written under names of ours into a folder that gets its final name when it is whole.
"""

import bz2
import errno
import gzip
import json
import lzma
import re
import secrets
import shutil
import stat
import struct
import tarfile
import unicodedata
import zipfile
import zlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedReader, RawIOBase
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

from vit.datasets import PICTURES, TEST_FOLDERS, list_files
from vit.errors import InvalidDataset, InvalidImage
from vit.images.decode import decode_image

MAX_FILES = 200_000  # pictures
MAX_ENTRIES = 500_000  # of any kind; macOS adds a shadow to every file
MAX_BYTES = 8 << 30  # of everything that is unpacked
MAX_FILE_BYTES = 50_000_000  # of one picture
MAX_RATIO = 200  # unpacked to packed; deflate reaches 1,032 on zeros, honest pictures hardly 2
RATIO_FLOOR = 100_000_000  # [bytes] unpacked, below which any ratio is harmless
MIN_FREE = 1 << 30  # [bytes] of disk that are left to others
MAX_DEPTH = 20  # folders in each other
MAX_CLASS_NAME = 100  # characters

_ZIP_HEADER = 30  # [bytes] before each file, without its name
_MAX_DIRECTORY = 64 << 20  # [bytes] of a zip's list of files, which Python reads at once
_MAX_HEADER = 32 << 10  # [bytes] before a file in a tar, likewise
_MAX_DICTIONARY = 256 << 20  # [bytes] of memory for xz; `xz -9` asks for 65 MB
_CHUNK = 1 << 18
_THREADS = 2  # decoding is one at a time anyway
_WAITING = 16  # pictures that are read and not yet checked
_WAITING_BYTES = 200_000_000
_BLOCK = 4096  # [bytes] that the smallest file takes on a disk
_LISTED = 20  # pictures of one folder that are left out by name; of more only the number is told
_NOTE = ".left-out.json"  # in the folder; no class begins with a dot
_NOTED = 1000  # lines in it

_LIKE_PICTURES = PICTURES | {".jpe", ".jfif", ".apng", ".heic", ".heif", ".jp2", ".jxl", ".psd", ".svg", ".pgm", ".ppm"}
_SUFFIXES = (
    (rb"\xff\xd8\xff", ".jpg"),
    (rb"\x89PNG", ".png"),
    (rb"GIF8", ".gif"),
    (rb"BM", ".bmp"),
    (rb"RIFF....WEBP", ".webp"),
    (rb"II|MM", ".tiff"),
    (rb"....ftyp", ".avif"),
)
_FOREIGN = (
    (rb"Rar!", "a RAR archive"),
    (rb"7z\xbc\xaf", "a 7-Zip archive"),
    (rb"\x28\xb5\x2f\xfd", "a Zstandard file"),
)
_JOINERS = "\u200c\u200d"  # unseen, but part of words and of emoji

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


@dataclass(frozen=True)
class ImportedDataset:
    """A data set that came out of an archive.

    Attributes:
        folder: holds one folder per class, directly or below train/, test/ and perhaps val/.
        classes: their names, sorted.
        counts: of "train", "validation" and "test" the pictures per class, as `load_dataset` splits them.
        skipped: pictures that were left out, with the reason.
        ignored: files that are no pictures: notes, archives, what macOS and Windows add.
    """

    folder: Path
    classes: tuple[str, ...]
    counts: dict[str, dict[str, int]]
    skipped: tuple[str, ...]
    ignored: int

    @property
    def spec(self) -> str:
        """What `load_dataset` takes for it."""
        return f"folder:{self.folder}"


class LeftOut(NamedTuple):
    """What an archive held and its folder does not.

    Attributes:
        lines: pictures with the reason, and in the last line the number of other files.
        total: of the lines, where there are too many to keep.
    """

    lines: tuple[str, ...] = ()
    total: int = 0


def left_out(folder: str | Path) -> LeftOut:
    """What was left out when a folder was imported; nothing where it came in another way."""
    try:
        note = json.loads((Path(folder) / _NOTE).read_bytes())
        return LeftOut(tuple(map(str, note["lines"])), int(note["total"]))
    except (OSError, ValueError, TypeError, KeyError):
        return LeftOut()


def import_dataset(
    archive: str | Path, into: str | Path, *, progress: Callable[[int, int], None] | None = None
) -> ImportedDataset:
    """Unpack a zip or tar of class folders, checked while it unpacks.

    The archive holds a folder of pictures per class, directly or in train/, test/ and val/ (one of the last two is
    enough). One level too many is understood: around everything, or a folder of the same name in every class. Its name
    plays no part; a tar may be packed with gzip, bzip2 or xz.

    Args:
        archive: the file.
        into: a folder that does not exist yet or is empty; on a refusal it stays so.
        progress: called with the bytes of the archive that are done and all of them.

    Raises:
        InvalidDataset: no such archive, hostile or damaged content, beyond the limits of this module, fewer than two
            classes, or no space on the disk.
    """
    archive, into = Path(archive), Path(into).absolute()
    if not archive.is_file():
        raise InvalidDataset(f"There is no archive {archive.name!r}. Choose a zip or tar of class folders.")
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise InvalidDataset(f"{str(into)!r} exists and is not empty. Choose another folder.")
    into.parent.mkdir(parents=True, exist_ok=True)
    unfinished = into.with_name(f".import-{secrets.token_hex(8)}.partial")
    pool = unfinished / ".pool"  # no class begins with a dot
    try:
        pool.mkdir(parents=True)
        unpacked = _unpack(archive, pool, progress)
        splits, unused = _arrange(unpacked.pictures)
        _place(splits, unfinished)
        shutil.rmtree(pool)
        _write_note(unfinished, (*unpacked.unreadable, *unused), unpacked.ignored)
        classes, *files = list_files(unfinished)
        unfinished.rename(into)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InvalidDataset(
                "The disk is full. Nothing was kept; make room and import the archive again."
            ) from error
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise InvalidDataset(f"{str(into)!r} exists and is not empty. Choose another folder.") from error
        raise
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    labels = [[label for _, label in split] for split in files]
    counts = {
        split: {name: own.count(label) for label, name in enumerate(classes)}
        for split, own in zip(("train", "validation", "test"), labels, strict=True)
    }
    return ImportedDataset(into, classes, counts, (*unpacked.unreadable, *unused), unpacked.ignored)


def _write_note(folder: Path, skipped: tuple[str, ...], ignored: int) -> None:
    """Keep in a folder what its archive held besides, if there was anything."""
    others = f"{ignored:,} other file{'s' * (ignored > 1)}: no picture, or hidden"
    lines = (*skipped[:_NOTED], others) if ignored else skipped[:_NOTED]
    if lines:
        note = {"total": len(skipped) + bool(ignored), "lines": lines}
        (folder / _NOTE).write_text(json.dumps(note, indent=2) + "\n")


# --- Reading --------------------------------------------------------------------------------------------------


class _Member(NamedTuple):
    """A file in an archive: the folders it lies in and its name, how to read it, and where the reading stands."""

    path: tuple[str, ...]
    chunks: Callable[[], Iterator[bytes]]
    done: int  # [bytes] of the archive


class _Picture(NamedTuple):
    """A picture in the pool, with the name it has in the archive."""

    path: tuple[str, ...]
    file: Path
    suffix: str


class _Unpacked(NamedTuple):
    pictures: list[_Picture]
    unreadable: list[str]
    ignored: int


class _Budget:
    """What one archive may still unpack to, in memory and on the disk."""

    def __init__(self, packed: int, folder: Path):
        self.packed, self.folder = packed, folder
        self.unpacked = self.stored = 0
        self.store(0)

    def unpack(self, count: int) -> None:
        """Count bytes that came out of the archive."""
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
        """Count bytes before they are written; now and then look whether the disk has room for more."""
        before, self.stored = self.stored, self.stored + max(count, _BLOCK)
        if before == 0 or before // (64 << 20) != self.stored // (64 << 20):
            free = shutil.disk_usage(self.folder).free
            if free < MIN_FREE + (64 << 20):
                raise InvalidDataset(
                    f"The disk is too full ({free / 1e9:.1f} GB free). Nothing was kept; make room and import again."
                )


@contextmanager
def _undamaged() -> Iterator[None]:
    """Turn what Python's readers raise into one sentence."""
    try:
        yield
    except InvalidDataset:
        raise
    except _DAMAGE as error:
        reason = _shown(str(error).partition("\n")[0]) or type(error).__name__
        raise InvalidDataset(f"The archive is damaged or incomplete ({reason}). Copy or pack it again.") from error


def _unpack(archive: Path, pool: Path, progress: Callable[[int, int], None] | None) -> _Unpacked:
    """Write all that decodes as a picture into `pool`, numbered, and remember the names."""
    size = archive.stat().st_size
    budget, seen = _Budget(size, pool), _Seen()
    pictures: list[_Picture] = []
    unreadable: list[str] = []
    waiting: deque[tuple[tuple[str, ...], Path, int, Future[str]]] = deque()
    ignored = told = 0

    def settle() -> None:
        path, file, _, future = waiting.popleft()
        try:
            pictures.append(_Picture(path, file, future.result()))
        except InvalidImage as error:
            unreadable.append(f"{_shown_path(path)}: {error}")

    with archive.open("rb") as raw, ThreadPoolExecutor(_THREADS) as threads:
        for number, member in enumerate(_members(raw, size, budget)):
            if number >= MAX_ENTRIES:
                raise InvalidDataset(f"The archive has more than {MAX_ENTRIES:,} entries, the limit. Leave some out.")
            if _is_junk(member.path):
                ignored += 1
                continue
            seen.add(member.path)
            if len(pictures) + len(unreadable) + len(waiting) >= MAX_FILES:
                raise InvalidDataset(f"The archive has more than {MAX_FILES:,} pictures, the limit. Leave some out.")
            data = _content(member, budget)
            budget.store(len(data))
            file = pool / str(number)
            waiting.append((member.path, file, len(data), threads.submit(_store, data, file)))
            while len(waiting) > _WAITING or sum(count for _, _, count, _ in waiting) > _WAITING_BYTES:
                settle()
            if progress and (member.done - told) * 200 >= size:
                told = member.done
                progress(min(told, size), size)
        while waiting:
            settle()
    if progress:
        progress(size, size)
    return _Unpacked(pictures, unreadable, ignored)


def _content(member: _Member, budget: _Budget) -> bytes:
    """Read a whole file, whatever size it claims to have."""
    data = bytearray()
    with _undamaged():
        for chunk in member.chunks():
            data += chunk
            if len(data) > MAX_FILE_BYTES:
                raise InvalidDataset(
                    f"{_shown_path(member.path)} in the archive has more than {MAX_FILE_BYTES / 1e6:.0f} MB, "
                    "the limit. Make it smaller, or leave it out."
                )
    return bytes(data)


def _store(data: bytes, file: Path) -> str:
    """Write a picture as it is and return the suffix of its format; InvalidImage where it cannot be decoded."""
    decode_image(data)
    file.write_bytes(data)
    return next(suffix for start, suffix in _SUFFIXES if re.match(start, data, re.DOTALL))


def _members(raw: BufferedReader, size: int, budget: _Budget) -> Iterator[_Member]:
    """Open an archive by its content and yield its files one after the other; folders are passed over."""
    start = raw.read(512)
    raw.seek(0)
    for pattern, name in _FOREIGN:
        if re.match(pattern, start):
            raise InvalidDataset(f"This is {name}, which is not read here. Pack the folder as zip or tar.")
    if start.startswith((b"PK\3\4", b"PK\5\6")):
        return _zip_members(raw, budget)
    stream: Any = raw
    if start.startswith(b"\x1f\x8b"):
        stream = gzip.GzipFile(fileobj=raw)
    elif start.startswith(b"BZh"):
        stream = bz2.BZ2File(raw)
    elif start.startswith(b"\xfd7zXZ\0"):
        stream = BufferedReader(_Xz(raw))
    return _tar_members(_Stream(stream, raw, budget))


def _zip_members(raw: BufferedReader, budget: _Budget) -> Iterator[_Member]:
    with _undamaged():
        archive = zipfile.ZipFile(cast(BinaryIO, _Careful(raw)))
        paths = [_zip_path(entry) for entry in archive.infolist()]
        _refuse_overlap(archive)
    done = 0
    for entry, path in zip(archive.infolist(), paths, strict=True):
        done += entry.compress_size
        if not entry.is_dir():
            yield _Member(path, lambda entry=entry: _zip_chunks(archive, entry, budget), done)  # type: ignore[misc]


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
        if len(data) >= _MAX_DIRECTORY or (count > _CHUNK and data.count(b"PK\1\2") > MAX_ENTRIES):
            raise InvalidDataset(f"The archive has more than {MAX_ENTRIES:,} entries, the limit. Leave some out.")
        return data


def _zip_path(entry: zipfile.ZipInfo) -> tuple[str, ...]:
    """Check everything that a zip says about a file except its size."""
    name = entry.orig_filename
    if not entry.flag_bits & 0x800:  # not marked as UTF-8, and often it is all the same
        with suppress(UnicodeError):
            name = name.encode("cp437").decode("utf-8")
    path = _path(name)
    kind = stat.S_IFMT(entry.external_attr >> 16)
    if kind not in (0, stat.S_IFREG, stat.S_IFDIR):
        raise _unusual(path, "a link" if kind == stat.S_IFLNK else "a device")
    if entry.flag_bits & 0x2041:  # encrypted, strongly encrypted, hidden headers
        raise InvalidDataset(f"{_shown_path(path)} in the zip is encrypted. Pack the pictures without a password.")
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


def _zip_chunks(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, budget: _Budget) -> Iterator[bytes]:
    with archive.open(entry) as file:
        while chunk := file.read(_CHUNK):
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
                self.packed = self.decompressor.unused_data.lstrip(b"\0") or self.raw.read(_CHUNK).lstrip(b"\0")
                if not self.packed:
                    return 0
                self.decompressor = self._start()
            elif self.decompressor.needs_input:
                self.packed = self.raw.read(_CHUNK)
                if not self.packed:
                    raise EOFError("the file ends too early")
            data = self.decompressor.decompress(self.packed, len(buffer))
            self.packed = b""
            if data:
                buffer[: len(data)] = data
                return len(data)


class _Stream:
    """A decompressed tar, read once from start to end: all of it is counted, and each header is bounded."""

    def __init__(self, file: Any, raw: BufferedReader, budget: _Budget):
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
        while count > 0 and (data := self.file.read(min(count, _CHUNK))):
            self.position += len(data)
            self.budget.unpack(len(data))
            count -= len(data)
            yield data


def _tar_members(stream: _Stream) -> Iterator[_Member]:
    with _undamaged():
        stream.header = _MAX_HEADER
        try:
            archive: Any = tarfile.TarFile(fileobj=cast(BinaryIO, stream), encoding="utf-8")
        except (tarfile.ReadError, gzip.BadGzipFile) as error:
            if stream.position > 512:
                raise
            raise InvalidDataset("This is neither a zip nor a tar. Pack the folder of class folders as one.") from error
    while True:
        with _undamaged():
            stream.header = _MAX_HEADER
            entry = archive.next()
            archive.members.clear()  # it would keep every one of them
            if entry is None:
                break
            path = _path(entry.name)
            if entry.issym() or entry.islnk():
                raise _unusual(path, "a link")
            if entry.issparse() or not (entry.isreg() or entry.isdir()):
                raise _unusual(path, "a device or another unusual kind of file")
        if entry.isreg():
            yield _Member(path, lambda size=entry.size: stream.chunks(size), stream.raw.tell())  # type: ignore[misc]
    with _undamaged():
        if len(stream.last) < 512 or any(stream.last):
            raise EOFError("the end is missing")
        for _ in stream.chunks(MAX_BYTES):  # up to the checksum, which comes last
            pass


# --- Names ----------------------------------------------------------------------------------------------------


class _Seen:
    """Names met so far: none may come twice, nor be the same to a disk that ignores case or composes accents."""

    def __init__(self) -> None:
        self.files: dict[tuple[str, ...], tuple[str, ...]] = {}
        self.folders: dict[tuple[str, ...], tuple[str, ...]] = {}

    def add(self, path: tuple[str, ...]) -> None:
        key = tuple(_folded(part) for part in path)
        if key in self.files:
            if self.files[key] == path:
                raise InvalidDataset(f"{_shown_path(path)} is in the archive twice. Pack it again.")
            raise self._collision(self.files[key], path)
        self.files[key] = path
        for depth in range(len(path) - 1, 0, -1):
            folder = self.folders.setdefault(key[:depth], path[:depth])
            if folder != path[:depth]:
                raise self._collision(folder, path[:depth])

    def _collision(self, first: tuple[str, ...], second: tuple[str, ...]) -> InvalidDataset:
        return InvalidDataset(
            f"{_shown_path(first)} and {_shown_path(second)} in the archive differ only in case or in the coding of "
            "accents. Rename one, or put them together."
        )


def _folded(name: str) -> str:
    """The same text for names that some disk takes for one."""
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", name).casefold())


def _path(name: str) -> tuple[str, ...]:
    """Split the name of a file in an archive; refuse any that could lead out of a folder on some system."""
    parts = tuple(part for part in name.split("/") if part not in ("", "."))
    if name.startswith("/") or "\\" in name or ".." in parts or re.match("[A-Za-z]:", name):
        raise InvalidDataset(
            f"The archive holds the path {_shown(name)!r}, which could lead out of its folder. "
            "Pack the folder again, with plain relative paths."
        )
    if len(parts) > MAX_DEPTH:
        raise InvalidDataset(f"The archive has folders more than {MAX_DEPTH} deep. Pack the class folders only.")
    return parts


def _is_junk(path: tuple[str, ...]) -> bool:
    """Say whether a file is none of the pictures: hidden, added by macOS or Windows, or of another kind."""
    hidden = any(part.startswith(".") or part == "__MACOSX" for part in path)
    return hidden or not path or Path(path[-1]).suffix.lower() not in _LIKE_PICTURES


def _check_class(name: str) -> str:
    """Return a class's name with accents composed, or refuse it."""
    odd = [c for c in name if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") and c not in _JOINERS]
    if odd:
        codes = ", ".join(f"U+{ord(c):04X}" for c in odd[:3])
        raise InvalidDataset(
            f"The class folder {_shown(name)!r} has unseen characters in its name ({codes}). Rename it."
        )
    if len(name) > MAX_CLASS_NAME or len(name.encode()) > 240:
        raise InvalidDataset(
            f"The class folder {_shown(name)!r} has a name of {len(name)} characters; the limit is {MAX_CLASS_NAME}. "
            "Rename it."
        )
    return unicodedata.normalize("NFC", name)


def _unusual(path: tuple[str, ...], kind: str) -> InvalidDataset:
    return InvalidDataset(f"{_shown_path(path)} in the archive is {kind}. Pack plain files only.")


def _shown(name: str) -> str:
    """A foreign name, short and printable."""
    name = name if len(name) <= 80 else name[:40] + "…" + name[-39:]
    return "".join(c if c.isprintable() else f"U+{ord(c):04X}" for c in name)


def _shown_path(path: tuple[str, ...]) -> str:
    return _shown("/".join(path))


# --- Folders --------------------------------------------------------------------------------------------------

_Classes = dict[str, list[_Picture]]


@dataclass
class _Folder:
    """A folder of the archive as far as pictures lie in it or below."""

    folders: dict[str, "_Folder"] = field(default_factory=dict)
    pictures: list[_Picture] = field(default_factory=list)


def _arrange(pictures: list[_Picture]) -> tuple[dict[str, _Classes], list[str]]:
    """Find the classes.

    Returns:
        the pictures by split ("train", "test" and perhaps "val", or "" for all) and class, in the order of their names;
        and what is in none of them, with the reason.
    """
    root = _Folder()
    for picture in sorted(pictures):
        folder = root
        for part in picture.path[:-1]:
            folder = folder.folders.setdefault(part, _Folder())
        folder.pictures.append(picture)

    while len(max(_splits(root).values(), key=len)) < 2 and len(root.folders) == 1:
        (inner,) = root.folders.values()
        if not inner.folders:
            break
        root = inner
    splits = _splits(root)
    for classes in splits.values():
        for name in list(classes):
            classes[_check_class(name)] = classes.pop(name)
    _refuse_unfit(splits)

    used = {picture.file for classes in splits.values() for own in classes.values() for picture in own}
    unused: dict[tuple[str, ...], list[_Picture]] = {}
    for picture in sorted(pictures):
        if picture.file not in used:
            unused.setdefault(picture.path[:-1], []).append(picture)
    lines = []
    for path, own in unused.items():
        if len(own) > _LISTED:
            lines.append(f"{_shown_path(path)}/: {len(own):,} pictures, in none of the class folders")
        else:
            lines += [f"{_shown_path(picture.path)}: in none of the class folders" for picture in own]
    return splits, lines


def _splits(root: _Folder) -> dict[str, _Classes]:
    """Read a folder as train/, test/ and val/ with class folders in each, or else as class folders."""
    named = {name.casefold(): folder for name, folder in root.folders.items()}
    train = _class_folders(named.get("train", _Folder()), unwrap=True)
    if len(train) > 1:
        beside = {name: _class_folders(named.get(name, _Folder()), unwrap=True) for name in TEST_FOLDERS}
        # without classes of train/ its pictures have no labels, as in a competition
        known = {name: classes for name, classes in beside.items() if set(classes) & set(train)}
        if known:
            first, *others = known
            val = {"val": known[others[0]]} if first == "test" and others else {}
            return {"train": train, "test": known[first], **val}
    return {"": train if len(train) > 1 else _class_folders(root)}


def _class_folders(root: _Folder, unwrap: bool = False) -> _Classes:
    """Folders that hold pictures, or that each hold one folder of pictures, the same name in all."""
    direct = {name: folder.pictures for name, folder in root.folders.items() if folder.pictures}
    if direct:
        return direct
    inner = {name for folder in root.folders.values() for name in folder.folders}
    if len(root.folders) > 1 and len(inner) == 1:
        nested = {name: next(iter(folder.folders.values())).pictures for name, folder in root.folders.items()}
        if all(nested.values()):
            return nested
    if unwrap and len(root.folders) == 1:
        return _class_folders(next(iter(root.folders.values())))
    return {}


def _refuse_unfit(splits: dict[str, _Classes]) -> None:
    """Refuse what cannot be trained on."""
    classes = splits["train"] if "train" in splits else splits[""]
    if len(classes) < 2:
        raise InvalidDataset(
            f"Class folders with readable pictures in the archive: {len(classes)}. A classifier needs at least two: "
            "pack one folder of pictures per class."
        )
    strangers = sorted({name for split in splits.values() for name in split} - set(classes))
    if strangers:
        names = ", ".join(_shown(name) for name in strangers[:10])
        raise InvalidDataset(f"The archive has classes for testing that train/ lacks: {names}. Add or remove them.")
    if "test" not in splits and all(len(own) < 2 for own in classes.values()):
        raise InvalidDataset("The archive has one picture per class, and none to test on. Add more.")


def _place(splits: dict[str, _Classes], folder: Path) -> None:
    """Move pictures from the pool into their class folders, numbered."""
    for split, classes in splits.items():
        for name, pictures in classes.items():
            home = folder / split / name
            home.mkdir(parents=True)
            for number, picture in enumerate(pictures):
                picture.file.rename(home / f"{number:06}{picture.suffix}")
