"""The process that looks after one run: waits for its devices, starts the trainer, cleans up, says how it ended.

    python -m vit.runs.supervisor RUN LOCK

Started by `vit.runs`, with the run's lock as an open file. It imports no torch, so that waiting costs little, and it
belongs to no server. All output goes to the run's log.txt: a file, because a pipe that nobody reads stops the writer.
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

from vit.out_of_memory import die_first
from vit.runs.attempts import CANCELLED, train_to_the_end
from vit.runs.registry import ANY_GPU
from vit.runs.scheduler import assign_devices, gpu_names, leave_queue
from vit.training.run_folder import SUPERVISED, read_json, record_outcome

if __name__ == "__main__" and os.fork():
    os._exit(0)  # the launcher waits for this process alone; the rest of the file runs in its child

_POLL_SECONDS = 0.5  # [s]
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, from linux/prctl.h


def supervise(folder: Path, lock: int) -> None:
    """Look after the run in `folder` until it has ended.

    Args:
        lock: file descriptor that holds the run's lock; the trainer inherits it.
    """
    signal.signal(signal.SIGTERM, lambda *_: (folder / "stop").touch())
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with suppress(OSError, AttributeError):  # not on Linux: orphans of the trainer escape
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
    """Wait for the run's turn; None if it is called off before."""
    announced = False
    if not read_json(folder / "about.json").get("devices"):
        record_outcome(folder, "failed", "Its about.json names no device, or cannot be read. Start another run.")
        return None
    while True:
        for request in ("stop", "kill"):
            if (folder / request).exists():
                record_outcome(folder, "stopped", CANCELLED)
                return None
        if (devices := assign_devices(folder, gpu_names)) is not None:
            return devices
        if ANY_GPU in read_json(folder / "about.json").get("devices", ()) and not gpu_names():
            record_outcome(folder, "failed", "There is no GPU on this machine. Resume the run on the CPU.")
            return None
        if not announced:
            _log_line("Waiting for a device.")
            announced = True
        time.sleep(_POLL_SECONDS)


def command(folder: Path, devices: Sequence[str]) -> list[str]:
    """What starts the trainer; torchrun where there are several processes."""
    python = [sys.executable, "-m"]
    several = ["torch.distributed.run", "--standalone", f"--nproc-per-node={len(devices)}", "-m"]
    return [*python, *(several if len(devices) > 1 else []), "vit", "train", "--resume", str(folder)]


def environment(devices: Sequence[str]) -> dict[str, str]:
    """The environment of a trainer, in which it sees its own devices only."""
    gpus = [device.removeprefix("cuda:") for device in devices if device.startswith("cuda:")]
    hidden = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
    return dict(os.environ) | {"PYTHONUNBUFFERED": "1", SUPERVISED: "1"} | hidden


def _train(folder: Path, lock: int, devices: Sequence[str]) -> None:
    """Run the trainer to its end, and again where it asks for that."""
    train_to_the_end(folder, lambda: _train_once(folder, lock, devices))


def _train_once(folder: Path, lock: int, devices: Sequence[str]) -> int | None:
    """Run the trainer, kill what it leaves, and return its exit status; None where a person killed it."""
    trainer = subprocess.Popen(
        command(folder, devices),
        stdin=subprocess.DEVNULL,
        env=environment(devices),
        pass_fds=[lock],
        start_new_session=True,
    )
    die_first(trainer.pid)
    killed = False
    while trainer.poll() is None:
        if (folder / "kill").exists():
            killed = True
            _kill_all(trainer.pid)
        time.sleep(_POLL_SECONDS)
    _kill_all(trainer.pid)  # torchrun's ranks and data loaders outlive it when it is killed
    return None if killed else trainer.returncode


def _kill_all(trainer: int) -> None:
    """Kill every process below this one, and wait until they are gone."""
    while processes := _descendants():
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        time.sleep(0.05)
        psutil.wait_procs([process for process in processes if process.pid != trainer], timeout=0)  # Popen waits for it
    if not Path("/proc").exists():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(trainer, signal.SIGKILL)


def _descendants() -> list[psutil.Process]:
    """Living processes below this one; on Linux also orphans, which are handed to this process, the subreaper."""
    processes = []
    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            if process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


def _log_line(message: str) -> None:
    print(message, flush=True)


if __name__ == "__main__":
    supervise(Path(sys.argv[1]), int(sys.argv[2]))
