"""Files of a run's folder, shared by the trainer and the processes that watch it."""

import errno
import json
import os
import re
import secrets
import shlex
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from vit.errors import InvalidConfig, InvalidRun
from vit.files import acquire_lock, is_locked, release_lock, remove, replaced, wait_for_lock, write_heartbeat
from vit.untrusted import DOCUMENT_BYTES, Unreadable, is_whole, read_object

FORMAT = 2  # format version that this program writes, in environment.json
ENGINE = "VIT_ENGINE"  # environment variable of trainers that a cluster started: name of the engine
_REMEMBERED_BYTES = 64 << 10  # size limit of documents in the cache
BASE = "base.json"  # properties of the checkpoint that a run starts from
START = "start"  # folder with a copy of that checkpoint, for machines without access to the server's checkpoints
PRUNED = "pruned.json"  # why the search stopped the run early; its status is then "pruned"
STATES = ("state.pt", "state.previous.pt")  # in checkpoints/, latest first
RUN_ID = re.compile(r"[a-z0-9-]{1,64}")  # valid folder names
MAX_NAME = 60  # characters
MOST_EPOCHS = 10_000
RECORD_STEPS = 20  # steps between two records; each record synchronises with the device
_HEARTBEAT_SECONDS = 2  # [s] between two heartbeats


def slug(name: str) -> str:
    """Convert a name to one that is valid for a file or checkpoint; "" if no character is left.

    >>> slug("Zoo: lr 0.001 (again)")
    'zoo-lr-0-001-again'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def new_id(name: str) -> str:
    """Return a new run's id, the name of its folder: time, name and four random hex digits."""
    short = slug(name)[:32].strip("-") or "run"
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{short}-{secrets.token_hex(2)}"


def check_folder_name(folder: Path) -> None:
    """Check that page Runs would list a run in this folder.

    Raises:
        InvalidConfig: its name is none of a run.
    """
    if not RUN_ID.fullmatch(folder.name):
        raise InvalidConfig(
            "folder: page Runs lists folders whose names are small letters, digits and dashes, at most 64; "
            f"{folder.name!r} is none."
        )


def write_about(folder: Path, name: str) -> None:
    """Write the name of a run that no engine started, and the time of its start; an existing file is kept."""
    if not (folder / "about.json").exists():
        about: dict[str, Any] = {"name": " ".join(name.split())[:MAX_NAME], "notes": "", "owner": "", "search": ""}
        write_json(folder / "about.json", about | {"created": time.time(), "devices": []})


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; {} if it is missing or unreadable."""
    try:
        return read_document(path)
    except (FileNotFoundError, Unreadable):
        return {}


def read_document(path: Path) -> dict[str, Any]:
    """Read a JSON object from a file; small files are cached until they change.

    Raises:
        FileNotFoundError: there is no such file.
        Unreadable: it cannot be read, or holds no JSON object.
    """
    try:
        facts = path.stat()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unreadable(f"{path.name} cannot be read: {error.strerror}.") from error
    if facts.st_size > _REMEMBERED_BYTES or not stat.S_ISREG(facts.st_mode):
        return read_object(path, DOCUMENT_BYTES)
    return dict(_read_cached(path, facts.st_ino, facts.st_mtime_ns, facts.st_size))


@lru_cache(2048)
def _read_cached(path: Path, inode: int, changed: int, size: int) -> dict[str, Any]:
    return read_object(path, _REMEMBERED_BYTES)


def search_of(about: dict[str, Any]) -> str:
    """Return the id of a run's search from its about.json; "" for none. Earlier versions wrote it as `sweep`."""
    search = about.get("search") or about.get("sweep")
    return search if isinstance(search, str) else ""


def later_format(folder: Path) -> str:
    """Return why a run of a later version cannot be read; "" if it can, also without a format."""
    written = read_json(folder / "environment.json").get("format", FORMAT)
    if not is_whole(written) or written <= FORMAT:
        return ""
    supported = f"this one reads formats up to {FORMAT}"
    return f"This run was written by a later version, in format {written}; {supported}. Update the app."


# --- Locks ----------------------------------------------------------------------------------------------------------


def is_alive(folder: Path) -> bool:
    """Whether any process of the run exists."""
    return is_locked(folder / "alive.lock")


