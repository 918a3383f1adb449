"""A run's folder at a URL, for machines that share no folder with the server: in object storage, or in any folder.

    <url>/<run>/given.json       what the server gives with an attempt: settings, handle, the checkpoint to start from
    <url>/<run>/folder.json      the folder as the machines have it
    <url>/<run>/stop             a person asks it to stop
    <url>/<run>/pieces/<sha256>  contents of files, or parts of them

An index (`given.json`, `folder.json`) names every file: small ones stand in it, of others it names the pieces. Pieces
never change, and an index is written after the pieces that it names, so a reader meets the old state of everything or
the new one, whenever a writer dies. Each index has one writer at a time: a run's driver, or its leading process while
there is one.
"""

import base64
import hashlib
import json
import logging
import mmap
import os
import re
import secrets
import shutil
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Self

from vit.checkpoints import save
from vit.errors import InvalidRun
from vit.files import acquire_lock, replaced, wait_for_lock
from vit.training.run_folder import BASE, START, STATES, read_json, write_json
from vit.untrusted import parse_json

ENVIRONMENT = "VIT_MIRROR"  # of the machines: the URL
PAUSE_SECONDS = 1.0  # [s] between two looks at the folder, and at what a person asks
_FORMAT = 1  # of an index
_FROM_SERVER = ("config.json", BASE, "about.json", "handle.json", START)  # of these the server is the writer
# Of each side alone, by first name.
_OWN = re.compile(r"\..*|.*\.(lock|partial)|reserve|stop|kill|tracking|over\.json|job\.sh")
_GROWING = re.compile(r"metrics\.jsonl|log\.txt|events/.*")
_PATH = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]*(/[A-Za-z0-9_-][A-Za-z0-9_.-]*){0,4}")
_INLINE_BYTES = 4 << 10  # [bytes] of a file that stands in the index, at most
_TAIL_BYTES = 32 << 10  # [bytes] of the end of a growing file that stand in it
_CHUNK_BYTES = 1 << 20
_KEEP_SECONDS = 30.0  # [s] for which pieces stay that no index names any more, for whoever is reading them
_INDEX_BYTES = 64 << 20  # [bytes], at most
_READ_ATTEMPTS = 5
_STATE_PATHS = tuple(f"checkpoints/{name}" for name in STATES)
_PUSH_ATTEMPTS = 60  # attempts to push the last word, with pauses between them

_log = logging.getLogger(__name__)


class Entry(NamedTuple):
    """A file: its pieces one after the other, then `tail`."""

    pieces: tuple[tuple[str, int], ...]  # name and size
    tail: bytes

    def to_json(self) -> list[Any]:
        """The list that an index holds for it, ready for JSON."""
        return [self.pieces, base64.b64encode(self.tail).decode()]

    @classmethod
    def of_json(cls, value: Any) -> Self:
        """The inverse; ValueError and TypeError for what is none."""
        pieces, tail = value
        named = tuple((str(name), int(size)) for name, size in pieces)
        if not all(re.fullmatch(r"[0-9a-f]{64}", name) and size >= 0 for name, size in named):
            raise ValueError("a piece's name is its hash")
        return cls(named, base64.b64decode(tail))


Files = dict[str, Entry]


class Unit(NamedTuple):
    """Files that change together: one, or all of a checkpoint's folder."""

    path: str
    signature: tuple[Any, ...]
    files: dict[str, BufferedReader]


