"""The files of a run's folder that the trainer and those who watch it agree on."""

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

from vit.errors import InvalidRun
from vit.files import acquire_lock, beat, is_locked, release_lock, replaced, wait_for_lock
from vit.untrusted import DOCUMENT_BYTES, Unreadable, is_whole, read_object

FORMAT = 2  # of what this version writes, in environment.json
ENGINE = "VIT_ENGINE"  # in the environment of a trainer that a cluster's engine started: the engine's name
_REMEMBERED_BYTES = 64 << 10  # of a document that is remembered, at most
BASE = "base.json"  # what follows from the checkpoint that a run starts from
START = "start"  # a copy of that by its name, for machines that see no checkpoints of the server
PRUNED = "pruned.json"  # why its search asked a run to stop; it reads as pruned where it then did
STATES = ("state.pt", "state.previous.pt")  # in checkpoints/, the newest first
RUN_ID = re.compile(r"[a-z0-9-]{1,64}")  # of the folder's name
MAX_NAME = 60  # characters
MOST_EPOCHS = 10_000
RECORD_STEPS = 20  # steps between two records; each costs one wait for the device
_BEAT_SECONDS = 2  # [s] between two signs of life


def slug(name: str) -> str:
    """A name as a file, or a checkpoint, may have it; "" where nothing is left of it.

    >>> slug("Zoo: lr 0.001 (again)")
    'zoo-lr-0-001-again'
    """
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def new_id(name: str) -> str:
    """The name of a new run's folder: time, name and four random digits."""
    short = slug(name)[:32].strip("-") or "run"
    return f"{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{short}-{secrets.token_hex(2)}"


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty if there is none that can be read."""
    try:
        return read_document(path)
    except (FileNotFoundError, Unreadable):
        return {}


def read_document(path: Path) -> dict[str, Any]:
    """A file's JSON object, parsed once for each version of a small file.

    Raises:
        FileNotFoundError: there is no such file.
        Unreadable: it cannot be read, or holds something else.
    """
    try:
        facts = path.stat()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unreadable(f"{path.name} cannot be read: {error.strerror}.") from error
    if facts.st_size > _REMEMBERED_BYTES or not stat.S_ISREG(facts.st_mode):
        return read_object(path, DOCUMENT_BYTES)
    return dict(_parsed(path, facts.st_ino, facts.st_mtime_ns, facts.st_size))


@lru_cache(2048)
def _parsed(path: Path, inode: int, changed: int, size: int) -> dict[str, Any]:
    return read_object(path, _REMEMBERED_BYTES)


def later_format(folder: Path) -> str:
    """Why a run of a later version cannot be read; "" for those that can, which may name no format."""
    written = read_json(folder / "environment.json").get("format", FORMAT)
    if not is_whole(written) or written <= FORMAT:
        return ""
    supported = f"this one reads formats up to {FORMAT}"
    return f"This run was written by a later version, in format {written}; {supported}. Update the app."


# --- Alive ----------------------------------------------------------------------------------------------------------


def is_alive(folder: Path) -> bool:
    """Whether any process of the run exists."""
    return is_locked(folder / "alive.lock")


@contextmanager
def hold_run(folder: Path) -> Iterator[None]:
    """Count this process, and those that it forks, to the run; the first one begins an attempt.

    Where a cluster's engine began it, requests stay: a person may have asked a waiting run to stop.
    """
    file = os.open(folder / "alive.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if acquire_lock(file) and ENGINE not in os.environ:
            forget_attempt(folder)
        wait_for_lock(file, shared=True)
        yield
    finally:
        os.close(file)


def occupy(folder: Path, locks: list[int]) -> None:
    """Be the one process that counts to a run and writes it, without a supervisor; begins an attempt.

    Args:
        locks: gets the open files that hold the locks, for `let_go`.

    Raises:
        InvalidRun: another process writes it.
    """
    for name in ("writer.lock", "alive.lock"):
        locks.append(os.open(folder / name, os.O_RDWR | os.O_CREAT, 0o644))
        if not acquire_lock(locks[-1]):
            raise InvalidRun(f"Another process writes the run in {folder}. Choose another folder.")
    wait_for_lock(locks[-1], shared=True)
    forget_attempt(folder)


class Heartbeat:
    """Writes the sign of life of a run, at most every two seconds while it does the same."""

    def __init__(self, folder: Path):
        self._path, self._doing, self._written = folder / "heartbeat", "", 0.0

    def beat(self, step: int, doing: str = "training", share: float | None = None) -> None:
        """Say what the run does, and the share of that which is done, 0 to 1."""
        if doing != self._doing or time.monotonic() - self._written > _BEAT_SECONDS:
            beat(self._path, doing=doing, share=share, step=step)
            self._doing, self._written = doing, time.monotonic()


def let_go(locks: list[int]) -> None:
    """Count to a run no more, nor do processes that were forked since and hold its locks with this one."""
    while locks:
        file = locks.pop()
        with suppress(OSError):
            release_lock(file)
        with suppress(OSError):
            os.close(file)


def forget_attempt(folder: Path) -> None:
    """Remove what was asked of the attempt before, and what it said; by whoever alone holds the run's lock."""
    for leftover in ("stop", "kill", PRUNED, "outcome.json", "heartbeat"):
        (folder / leftover).unlink(missing_ok=True)


def check_resumable(folder: Path) -> None:
    """Refuse to continue what has learnt something and lost its state: it would begin again, and overwrite that.

    Raises:
        InvalidRun: how a new run can start from what it learnt, or that a later version wrote it.
    """
    if later := later_format(folder):
        raise InvalidRun(later)
    if not resumable(folder):
        raise InvalidRun(f"The saved state of {folder.name} is gone, so it cannot be continued. {begin_anew(folder)}")


def resumable(folder: Path) -> bool:
    """Whether a state is there to continue from, or nothing that could be lost; whether it is sound is seen later."""
    return learnt(folder) is None or any(os.path.exists(folder / "checkpoints" / name) for name in STATES)


def learnt(folder: Path) -> Path | None:
    """The last checkpoint of a run, or its best one; None before there is any."""
    checkpoints = [folder / "checkpoints" / name for name in ("last", "best")]
    return next((path for path in checkpoints if os.path.isdir(path)), None)


def begin_anew(folder: Path) -> str:
    """How a new run starts from what a run has learnt that cannot be continued."""
    weights = learnt(folder)
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
    """Record how an attempt ended; the first word counts."""
    if not (folder / "outcome.json").exists():
        write_json(folder / "outcome.json", {"outcome": outcome, "reason": reason, "t": time.time()})


def write_json(path: Path, values: dict[str, Any]) -> None:
    """Replace a file, whole, by a JSON object.

    Raises:
        OSError: it could not be written; the old content stays.
    """
    with replaced(path) as file:
        file.write(json.dumps(values, indent=2).encode() + b"\n")


@contextmanager
def changing(folder: Path) -> Iterator[None]:
    """Say in one sentence that a run's folder, another user's perhaps, cannot be changed.

    Raises:
        InvalidRun: in place of any OSError.
    """
    try:
        yield
    except OSError as error:
        raise InvalidRun(f"The folder of {folder.name} cannot be changed: {error.strerror}.") from error


def is_full(error: BaseException | None) -> bool:
    """Whether a full disk is behind an error; torch.save hides that in an error of its own."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return True
        error = error.__cause__ or error.__context__
    return False


SUPERVISED = "VIT_SUPERVISED"  # in the environment of a trainer on this machine whose end a supervisor tells
AGAIN = "again.json"  # written by a trainer of several processes whose GPU memory ran out, see `vit.training.train`
