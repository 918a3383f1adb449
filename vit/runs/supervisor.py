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

from vit.runs.registry import ANY_GPU
from vit.runs.scheduler import gpu_names, leave_queue, take_devices
from vit.training.run_folder import AGAIN, read_json, record_outcome

if __name__ == "__main__" and os.fork():
    os._exit(0)  # the launcher waits for this process alone; the rest of the file runs in its child

_POLL = 0.5  # [s]
_SUBREAPER = 36  # PR_SET_CHILD_SUBREAPER, from linux/prctl.h
KILLED = "Killed on request. Resume continues from the last saved state."


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
        devices = _wait(folder)
        if devices:
            _say(f"Training on {', '.join(devices)}.")
            _train(folder, lock, devices)
    except BaseException as error:
        record_outcome(folder, "failed", f"The supervisor failed: {error}. The log holds the traceback.")
        raise
    finally:
        leave_queue(folder)


def _wait(folder: Path) -> tuple[str, ...] | None:
    """Wait for the run's turn; None if it is called off before."""
    said = False
    if not read_json(folder / "about.json").get("devices"):
        record_outcome(folder, "failed", "Its about.json names no device, or cannot be read. Start another run.")
        return None
    while True:
        for request in ("stop", "kill"):
            if (folder / request).exists():
                record_outcome(folder, "stopped", "Cancelled while it waited for its turn.")
                return None
        if (devices := take_devices(folder, gpu_names)) is not None:
            return devices
        if ANY_GPU in read_json(folder / "about.json").get("devices", ()) and not gpu_names():
            record_outcome(folder, "failed", "There is no GPU on this machine. Resume the run on the CPU.")
            return None
        if not said:
            _say("Waiting for a device.")
            said = True
        time.sleep(_POLL)


def command(folder: Path, devices: Sequence[str]) -> list[str]:
    """What starts the trainer; torchrun where there are several processes."""
    python = [sys.executable, "-m"]
    several = ["torch.distributed.run", "--standalone", f"--nproc-per-node={len(devices)}", "-m"]
    return [*python, *(several if len(devices) > 1 else []), "vit", "train", "--resume", str(folder)]


def environment(devices: Sequence[str]) -> dict[str, str]:
    """For the trainer, to see its own devices only."""
    gpus = [device.removeprefix("cuda:") for device in devices if device.startswith("cuda:")]
    hidden = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
    return dict(os.environ) | {"PYTHONUNBUFFERED": "1"} | hidden


def _train(folder: Path, lock: int, devices: Sequence[str]) -> None:
    """Run the trainer to its end, and again where it asks for that."""
    while _train_once(folder, lock, devices):
        (folder / "outcome.json").unlink(missing_ok=True)


def _train_once(folder: Path, lock: int, devices: Sequence[str]) -> bool:
    """One attempt; whether the trainer wants another one with its batches in smaller parts."""
    log = folder / "log.txt"
    begin = log.stat().st_size if log.exists() else 0
    parts = read_json(folder / AGAIN)
    trainer = subprocess.Popen(
        command(folder, devices),
        stdin=subprocess.DEVNULL,
        env=environment(devices),
        pass_fds=[lock],
        start_new_session=True,
    )
    killed = False
    while trainer.poll() is None:
        if (folder / "kill").exists():
            killed = True
            _kill_all(trainer.pid)
        time.sleep(_POLL)
    _kill_all(trainer.pid)  # torchrun's ranks and data loaders outlive it when it is killed
    if killed:
        record_outcome(folder, "stopped", KILLED)
    record_outcome(folder, "failed", _reason(trainer.returncode, log, begin))
    return read_json(folder / AGAIN) != parts and not killed


def _reason(code: int, log: Path, begin: int) -> str:
    """Words for the end of a trainer that left none."""
    if code == -signal.SIGKILL:
        return (
            "The system killed it, most often because the machine's memory ran out. "
            "Resume it; if that happens again, with a smaller batch_size or model."
        )
    if code < 0:
        return f"It crashed ({signal.Signals(-code).name}). Resume it; the log holds what it last said."
    with suppress(OSError), log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode(errors="replace").split("\n")
        if said := [line.strip() for line in lines if line.strip()]:
            return said[-1][:500] if code == 2 else f"It ended with an error: {said[-1][:500]}"
    return f"It ended with status {code} and said nothing."


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


def _say(message: str) -> None:
    print(message, flush=True)


if __name__ == "__main__":
    supervise(Path(sys.argv[1]), int(sys.argv[2]))