@dataclass
class Mirror:
    """One run's folder and its image.

    Attributes:
        url: of all runs, as `pyarrow.fs.FileSystem.from_uri` has it, such as s3://bucket/runs?region=eu-west-1.
        folder: of the run, on this machine.
        storage, path: the file system behind the URL, and the image's path there.
    """

    url: str
    folder: Path
    _entries: dict[str, tuple[tuple[Any, ...], Files]] = field(default_factory=dict)  # by unit, with its signature
    _image: Files = field(default_factory=dict)  # what the index named before this writer's first
    _used: dict[str, tuple[int, float]] = field(default_factory=dict)  # pieces: last index that names them, its moment
    _storing: set[str] = field(default_factory=set)  # pieces that no index names yet
    _number: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)  # of `_used` and `_storing`

    def __post_init__(self) -> None:
        """Open the storage, which asks nobody."""
        from pyarrow.fs import FileSystem  # noqa: PLC0415 # only machines of such a cluster need it

        self.storage, root = FileSystem.from_uri(self.url)
        self.path = f"{root.rstrip('/')}/{self.folder.name}"

    # --- The server's side ------------------------------------------------------------------------------------------

    def publish(self) -> None:
        """Bring what an attempt needs, and forget what was asked of the one before."""
        self._delete("stop")
        files: Files = {}
        for name in _FROM_SERVER:
            source = self.folder / name
            for path in sorted(source.rglob("*")) if source.is_dir() else [source]:
                if path.is_file():
                    with path.open("rb") as file:
                        files[str(path.relative_to(self.folder))] = self._store_file(file)
        self._write_index("given", files)

    def withdraw(self) -> None:
        """Forget what was given, as nothing came of the attempt: a job that began all the same finds nothing."""
        self._delete("given.json")

    def request_stop(self) -> None:
        """Ask the run to stop."""
        self._put_file("stop", b"")

    def remove(self) -> None:
        """Delete the image."""
        with suppress(FileNotFoundError):
            self.storage.delete_dir(self.path)

    # --- Both sides -------------------------------------------------------------------------------------------------

    def pull(
        self, heavy: bool, *, which: str = "folder", wait: bool = True, exact: bool = False, states: bool = True
    ) -> None:
        """Bring this machine's folder up to the image, if there is one: whole files and whole checkpoints.

        Args:
            heavy: what has pieces and does not grow, which may take a while; or else all the rest.
            which: index.
            wait: for another process that does the same here; else leave it to that one.
            exact: also replace what was changed or removed here since.
            states: also what resuming needs, which nobody reads here while the run goes on.

        Raises:
            OSError: the storage does not answer.
            InvalidRun: what it holds is no image.
        """
        if not self.folder.is_dir():
            return  # it was deleted while its cluster was asked
        note = self.folder / f".{which}.{'heavy' if heavy else 'light'}"
        lock = os.open(note.with_name(f"{note.name}.lock"), os.O_RDWR | os.O_CREAT, 0o644)
        try:
            if wait:
                wait_for_lock(lock)
            elif not acquire_lock(lock):
                return
            if heavy:
                for left in self.folder.glob(".bringing.*"):  # by one that died
                    shutil.rmtree(left, ignore_errors=True)
            for _ in range(_READ_ATTEMPTS):
                index = self._read_index(which)
                if index is None:
                    return
                try:
                    self._apply(note, index, heavy, exact, () if states else _STATE_PATHS)
                except FileNotFoundError:  # a newer index names other pieces, and those of this one are gone
                    continue
                return
            raise InvalidRun(f"The image of {self.folder.name} changes faster than it can be read.")
        finally:
            os.close(lock)

    def _apply(self, note: Path, index: Files, heavy: bool, exact: bool, without: tuple[str, ...]) -> None:
        noted = read_json(note)
        before = _files_of(noted)
        if exact:
            facts = noted.get("facts", {})
            before = {path: entry for path, entry in before.items() if facts.get(path) == self._file_signature(path)}
        have, present = dict(before), set[str]()
        try:
            for unit, files in _group_by_unit(index).items():
                grows = bool(_GROWING.fullmatch(unit))
                if heavy != (any(entry.pieces for entry in files.values()) and not grows) or unit in without:
                    continue
                if any(before.get(path) != entry for path, entry in files.items()):
                    os.stat(self.folder)  # it may have been deleted meanwhile, and is not made anew
                    if unit in files:
                        self._fetch_file(unit, before.get(unit), files[unit], grows)
                    else:
                        self._fetch_folder(unit, files)
                have |= files
                present |= files.keys()
            for gone in before.keys() - present:
                if gone not in index:
                    (self.folder / gone).unlink(missing_ok=True)
                del have[gone]
        finally:
            if have != before:
                write_json(note, _to_json(have) | {"facts": {path: self._file_signature(path) for path in have}})

    def _file_signature(self, path: str) -> str:
        """Tells a file that was brought from one that was changed since."""
        try:
            facts = (self.folder / path).stat()
        except OSError:
            return "gone"
        return f"{facts.st_ino} {facts.st_size} {facts.st_mtime_ns}"

    def _fetch_file(self, path: str, before: Entry | None, entry: Entry, grows: bool) -> None:
        target = self.folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        if grows and before and target.exists():
            unchanged = len(before.pieces)
            had = sum(size for _, size in before.pieces) + len(before.tail)
            if entry.pieces[:unchanged] == before.pieces and target.stat().st_size == had:
                more = (
                    b"".join(chunk for piece in entry.pieces[unchanged:] for chunk in self._chunks(piece)) + entry.tail
                )
                if more.startswith(before.tail):
                    with target.open("ab") as file:
                        file.write(more[len(before.tail) :])
                    return
        with replaced(target) as file:
            self._write_to(file, entry)

    def _fetch_folder(self, unit: str, files: Files) -> None:
        """A checkpoint, replaced whole."""
        waiting = self.folder / f".bringing.{secrets.token_hex(4)}"
        waiting.mkdir(parents=True)
        try:
            with ExitStack() as stack:
                contents = {}
                for number, (path, entry) in enumerate(files.items()):
                    with (waiting / str(number)).open("wb") as file:
                        self._write_to(file, entry)
                        size = file.tell()
                    opened = stack.enter_context((waiting / str(number)).open("rb"))
                    if size:
                        mapped = stack.enter_context(mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ))
                        contents[Path(path).name] = [stack.enter_context(memoryview(mapped))]
                    else:
                        contents[Path(path).name] = []
                save.swap_in(self.folder / unit, contents)
        finally:
            shutil.rmtree(waiting, ignore_errors=True)

    def _write_to(self, file: BinaryIO, entry: Entry) -> None:
        for piece in entry.pieces:
            for chunk in self._chunks(piece):
                file.write(chunk)
        file.write(entry.tail)

    # --- The machines' side -----------------------------------------------------------------------------------------

    def pull_all(self) -> None:
        """Everything that a machine needs to begin: just what the image holds, whatever died here before."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for request in ("stop", "kill"):
            (self.folder / request).unlink(missing_ok=True)
        for which in ("given", "folder"):
            for heavy in (False, True):
                self.pull(heavy, which=which, exact=True)
        index = self._read_index("folder") or {}
        for name in _mirrored_files(self.folder):
            if name not in index:  # saved by a process that died before it was stored
                (self.folder / name).unlink(missing_ok=True)
        self.fetch_requests()

    def fetch_requests(self) -> None:
        """Take to the folder what a person asks for."""
        if self._is_stop_requested():
            (self.folder / "stop").touch()

    def push(self, *, large: bool = True) -> None:
        """Bring the image up to this machine's folder.

        Args:
            large: also what does not stand in the index; else what the image has of it stays.
        """
        self._read_stored()
        with ExitStack() as stack:
            files: Files = {}
            image, units = _group_by_unit(self._image), _open_units(self.folder, stack)
            for unit in units:
                cached = self._entries.get(unit.path)
                heavy = not _GROWING.fullmatch(unit.path) and _unit_size(unit) > _INLINE_BYTES
                if cached is None or cached[0] != unit.signature:
                    if heavy and not large:
                        files |= cached[1] if cached else image.get(unit.path, {})
                        continue
                    cached = unit.signature, self._stored_unit(unit, cached[1] if cached else {})
                    self._entries[unit.path] = cached
                files |= cached[1]
        for path in self._entries.keys() - {unit.path for unit in units}:
            if (self.folder / path).suffix or not path.startswith("checkpoints/"):
                del self._entries[path]  # it is gone
            else:
                files |= self._entries[path][1]  # replaced at this moment
        self._write_index("folder", files)
        self._delete_unnamed_pieces(files)

    def _read_stored(self) -> None:
        """Know what is stored already, and delete what a writer stored that died before it wrote an index."""
        if self._number:
            return
        image, from_server = (self._read_index(which) or {} for which in ("folder", "given"))
        used, needed = (
            {name for entry in files.values() for name, _ in entry.pieces} for files in (image, from_server)
        )
        for name in self._stored_pieces() - used - needed:
            self._delete(f"pieces/{name}")
        self._image, self._number = image, 1
        self._used = dict.fromkeys(used, (1, time.monotonic()))

    def _stored_pieces(self) -> set[str]:
        from pyarrow.fs import FileSelector  # noqa: PLC0415

        selector = FileSelector(f"{self.path}/pieces", allow_not_found=True)
        return {info.base_name for info in self.storage.get_file_info(selector) if info.is_file}

    @contextmanager
    def pushing(self) -> Iterator[None]:
        """Push all the time, in the background, and all of it at the end; what a person asks arrives in the folder."""
        done = threading.Event()

        def small() -> None:
            while not done.wait(PAUSE_SECONDS):
                with self._retrying_later():
                    self.fetch_requests()
                    with lock:
                        self.push(large=False)

        def heavy() -> None:
            while not done.wait(PAUSE_SECONDS):
                with self._retrying_later():
                    self._store_large(lock)

        lock = threading.Lock()
        with self._retrying_later():
            self.push()
        threads = [threading.Thread(target=work, daemon=True) for work in (small, heavy)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            done.set()
            for thread in threads:
                thread.join()
            for _ in range(_PUSH_ATTEMPTS):
                with self._retrying_later():
                    self.push()
                    break
                time.sleep(PAUSE_SECONDS)
            else:
                self.push()

    def _store_large(self, lock: threading.Lock) -> None:
        """Store what is large and new, while the small goes on to be pushed; the next index names it."""
        with ExitStack() as stack:
            for unit in _open_units(self.folder, stack):
                cached = self._entries.get(unit.path)
                if (
                    _GROWING.fullmatch(unit.path)
                    or _unit_size(unit) <= _INLINE_BYTES
                    or (cached and cached[0] == unit.signature)
                ):
                    continue
                stored = unit.signature, self._stored_unit(unit, {})
                with lock:
                    self._entries[unit.path] = stored
            with self._lock:
                self._storing.clear()

    @contextmanager
    def _retrying_later(self) -> Iterator[None]:
        """Storage that does not answer may do so later: the run goes on."""
        try:
            yield
        except OSError as error:
            _log.warning("The image of %s cannot be written: %s", self.folder.name, error)

    def _is_stop_requested(self) -> bool:
        from pyarrow.fs import FileType  # noqa: PLC0415

        return bool(self.storage.get_file_info(f"{self.path}/stop").type != FileType.NotFound)

    def _stored_unit(self, unit: Unit, before: Files) -> Files:
        stored = {}
        for path, file in unit.files.items():
            if _GROWING.fullmatch(path):
                stored[path] = self._store_growing_file(file, before.get(path))
            else:
                stored[path] = self._store_file(file)
        return stored

    def _store_file(self, file: BufferedReader) -> Entry:
        """A file that does not grow: in the index where it is small, else one piece."""
        size = os.fstat(file.fileno()).st_size
        if size <= _INLINE_BYTES:
            return Entry((), file.read())
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        file.seek(0)
        self._put_piece(digest, iter(lambda: file.read(_CHUNK_BYTES), b""))
        return Entry(((digest, size),), b"")

    def _store_growing_file(self, file: BufferedReader, before: Entry | None) -> Entry:
        """A file that grows: what is new of it."""
        pieces = list(before.pieces) if before else []
        begin = sum(size for _, size in pieces)
        if os.fstat(file.fileno()).st_size < begin:
            pieces, begin = [], 0  # another file by its name
        file.seek(begin)
        tail = file.read()
        while len(tail) > _TAIL_BYTES:
            part, tail = tail[:_TAIL_BYTES], tail[_TAIL_BYTES:]
            digest = hashlib.sha256(part).hexdigest()
            self._put_piece(digest, [part])
            pieces.append((digest, len(part)))
        return Entry(tuple(pieces), tail)

    def _delete_unnamed_pieces(self, files: Files) -> None:
        """Delete pieces that neither this index nor the one before it names, some time after: readers are about."""
        stored = [entry for _, entries in list(self._entries.values()) for entry in entries.values()]
        with self._lock:
            now = time.monotonic()
            named = {name: (self._number, now) for entry in files.values() for name, _ in entry.pieces}
            self._used |= named
            self._storing -= named.keys()
            in_use = self._storing | {name for entry in stored for name, _ in entry.pieces}
            old = [
                name
                for name, (last, at) in self._used.items()
                if last < self._number - 1 and now - at > _KEEP_SECONDS and name not in in_use
            ]
            for name in old:
                del self._used[name]
        for name in old:
            self._delete(f"pieces/{name}")

    # --- Storage ----------------------------------------------------------------------------------------------------

    def _put_file(self, name: str, content: bytes) -> None:
        self._put_stream(f"{self.path}/{name}", [content])

    def _put_piece(self, digest: str, chunks: Iterable[bytes]) -> None:
        with self._lock:
            self._storing.add(digest)
            if digest in self._used:
                return
        self._put_stream(f"{self.path}/pieces/{digest}", chunks)
        with self._lock:
            self._used[digest] = self._number + 1, time.monotonic()

    def _put_stream(self, path: str, chunks: Iterable[bytes]) -> None:
        """An object appears whole when it is closed; a file does by its renaming."""
        whole = path
        if self.storage.type_name == "local":
            self.storage.create_dir(os.path.dirname(path), recursive=True)
            path = f"{os.path.dirname(path)}/.{secrets.token_hex(8)}"
        with self.storage.open_output_stream(path) as stream:
            for chunk in chunks:
                stream.write(chunk)
        if path != whole:
            self.storage.move(path, whole)

    def _get_file(self, name: str) -> bytes:
        with self.storage.open_input_stream(f"{self.path}/{name}") as stream:
            return bytes(stream.read(_INDEX_BYTES))

    def _chunks(self, piece: tuple[str, int]) -> Iterator[bytes]:
        """The content of a piece; whoever writes it to a file throws that away where an error ends it."""
        name, size = piece
        digest, left = hashlib.sha256(), size
        with self.storage.open_input_stream(f"{self.path}/pieces/{name}") as stream:
            while left and (chunk := bytes(stream.read(min(left, _CHUNK_BYTES)))):
                digest.update(chunk)
                left -= len(chunk)
                yield chunk
        if digest.hexdigest() != name:
            raise InvalidRun(f"A piece of {self.folder.name} in its storage is damaged.")

    def _delete(self, name: str) -> None:
        with suppress(OSError):
            self.storage.delete_file(f"{self.path}/{name}")

    def _write_index(self, which: str, files: Files) -> None:
        self._number += 1
        self._put_file(f"{which}.json", json.dumps(_to_json(files)).encode())

    def _read_index(self, which: str) -> Files | None:
        try:
            files = _files_of(parse_json(self._get_file(f"{which}.json")), strict=True)
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise InvalidRun(f"What the storage holds of {self.folder.name} cannot be read.") from error
        if not all(_belongs_in_index(path, which) for path in files):
            raise InvalidRun(f"What the storage holds of {self.folder.name} cannot be read: files of the other side.")
        return files


def _to_json(files: Files) -> dict[str, Any]:
    return {"format": _FORMAT, "files": {path: entry.to_json() for path, entry in files.items()}}


def _files_of(document: dict[str, Any], *, strict: bool = False) -> Files:
    """The files that an index names; none for what is no index, unless that is to be an error."""
    try:
        if document.get("format", _FORMAT) != _FORMAT:
            raise ValueError("of a later version")
        files = {path: Entry.of_json(value) for path, value in document["files"].items()}
        if not all(_PATH.fullmatch(path) for path in files):
            raise ValueError("a file outside the folder")
        return files
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        if strict:
            raise ValueError("no index") from error
        return {}


def _unit_of(path: str) -> str:
    """What a file changes together with: a checkpoint's folder, or itself."""
    parent = os.path.dirname(path)
    return parent if parent in ("checkpoints/best", "checkpoints/last") or parent.startswith("start/") else path


