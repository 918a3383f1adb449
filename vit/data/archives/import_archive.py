"""Convert an untrusted zip or tar of class folders to a folder that `load_dataset` reads.

Names, sizes and counts in an archive are not trusted. Pictures are read in chunks, decoded to verify them, and written
under generated names into a folder that is renamed when it is complete. They then get their own names as far as every
file system allows, see `vit.data.layouts.class_folders.place_pictures`.
"""

import errno
import json
import re
import secrets
import shutil
from collections import deque
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from os.path import commonpath, splitext
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from vit.data.archives.archive_names import check_class
from vit.data.archives.archive_readers import Budget, Member, encoding_among, list_members, read_chunks
from vit.data.archives.name_encodings import UTF8
from vit.data.file_names import OTHER_PICTURES, Parts, is_ignored, is_picture, is_table, printable_name, printable_path
from vit.data.folders import list_files
from vit.data.layouts.class_folders import ArrangedPictures, PackedPicture, arrange, place_pictures
from vit.data.packed.index import SPLITS, SUFFIXES, index_of
from vit.data.tables import MOST_BYTES
from vit.errors import InvalidDataset, InvalidImage
from vit.images.files.decode import decode_image
from vit.images.files.tiff import read_tags
from vit.untrusted import Unreadable, read_object, spend
from vit.validation import as_tuple

MAX_FILES = 200_000  # pictures
MAX_FILE_BYTES = 50_000_000  # per picture
_THREADS = 2  # decoding holds a lock, so more threads do not help
_WAITING_PICTURES = 16  # pictures that are read but not yet verified
_WAITING_BYTES = 200_000_000
_NOTE = ".left-out.json"  # in the folder; no class name begins with a dot
_NOTED_LINES = 1000  # maximum number of lines in it
_MOST_TABLES = 20_000  # maximum number of files that may name classes
_SUFFIXES = (
    (rb"\xff\xd8\xff", ".jpg"),
    (rb"\x89PNG", ".png"),
    (rb"GIF8", ".gif"),
    (rb"BM", ".bmp"),
    (rb"RIFF....WEBP", ".webp"),
    (rb"II|MM", ".tiff"),
    (rb"....ftyp(hei|hev|mif1|msf1)", ".heic"),
    (rb"....ftyp", ".avif"),
)


class SkippedFiles(NamedTuple):
    """Files of an archive that were not imported.

    Attributes:
        lines: pictures with the reason, and in the last line the number of other files.
        total: number of lines before they were truncated.
        notes: assumptions: encoding of names, source of the classes.
    """

    lines: tuple[str, ...] = ()
    total: int = 0
    notes: tuple[str, ...] = ()


def left_out(folder: str | Path) -> SkippedFiles:
    """Read what was left out when a folder was imported; empty for other folders."""
    try:
        return as_tuple(SkippedFiles, read_object(Path(folder) / _NOTE), _NOTE)
    except (FileNotFoundError, Unreadable):
        return SkippedFiles()


