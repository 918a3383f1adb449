"""The engine of this machine: one supervisor per run, and a queue for devices."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from vit.errors import InvalidRun
from vit.files import acquire_lock, wait_for_lock
from vit.paths import environment_with_package, runs_folder
from vit.training.engines.contract import HERE, Capacity, Engine, Handle, JobStatus, Request, Share
from vit.training.loop.run_folder import forget_attempt, is_alive, record_outcome, write_errors
from vit.training.runs.attempts import KILLED
from vit.training.runs.queue_file import open_queue, read_queue
from vit.training.runs.registry import local_status
from vit.training.runs.scheduler import assign_or_queue, gpu_names

_FORKED = 100  # supervisors of one program, each of which takes a file descriptor in this process


class Local(Engine):
    """This machine, which is never unreachable."""

    name = HERE

    def capacity(self) -> Capacity:
        """Return processors and GPUs; devices held by runs are not free."""
        root, gpus = runs_folder(), gpu_names()
        held = {device for device, run in read_queue(root)["held"].items() if is_alive(root / run)}
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return Capacity(1, Share(0 if "cpu" in held else cpus, cpus), Share(len(set(gpus) - held), len(gpus)))

    def submit(self, folder: Path, request: Request) -> Handle:
        """Start the run's supervisor, which waits for devices."""
        self.submit_all([folder], request)
        return Handle(folder, HERE, folder.name, time.time())

    def submit_all(self, folders: Sequence[Path], request: Request) -> None:
        """Start supervisors, which wait for devices; one program imports what they need, and forks them."""
        with open_queue(runs_folder()) as queue, write_errors(runs_folder()):
            for first in range(0, len(folders), _FORKED):
                _start_supervisors(folders[first : first + _FORKED])
            # Runs enter the queue here, not in their supervisors, so that they start in the order of their launches.
            for folder in () if request.share else folders:
                assign_or_queue(folder.parent, queue, folder.name, request.devices, gpu_names)

    def status(self, handle: Handle) -> JobStatus:
        """Return the run's status from its lock, which the system releases when the last of its processes exits."""
        return local_status(handle.folder, read_queue(handle.folder.parent)["waiting"])

    def request_stop(self, folder: Path) -> None:
        """Create the file that the trainer, or the supervisor of a waiting run, checks for."""
        with write_errors(folder):
            (folder / "stop").touch()

    def kill(self, handle: Handle) -> None:
        """Ask the supervisor through a file; if it does not react, kill all processes that hold the lock."""
        kill(handle.folder)


def _start_supervisors(folders: Sequence[Path]) -> None:
    """Start `python -m vit.training.runs.supervisor RUN LOCK ...` in a new session.

    A run's lock is acquired before its supervisor starts and inherited by it, so that it is never released in between.
    The program forks immediately and ends, so supervisors are no children of this process.

    Raises:
        InvalidRun: a run is locked: a process works on it.
    """
    locks: list[int] = []
    try:
        for folder in folders:
            locks.append(os.open(folder / "alive.lock", os.O_RDWR | os.O_CREAT, 0o644))
            if not acquire_lock(locks[-1]):
                raise InvalidRun("This run is already active.")
            forget_attempt(folder)
            wait_for_lock(locks[-1], shared=True)
        arguments = [word for folder, lock in zip(folders, locks, strict=True) for word in (str(folder), str(lock))]
        with (folders[0] / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "vit.training.runs.supervisor", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment_with_package(),
                pass_fds=locks,
                start_new_session=True,  # Ctrl-C in the server's terminal must not reach it
            )
        process.wait()
    finally:
        for lock in locks:
            os.close(lock)


def kill(folder: Path, patience: float = 5.0) -> None:
    """Kill a run of this machine.

    Args:
        patience: time that its supervisor gets before every process that holds the run's lock is killed [s].
    """
    with write_errors(folder):
        (folder / "kill").touch()
    until = time.monotonic() + patience
    while time.monotonic() < until:
        if not is_alive(folder):
            return
        time.sleep(0.1)
    for pid in lock_holders(folder):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    record_outcome(folder, "stopped", KILLED)


def lock_holders(folder: Path) -> list[int]:
    """Return the processes that have the run's lock open, so a reused pid cannot be among them. Linux only."""
    try:
        lock = (folder / "alive.lock").stat()
    except OSError:
        return []
    holders = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # the process or file has gone since, or belongs to another user
            file = link.stat()
            if (file.st_dev, file.st_ino) == (lock.st_dev, lock.st_ino):
                held = (link.parents[1] / "fdinfo" / link.name).read_text()
                # The run's processes share a lock (READ); `is_alive` probes with an exclusive one (WRITE).
                if re.search(r"^lock:.*FLOCK.*READ", held, re.MULTILINE):
                    holders.add(int(link.parents[1].name))
    return sorted(holders - {os.getpid()})