def _group_by_unit(files: Files) -> dict[str, Files]:
    units: dict[str, Files] = {}
    for path, entry in files.items():
        units.setdefault(_unit_of(path), {})[path] = entry
    return units


def _unit_size(unit: Unit) -> int:
    return sum(os.fstat(file.fileno()).st_size for file in unit.files.values())


def _belongs_in_index(path: str, which: str) -> bool:
    """Whether a file may stand in an index: what the server gives in one, what the machines make in the other."""
    first, *_ = parts = path.split("/")
    if not _PATH.fullmatch(path):
        return False
    return first in _FROM_SERVER if which == "given" else not (first in _FROM_SERVER or any(map(_OWN.fullmatch, parts)))


def _mirrored_files(folder: Path) -> list[str]:
    """Files of a run's folder on one of the machines that belong into its image."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())
    return [name for name in names if _belongs_in_index(name, "folder")]


def _open_units(folder: Path, stack: ExitStack) -> list[Unit]:
    """Everything that the image holds, opened; states first, so that all else is of their moment or a later one."""
    units = []
    for unit in sorted(
        {_unit_of(path) for path in _mirrored_files(folder)}, key=lambda unit: (".pt" not in unit, unit)
    ):
        if (folder / unit).is_dir():
            if "checkpoints/" in unit:
                units += _opened_folder(folder, unit, stack)
            continue
        with suppress(FileNotFoundError):
            file = stack.enter_context((folder / unit).open("rb"))
            facts = os.fstat(file.fileno())
            units.append(Unit(unit, (facts.st_ino, facts.st_size, facts.st_mtime_ns), {unit: file}))
    return units


def _opened_folder(folder: Path, unit: str, stack: ExitStack) -> list[Unit]:
    """A checkpoint at one moment; none where it was replaced meanwhile, and is looked at again the next time."""
    files, signature = {}, []
    with suppress(FileNotFoundError):
        opened = os.open(folder / unit, os.O_RDONLY | os.O_DIRECTORY)
        stack.callback(os.close, opened)
        for name in sorted(os.listdir(opened)):
            file = stack.enter_context(os.fdopen(os.open(name, os.O_RDONLY, dir_fd=opened), "rb"))
            facts = os.fstat(file.fileno())
            files[f"{unit}/{name}"] = file
            signature.append((name, facts.st_ino, facts.st_size, facts.st_mtime_ns))
        if os.stat(folder / unit).st_ino == os.fstat(opened).st_ino:
            return [Unit(unit, tuple(signature), files)]
    return []
