"""Atomic file writes, heartbeats, and file locks that the system releases when their process ends."""

import json
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from vit.errors import UserError
from vit.untrusted import Unreadable, is_number, read_object

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def replaced(path: Path) -> Iterator[BinaryIO]:
    """Replace a file atomically: readers see the old content or the new, even after a kill or a power cut.

    Raises:
        OSError: the file could not be written; the old content is intact and no partial file remains.
    """
    temporary = path.with_name(path.name + ".partial")
    try:
        with temporary.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if hasattr(os, "O_DIRECTORY"):  # makes the rename durable; Windows cannot open folders
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


def remove_folder(folder: Path) -> None:
    """Delete a folder. It is renamed to a hidden name first, so that no reader sees a part of it.

    Raises:
        OSError: the folder cannot be renamed, and nothing was deleted.
    """
    hidden = folder.with_name(f".{folder.name}.{secrets.token_hex(4)}.deleted")
    folder.rename(hidden)
    shutil.rmtree(hidden, ignore_errors=True)


def remove(path: Path) -> None:
    """Delete whatever is at a path: a file, a link, or a folder in place of a file. It may be missing.

    Raises:
        OSError: it cannot be deleted.
    """
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def trim_cache(files: Iterable[Path], most_bytes: int) -> None:
    """Delete the files of a cache with the oldest modification times, so that the rest takes at most this size.

    Raises:
        OSError: a file cannot be read or deleted.
    """
    size = 0
    for file in sorted(files, key=lambda file: file.stat().st_mtime, reverse=True):
        size += file.stat().st_size
        if size > most_bytes:
            file.unlink(missing_ok=True)


def write_heartbeat(path: Path, **facts: object) -> None:
    """Write a heartbeat atomically, for `heartbeat_age` to read, with `facts` as additional JSON fields."""
    text = json.dumps({"boot": _boot(), "at": time.monotonic(), **facts})
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text)
        partial.replace(path)
    except OSError:  # on a full disk an empty file with a new modification time still counts as a heartbeat
        path.unlink(missing_ok=True)
        path.touch()


def heartbeat_age(path: Path) -> float:
    """Return the age of the last heartbeat [s], independent of changes to the system clock.

    On the machine that wrote the heartbeat, the age is measured with the monotonic clock. Clocks of other machines may
    be wrong: for their heartbeats, the age is the time since this process first saw the latest one, starting from the
    age of the file at the first call. A heartbeat that is ahead of this machine's monotonic clock is damaged, and
    counts as one of another machine: measured with that clock, its run would never be stalled.

    Raises:
        OSError: there is no heartbeat.
    """
    changed = path.stat().st_mtime
    try:
        pulse = read_object(path)
    except Unreadable:
        pulse = {}
    now = time.monotonic()
    if is_number(at := pulse.get("at"), 0, now) and pulse.get("boot") == _boot():
        return now - at
    return _remote_heartbeat_age(path, changed)


class _RemoteHeartbeat(NamedTuple):
    """A heartbeat written by another machine.

    Attributes:
        changed: modification time of the file [s since the epoch].
        first_seen: when this process first saw it, by the monotonic clock [s].
        age: its age at that time [s].
    """

    changed: float
    first_seen: float
    age: float


_remote_heartbeats: dict[Path, _RemoteHeartbeat] = {}


def _remote_heartbeat_age(path: Path, changed: float) -> float:
    now, seen = time.monotonic(), _remote_heartbeats.get(path)
    if seen is None or seen.changed != changed:
        newer = seen is not None and changed > seen.changed  # written since the last call, whatever its clock says
        seen = _remote_heartbeats[path] = _RemoteHeartbeat(
            changed, now, 0.0 if newer else max(time.time() - changed, 0.0)
        )
    return seen.age + now - seen.first_seen


def _boot() -> str:
    """Return an id that is unique to this boot of this machine; "" if the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def check_locks() -> None:
    """Check that the system has file locks. Functions that acquire a lock call it themselves.

    Raises:
        UserError: the system has none; the message names alternatives.
    """
    if fcntl is None:
        raise UserError(
            "Training, saving and downloading need file locks, which this system does not have: use Linux or macOS, "
            "or on Windows its subsystem for Linux (WSL)."
        )


def acquire_lock(file: int) -> bool:
    """Try to acquire an exclusive lock on an open file without waiting.

    Raises:
        UserError: this system has no locks.
    """
    check_locks()
    # Three attempts, because `is_locked` in another process holds the lock for an instant.
    for pause in (0.0, 0.002, 0.004):  # [s]
        time.sleep(pause)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            continue
    return False


def wait_for_lock(file: int, *, shared: bool = False) -> None:
    """Block until a lock on an open file or folder is acquired. Locks of processes that end are released.

    Args:
        shared: acquire a shared lock; an exclusive lock that this file already holds is downgraded.

    Raises:
        UserError: this system has no locks.
    """
    check_locks()
    fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def release_lock(file: int) -> None:
    """Release a lock on an open file, including for forked processes that inherited it."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_UN)


def is_locked(path: Path) -> bool:
    """Whether a process holds a lock on the file. Always False on systems without locks."""
    if fcntl is None:
        return False
    for flags in (os.O_RDWR, os.O_RDONLY):  # NFS needs write access for a lock; elsewhere read access is enough
        with suppress(OSError):
            file = os.open(path, flags | os.O_NONBLOCK)
            break
    else:
        return False
    try:
        return not acquire_lock(file)
    finally:
        os.close(file)
