"""The engine of this machine: one supervisor per run, and a queue for devices."""

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

from vit.paths import runs_folder
from vit.training.engines.contract import HERE, Capacity, Engine, Handle, JobStatus, Request, Share
from vit.training.loop.run_folder import is_alive, record_outcome, write_errors
from vit.training.runs.attempts import KILLED
from vit.training.runs.detached import start_detached
from vit.training.runs.queue_file import open_queue, read_queue
from vit.training.runs.registry import local_status
from vit.training.runs.scheduler import assign_or_queue, gpu_names


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
        with open_queue(folder.parent) as queue, write_errors(folder):
            start_detached("vit.training.runs.supervisor", folder, "This run is already active.")
            # The run enters the queue here, not in its supervisor, so that runs start in the order of their launches.
            if not request.share:
                assign_or_queue(folder.parent, queue, folder.name, request.devices, gpu_names)
        return Handle(folder, HERE, folder.name, time.time())

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
