"""The process that supervises one run: waits for devices, starts the trainer, cleans up, records the outcome.

    python -m vit.training.runs.supervisor RUN LOCK [RUN LOCK ...]

The program forks one supervisor for each run and ends. `vit.training.engines.local` starts it, with the runs' locks as
inherited file descriptors. A supervisor does not import torch and shares the memory of its modules with the others,
so waiting is cheap, and it is not a child of any server. All output goes to the run's log.txt: to a file, because a
writer blocks when nobody reads its pipe.
"""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import psutil

from vit.devices import visibility
from vit.out_of_memory import prefer_for_oom_kill
from vit.training.loop.run_folder import SUPERVISED, read_json, record_outcome
from vit.training.runs.attempts import CANCELLED, train_until_done
from vit.training.runs.queue_file import read_queue
from vit.training.runs.registry import ANY_GPU
from vit.training.runs.scheduler import assign_devices, gpu_names, leave_queue

_POLL_SECONDS = 0.5  # [s]
_MOST_POLLS = 40  # between two attempts of a waiting run to get its devices
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, from linux/prctl.h


def supervise(folder: Path, lock: int) -> None:
    """Supervise the run in `folder` until it has ended.

    Args:
        lock: file descriptor that holds the run's lock; the trainer inherits it.
    """
    signal.signal(signal.SIGTERM, lambda *_: (folder / "stop").touch())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with suppress(OSError, AttributeError):  # elsewhere than on Linux, orphans of the trainer are not killed
        ctypes.CDLL(None).prctl(_SUBREAPER, 1)
    try:
        devices = _wait_for_turn(folder)
        if devices:
            _log_line(f"Training on {', '.join(devices)}.")
            _train(folder, lock, devices)
    except BaseException as error:
        record_outcome(folder, "failed", f"The supervisor failed: {error}. The log holds the traceback.")
        raise
    finally:
        leave_queue(folder)


def _wait_for_turn(folder: Path) -> tuple[str, ...] | None:
    """Wait until the run gets its devices; None if it is cancelled before.

    The further back a run waits, the less often it asks, so that hundreds of them do not keep the queue locked.
    """
    if not read_json(folder / "about.json").get("devices"):
        record_outcome(folder, "failed", "Its about.json names no device, or cannot be read. Start another run.")
        return None
    polls = next_attempt = 0
    while True:
        for request in ("stop", "kill"):
            if (folder / request).exists():
                record_outcome(folder, "stopped", CANCELLED)
                return None
        if polls == next_attempt:
            if (devices := assign_devices(folder, gpu_names)) is not None:
                return devices
            if ANY_GPU in read_json(folder / "about.json").get("devices", ()) and not gpu_names():
                record_outcome(folder, "failed", "There is no GPU on this machine. Resume the run on the CPU.")
                return None
            if polls == 0:
                _log_line("Waiting for a device.")
            waiting = read_queue(folder.parent)["waiting"]
            place = waiting.index(folder.name) + 1 if folder.name in waiting else 1
            next_attempt = polls + min(place, _MOST_POLLS)
        polls += 1
        time.sleep(_POLL_SECONDS)


def command(folder: Path, devices: Sequence[str]) -> list[str]:
    """Return the command that starts the trainer, with torchrun for more than one process."""
    python = [sys.executable, "-m"]
    several = ["torch.distributed.run", "--standalone", f"--nproc-per-node={len(devices)}", "-m"]
    return [*python, *(several if len(devices) > 1 else []), "vit", "train", "--resume", str(folder)]


def environment(devices: Sequence[str]) -> dict[str, str]:
    """Return the trainer's environment, in which only its own GPUs are visible."""
    return dict(os.environ) | {"PYTHONUNBUFFERED": "1", SUPERVISED: "1"} | visibility(devices)


def _train(folder: Path, lock: int, devices: Sequence[str]) -> None:
    """Run the trainer until it ends, with the restarts that it asks for."""
    train_until_done(folder, lambda: _train_once(folder, lock, devices))


def _train_once(folder: Path, lock: int, devices: Sequence[str]) -> int | None:
    """Run the trainer, kill what it leaves behind, and return its exit status; None if a person killed it."""
    trainer = subprocess.Popen(
        command(folder, devices),
        stdin=subprocess.DEVNULL,
        env=environment(devices),
        pass_fds=[lock],
        start_new_session=True,
    )
    prefer_for_oom_kill(trainer.pid)
    killed = False
    while trainer.poll() is None:
        if (folder / "kill").exists():
            killed = True
            _kill_all(trainer.pid)
        time.sleep(_POLL_SECONDS)
    # When torchrun is killed, its ranks and their data loaders survive it.
    _kill_all(trainer.pid)
    return None if killed else trainer.returncode


def _kill_all(trainer: int) -> None:
    """Kill every process below this one, and wait until they are gone."""
    while processes := _descendants():
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.05)
        # The trainer itself is reaped by Popen, which needs its exit status.
        psutil.wait_procs([process for process in processes if process.pid != trainer], timeout=0)
    if not Path("/proc").exists():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(trainer, signal.SIGKILL)


def _descendants() -> list[psutil.Process]:
    """Return the running descendants of this process; on Linux also orphans, which a subreaper inherits."""
    processes = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


def _log_line(message: str) -> None:
    print(message, flush=True)


def _fork(folder: Path, lock: int, others: Sequence[int]) -> None:
    """Supervise a run in a child process, with the run's log as its output; returns in this process.

    Args:
        others: file descriptors of other runs' locks, which the child must not hold.
    """
    if os.fork():
        return
    os.setsid()
    for other in others:
        os.close(other)
    log = os.open(folder / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.dup2(log, sys.stdout.fileno())
    os.dup2(log, sys.stderr.fileno())
    os.close(log)
    supervise(folder, lock)
    sys.exit()


if __name__ == "__main__":
    runs = dict(zip(map(int, sys.argv[2::2]), map(Path, sys.argv[1::2]), strict=True))  # by lock
    for lock, folder in runs.items():
        _fork(folder, lock, [other for other in runs if other != lock])