def import_dataset(
    archive: str | Path, into: str | Path, *, progress: Callable[[int, int], None] | None = None
) -> None:
    """Unpack a zip or tar of class folders, and check it meanwhile. `left_out` tells what was left out.

    The archive contains a folder of pictures per class, directly or in folders for training, testing and validation
    (one of the last two suffices), or any other layout that `vit.data.layouts.layout` understands. Its file name does
    not matter; a tar may be compressed with gzip, bzip2 or xz.

    Args:
        archive: the file.
        into: a folder that does not exist yet or is empty; it is unchanged after an error.
        progress: called with the bytes of the archive that are done, and its size.

    Raises:
        InvalidDataset: no such archive, hostile or damaged content, limits of this module exceeded, fewer than two
            classes, or the disk is full or read-only.
    """
    archive, into = Path(archive), Path(into).absolute()
    if not archive.is_file():
        raise InvalidDataset(f"There is no archive {archive.name!r}. Choose a zip or tar of class folders.")
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise InvalidDataset(f"{str(into)!r} exists and is not empty. Choose another folder.")
    unfinished = into.with_name(f".import-{secrets.token_hex(8)}.partial")
    pool = unfinished / ".pool"  # no class name begins with a dot
    try:
        pool.mkdir(parents=True)
        unpacked = _unpack(archive, pool, progress)
        packed = {path for path in (*unpacked.tables, *unpacked.others) if splitext(path[-1])[1].lower() in SUFFIXES}
        try:
            arranged = (
                _arrange_packed(archive, packed, pool)
                if packed and not unpacked.pictures
                else arrange(
                    unpacked.pictures,
                    unpacked.tables,
                    [*unpacked.others, *unpacked.unreadable],
                    partial(_read_table, unpacked.tables),
                )
            )
        except InvalidDataset as error:
            if not unpacked.unreadable:
                raise
            first, count = next(iter(unpacked.unreadable.values())), len(unpacked.unreadable)
            why = str(error).partition(". ")[0]
            raise InvalidDataset(f"{why}. {count:,} of its pictures cannot be read: {first}") from error
        place_pictures(arranged.splits, unfinished)
        shutil.rmtree(pool)
        skipped, notes = (*unpacked.unreadable.values(), *arranged.unused), (*unpacked.notes, *arranged.notes)
        no_pictures = sum(
            splitext(path[-1])[1].lower() not in OTHER_PICTURES
            for path in unpacked.others
            if path not in arranged.tables
        )
        ignored = unpacked.hidden + no_pictures + len(unpacked.tables.keys() - {*arranged.tables})
        _write_note(unfinished, skipped, ignored, notes)
        list_files(unfinished)  # raises InvalidDataset if it is no dataset
        unfinished.rename(into)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise InvalidDataset(
                "The disk is full. Nothing was kept; make room and import the archive again."
            ) from error
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            raise InvalidDataset(f"{str(into)!r} exists and is not empty. Choose another folder.") from error
        raise InvalidDataset(f"The archive was not imported: {error.strerror or error}. Nothing was kept.") from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _arrange_packed(archive: Path, paths: Collection[Parts], pool: Path) -> ArrangedPictures:
    """Write the pictures of files that hold many into the pool, and return them by split and class."""
    folder = pool / "packed"
    _keep(archive, paths, folder)
    index = index_of(folder, bar=False)
    if len(index.records) > MAX_FILES:
        raise InvalidDataset(f"The archive has more than {MAX_FILES:,} pictures, the limit. Leave some out.")
    splits: dict[str, dict[str, list[PackedPicture]]] = {}
    unused = []
    for number, (label, split) in enumerate(zip(index.labels.tolist(), index.split.tolist(), strict=True)):
        spend()
        file = pool / f"picture-{number}"
        try:
            name = index.records.name(number)
            picture = PackedPicture(tuple(name.split("/")), file, _store_picture(index.records[number], file), name)
        except InvalidImage as error:
            unused.append(f"{index.records.name(number)}: {error}")
            continue
        kind = "val" if SPLITS[split] == "validation" else SPLITS[split]
        splits.setdefault(kind, {}).setdefault(check_class(index.classes[label]), []).append(picture)
    splits = {"": splits["train"]} if splits.keys() == {"train"} else splits
    return ArrangedPictures(splits, unused, index.notes, tuple(paths))


def _keep(archive: Path, paths: Collection[Parts], into: Path) -> None:
    """Unpack files of many pictures, without the folders around all of them."""
    around = len(PurePosixPath(commonpath("/".join(("", *path[:-1])) or "/" for path in paths)).parts) - 1
    budget = Budget(archive.stat().st_size, into)
    with archive.open("rb") as raw:
        for member in list_members(raw, budget, []):
            if member.path in paths and all(map(str.isprintable, member.path)):
                file = into.joinpath(*member.path[around:])
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("wb") as out:
                    for chunk in read_chunks(member):
                        budget.store(len(chunk))
                        out.write(chunk)


def _write_note(folder: Path, skipped: tuple[str, ...], ignored: int, notes: tuple[str, ...]) -> None:
    """Store in the folder what was left out, and assumptions, if there are any."""
    others = f"{ignored:,} other file{'s' * (ignored > 1)}: no picture, or hidden"
    lines = (*skipped[:_NOTED_LINES], others) if ignored else skipped[:_NOTED_LINES]
    if lines or notes:
        note = {"total": len(skipped) + bool(ignored), "lines": lines, "notes": notes}
        (folder / _NOTE).write_text(json.dumps(note, indent=2) + "\n")


def _read_table(tables: Mapping[Parts, Path], path: Parts) -> bytes:
    content = tables[path].read_bytes()
    if len(content) > MOST_BYTES:
        raise Unreadable(f"{printable_path(path)} has more than {MOST_BYTES / 1e6:.0f} MB, so it is not read.")
    return content


class _Unpacked(NamedTuple):
    pictures: list[PackedPicture]
    unreadable: dict[Parts, str]
    tables: dict[Parts, Path]
    others: list[Parts]
    hidden: int
    notes: list[str]


