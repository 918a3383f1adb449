"""This machine: a supervisor for each run, and a queue for its devices."""

import os
import re
import signal
import time
from contextlib import suppress
from pathlib import Path

from vit.paths import runs_folder
from vit.runs.attempts import KILLED
from vit.runs.detached import start_detached
from vit.runs.engines.contract import HERE, Capacity, Engine, Handle, Look, Request, Share
from vit.runs.queue_file import open_queue, read_queue
from vit.runs.registry import look_local
from vit.runs.scheduler import gpu_names, grant
from vit.training.run_folder import changing, is_alive, record_outcome


class Local(Engine):
    """This machine; it always answers."""

    name = HERE

    def capacity(self) -> Capacity:
        """Processors and GPUs; those that a run has are not free."""
        root, gpus = runs_folder(), gpu_names()
        held = {device for device, run in read_queue(root)["held"].items() if is_alive(root / run)}
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return Capacity(1, Share(0 if "cpu" in held else cpus, cpus), Share(len(set(gpus) - held), len(gpus)))

    def submit(self, folder: Path, request: Request) -> Handle:
        """Start the run's supervisor, which waits for its devices."""
        with open_queue(folder.parent) as line, changing(folder):
            start_detached("vit.runs.supervisor", folder, "This run is going on already.")
            if not request.share:  # now, so that the order of the launches counts
                grant(folder.parent, line, folder.name, request.devices, gpu_names)
        return Handle(folder, HERE, folder.name, time.time())

    def look(self, handle: Handle) -> Look:
        """The run's lock answers, which the operating system drops when the last of its processes is gone."""
        return look_local(handle.folder, read_queue(handle.folder.parent)["waiting"])

    def ask_to_stop(self, folder: Path) -> None:
        """The trainer, or the supervisor of a waiting run, sees the file."""
        with changing(folder):
            (folder / "stop").touch()

    def kill(self, handle: Handle) -> None:
        """The supervisor sees the file; where it does not, all processes that hold the run's lock are killed."""
        kill(handle.folder)


def kill(folder: Path, patience: float = 5.0) -> None:
    """End a run of this machine.

    Args:
        patience: time that its supervisor has for it before all processes that hold its lock are killed [s].
    """
    with changing(folder):
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
    """Processes that hold the run's lock: found by the lock, so a reused id cannot be among them. Linux only."""
    try:
        lock = (folder / "alive.lock").stat()
    except OSError:
        return []
    holders = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # a process or a file that is gone by now, or that is another user's
            file = link.stat()
            if (file.st_dev, file.st_ino) == (lock.st_dev, lock.st_ino):
                held = (link.parents[1] / "fdinfo" / link.name).read_text()
                if re.search(r"^lock:.*FLOCK.*READ", held, re.MULTILINE):  # who only asks holds WRITE for an instant
                    holders.add(int(link.parents[1].name))
    return sorted(holders - {os.getpid()})