@contextmanager
def hold_run(folder: Path) -> Iterator[None]:
    """Hold the run's lock, also in forked processes; the first process to do so starts an attempt.

    If a cluster's engine started it, stop requests are kept: they may have been made while the run waited.
    """
    file = os.open(folder / "alive.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if acquire_lock(file) and ENGINE not in os.environ:
            forget_attempt(folder)
        wait_for_lock(file, shared=True)
        yield
    finally:
        os.close(file)


def lock_run(folder: Path, locks: list[int]) -> None:
    """Lock a run exclusively, as a writer without a supervisor, and start an attempt.

    Args:
        locks: receives the file descriptors of the locks, for `unlock_run`.

    Raises:
        InvalidRun: another process holds the locks.
    """
    for name in ("writer.lock", "alive.lock"):
        locks.append(os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644))
        if not acquire_lock(locks[-1]):
            raise InvalidRun(f"Another process writes the run in {folder}. Choose another folder.")
    wait_for_lock(locks[-1], shared=True)
    forget_attempt(folder)


class Heartbeat:
    """Writes a run's heartbeat, at most every two seconds unless its activity changes."""

    def __init__(self, folder: Path):
        self._path, self._doing, self._written = folder / "heartbeat", "", 0.0

    def write(self, step: int, doing: str = "training", share: float | None = None) -> None:
        """Write what the run does, and the share done, 0 to 1."""
        if doing != self._doing or time.monotonic() - self._written > _HEARTBEAT_SECONDS:
            write_heartbeat(self._path, doing=doing, share=share, step=step)
            self._doing, self._written = doing, time.monotonic()


def unlock_run(locks: list[int]) -> None:
    """Release the locks of `lock_run`, also for forked processes, which share them."""
    while locks:
        file = locks.pop()
        with suppress(OSError):
            release_lock(file)
        with suppress(OSError):
            os.close(file)


def forget_attempt(folder: Path) -> None:
    """Remove requests to the previous attempt, and its outcome; the caller holds the run's lock exclusively."""
    for leftover in ("stop", "kill", PRUNED, "outcome.json", "heartbeat"):
        remove(folder / leftover)


def check_resumable(folder: Path) -> None:
    """Reject a run with checkpoints but no saved state: it would start from scratch and overwrite them.

    Raises:
        InvalidRun: the message says how to start a new run from the checkpoints; or a later version wrote the run.
    """
    if later := later_format(folder):
        raise InvalidRun(later)
    if not resumable(folder):
        raise InvalidRun(f"The saved state of {folder.name} is gone, so it cannot be continued. {restart_hint(folder)}")


def resumable(folder: Path) -> bool:
    """Whether a run has a state to resume from, or no checkpoint to lose; the state may still be damaged."""
    return latest_checkpoint(folder) is None or any(os.path.exists(folder / "checkpoints" / name) for name in STATES)


def latest_checkpoint(folder: Path) -> Path | None:
    """Return a run's last checkpoint, or else its best one; None without any."""
    checkpoints = [folder / "checkpoints" / name for name in ("last", "best")]
    return next((path for path in checkpoints if os.path.isdir(path)), None)


def restart_hint(folder: Path) -> str:
    """Return a sentence on how to start a new run from the checkpoint of one that cannot be resumed."""
    weights = latest_checkpoint(folder)
    if weights is None:
        return "Start another run."
    cwd = Path.cwd()
    config, weights = (
        path.relative_to(cwd) if path.is_relative_to(cwd) else path
        for path in (folder.absolute() / "config.json", weights.absolute())
    )
    command = shlex.join(["python", "-m", "vit", "train", "--config", str(config), "--set", f"init_from={weights}"])
    return f"A new run can start from its last weights: *Begin anew* on page Runs, or `{command}`"


def record_outcome(folder: Path, outcome: Literal["finished", "stopped", "failed"], reason: str = "") -> None:
    """Record how an attempt ended, unless an outcome is recorded already."""
    if not (folder / "outcome.json").exists():
        write_json(folder / "outcome.json", {"outcome": outcome, "reason": reason, "t": time.time()})


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Write a JSON object to a file atomically.

    Raises:
        OSError: it could not be written; the old content is intact.
    """
    with replaced(path) as file:
        file.write(json.dumps(values, indent=2).encode() + b"\n")


@contextmanager
def write_errors(folder: Path) -> Iterator[None]:
    """Convert an OSError to a one-sentence error; the folder may belong to another user.

    Raises:
        InvalidRun: in place of any OSError.
    """
    try:
        yield
    except OSError as error:
        raise InvalidRun(f"The folder of {folder.name} cannot be changed: {error.strerror}.") from error


def is_full(error: BaseException | None) -> bool:
    """Whether a full disk caused an error; torch.save wraps the OSError in an error of its own."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False


SUPERVISED = "VIT_SUPERVISED"  # environment variable of trainers with a supervisor, which reports how they end
AGAIN = "again.json"  # a trainer with several processes ran out of GPU memory and asks to be restarted, see `train`