def _unpack(archive: Path, pool: Path, progress: Callable[[int, int], None] | None) -> _Unpacked:
    """Write all decodable pictures and all tables into `pool` under numbers, and return their names."""
    size = archive.stat().st_size
    budget = Budget(size, pool)
    pictures: list[PackedPicture] = []
    unreadable: dict[Parts, str] = {}
    tables: dict[Parts, Path] = {}
    notes: list[str] = []
    waiting: deque[tuple[Member, Path, int, Future[str]]] = deque()
    others: list[Parts] = []
    hidden = reported = stacks = 0

    def settle() -> None:
        spend()  # here, as the limit is that of this thread, not of those which decode
        member, file, _, future = waiting.popleft()
        try:
            pictures.append(PackedPicture(member.path, file, future.result(), member.name))
        except InvalidImage as error:
            unreadable[member.path] = f"{printable_name(member.name)}: {error}"

    with archive.open("rb") as raw, ThreadPoolExecutor(_THREADS) as threads:
        for number, member in enumerate(list_members(raw, budget, notes)):
            if not member.path or any(map(is_ignored, member.path)):
                hidden += 1
                continue
            if not is_picture(member.path[-1]) and not is_table(member.path[-1]):
                others.append(member.path)
                continue
            if is_table(member.path[-1]):
                if len(tables) < _MOST_TABLES and member.path not in tables:
                    tables[member.path] = _store_table(member, pool / str(number), budget)
                continue
            if len(pictures) + len(unreadable) + len(waiting) >= MAX_FILES:
                raise InvalidDataset(f"The archive has more than {MAX_FILES:,} pictures, the limit. Leave some out.")
            data = _read_member(member)
            stacks += read_tags(data).pages > 1
            budget.store(len(data))
            file = pool / str(number)
            waiting.append((member, file, len(data), threads.submit(_store_picture, data, file)))
            while len(waiting) > _WAITING_PICTURES or sum(count for _, _, count, _ in waiting) > _WAITING_BYTES:
                settle()
            if progress and (member.done - reported) * 200 >= size:
                reported = member.done
                progress(min(reported, size), size)
        while waiting:
            settle()
    if progress:
        progress(size, size)
    if stacks:
        notes.append(f"TIFF files with several pages, of which the first is used: {stacks:,}.")
    return _decoded(_Unpacked(pictures, unreadable, tables, others, hidden, notes))


def _decoded(unpacked: _Unpacked) -> _Unpacked:
    """Decode names in a tar that are not UTF-8, which `tarfile` returns with surrogates."""
    pictures, unreadable, tables, others, _, notes = unpacked
    paths = [*(picture.path for picture in pictures), *unreadable, *tables, *others]
    raw = ["/".join(path).encode(errors="surrogateescape") for path in paths]
    if (encoding := encoding_among(raw, notes)) == UTF8:
        return unpacked

    def text(*path: str) -> Parts:
        return tuple(name.encode(errors="surrogateescape").decode(encoding, "replace") for name in path)

    return unpacked._replace(
        pictures=[one._replace(path=text(*one.path), name=text(one.name)[0]) for one in pictures],
        unreadable={text(*path): reason for path, reason in unreadable.items()},
        tables={text(*path): file for path, file in tables.items()},
        others=[text(*path) for path in others],
    )


def _store_table(member: Member, file: Path, budget: Budget) -> Path:
    """Write a table, truncated to one byte above the limit if it is too long."""
    data = bytearray()
    for chunk in read_chunks(member):
        data += chunk
        if len(data) > MOST_BYTES:
            break
    budget.store(len(data))
    file.write_bytes(data[: MOST_BYTES + 1])
    return file


def _read_member(member: Member) -> bytes:
    """Read a whole file in chunks, ignoring its declared size."""
    data = bytearray()
    for chunk in read_chunks(member):
        data += chunk
        if len(data) > MAX_FILE_BYTES:
            raise InvalidDataset(
                f"{printable_path(member.path)} in the archive has more than {MAX_FILE_BYTES / 1e6:.0f} MB, "
                "the limit. Make it smaller, or leave it out."
            )
    return bytes(data)


def _store_picture(data: bytes, file: Path) -> str:
    """Verify and write a picture, and return the suffix of its format; raises InvalidImage if it cannot be decoded."""
    decode_image(data)
    file.write_bytes(data)
    return next(suffix for start, suffix in _SUFFIXES if re.match(start, data, re.DOTALL))
