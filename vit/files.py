"""Files that are whole or absent, whatever happens while they are written; and locks that die with their holders."""

import json
import os
import time
from collections.abc import Iterator
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
    """Write a file whole: whoever reads it, also after a kill or a power cut, meets the old content or the new.

    Raises:
        OSError: it could not be written; the old content stays, and nothing half-written with it.
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
    if hasattr(os, "O_DIRECTORY"):  # Windows opens no folders
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)
        os.close(folder)


def beat(path: Path, **facts: object) -> None:
    """Give a sign of life that `silence` reads, with facts for whoever watches; readers meet the old one or the new."""
    text = json.dumps({"boot": _boot(), "at": time.monotonic(), **facts})
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_text(text)
        partial.replace(path)
    except OSError:  # a full disk is no reason to seem dead
        path.unlink(missing_ok=True)
        path.touch()


def silence(path: Path) -> float:
    """How long ago the last sign of life was [s], whatever was done to the clock since.

    By the clock that starts with the machine. The clock of another machine may be wrong: of its signs of life, the age
    is the time since this process first met the latest one, and at the first look that of the file.

    Raises:
        OSError: there was none.
    """
    changed = path.stat().st_mtime
    try:
        pulse = read_object(path)
    except Unreadable:
        pulse = {}
    if is_number(at := pulse.get("at")) and pulse.get("boot") == _boot():
        return time.monotonic() - at
    return _silence_elsewhere(path, changed)


class _Met(NamedTuple):
    """A sign of life of another machine, when this process first met it, and how old it was then [s]."""

    changed: float
    when: float
    age: float


_met: dict[Path, _Met] = {}


def _silence_elsewhere(path: Path, changed: float) -> float:
    now, met = time.monotonic(), _met.get(path)
    if met is None or met.changed != changed:
        newer = met is not None and changed > met.changed  # it came since the last look, whatever its time says
        met = _met[path] = _Met(changed, now, 0.0 if newer else max(time.time() - changed, 0.0))
    return met.age + now - met.when


def _boot() -> str:
    """Tells this start of this machine from all others, where the system says so."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def check_locks() -> None:
    """Refuse what needs locks where the system has none; whoever takes a lock need not call it.

    Raises:
        UserError: what to use instead.
    """
    if fcntl is None:
        raise UserError(
            "Training, saving and downloading need file locks, which this system does not have: use Linux or macOS, "
            "or on Windows its subsystem for Linux (WSL)."
        )


def acquire_lock(file: int) -> bool:
    """Take a lock on an open file that nobody else holds, at once or not at all.

    It is tried thrice, because who asks `is_locked` holds the lock for an instant.

    Raises:
        UserError: this system has no locks.
    """
    check_locks()
    for pause in (0.0, 0.002, 0.004):  # [s]
        time.sleep(pause)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            continue
    return False


def wait_for_lock(file: int, *, shared: bool = False) -> None:
    """Take a lock on an open file, or a folder, as soon as those who hold it let go; they do when they die.

    Args:
        shared: with all who hold it shared as well; a lock of one's own becomes a shared one.

    Raises:
        UserError: this system has no locks.
    """
    check_locks()
    fcntl.flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def release_lock(file: int) -> None:
    """Let go of a lock on an open file, for the processes too that were forked since and hold it with this one."""
    if fcntl is not None:
        fcntl.flock(file, fcntl.LOCK_UN)


def is_locked(path: Path) -> bool:
    """Whether a process holds a lock on the file; the operating system drops it when the process is gone.

    Where the system has no locks nobody holds one.
    """
    if fcntl is None:
        return False
    for flags in (os.O_RDWR, os.O_RDONLY):  # a lock on another user's file needs no right to write it, but on NFS
        with suppress(OSError):
            file = os.open(path, flags | os.O_NONBLOCK)
            break
    else:
        return False
    try:
        return not acquire_lock(file)
    finally:
        os.close(file)
