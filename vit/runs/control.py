"""Training runs: start, list, queue, stop, resume. A run is a process and a folder, and the folder is the truth.

    <runs>/<time>-<name>-<4 hex>/
        config.json        what is trained (`vit.training.presets.TrainConfig`)
        base.json          what follows from the checkpoint that it starts from (`vit.training.fine_tuning.Base`)
        about.json         name, notes, owner, devices; all that a person may change
        environment.json, metrics.jsonl, events/, checkpoints/, probes/    see `vit.training.train`
        log.txt            what the processes printed
        alive.lock         every process of the run holds a shared lock on it
        heartbeat          written anew by the training loop: what it does, and how far that is
        stop, kill         requests to this attempt: present or not
        outcome.json       the last word of an attempt: finished, stopped or failed, and why
    <runs>/.queue/queue.json, lock     who waits for a device, and who has one

Nothing stores that a run is running. It is alive while its lock is held, and the operating system releases the lock
when the last of its processes is gone, however it went; a process id is never asked. Requests and the last word stay
until the next attempt begins, so that a state, once told, holds until it ends. Each run has a supervisor
(`vit.runs.supervisor`), a process of its own, so neither page, browser nor server is needed while it trains.
"""

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vit.checkpoints import manage
from vit.errors import InvalidConfig, InvalidRun
from vit.files import check_locks, replaced, take_lock, wait_for_lock
from vit.paths import environment_with_package, runs_folder
from vit.runs.queue_file import open_queue
from vit.runs.registry import ANY_GPU, MAX_NAME, MAX_NOTES, Run, find_run, list_runs, shorten
from vit.runs.scheduler import gpu_names, grant
from vit.training import fine_tuning, presets
from vit.training.run_folder import (
    changing,
    check_resumable,
    forget_attempt,
    is_alive,
    read_document,
    read_json,
    record_outcome,
    write_json,
)

if TYPE_CHECKING:
    from vit.training.config import TrainConfig


class Limits(NamedTuple):
    """What a server grants.

    Attributes:
        runs_per_person: waiting and running ones together; None for no limit.
        free_bytes: of the disk that no new run may use.
    """

    runs_per_person: int | None = None
    free_bytes: int = 2 << 30


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


# --- Acting ---------------------------------------------------------------------------------------------------------


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


def launch(
    config: "TrainConfig",
    *,
    name: str = "",
    notes: str = "",
    devices: Sequence[str] = ("cpu",),
    share: bool = False,
    owner: str = "",
    sweep: str = "",
    nonce: str = "",
    limits: Limits | None = None,
) -> Run:
    """Start a run, or queue it until its devices are free, in processes that outlive this one.

    Args:
        config: what to do; its `device` is replaced by what `devices` says.
        name: what `run_name` says, unless it is given.
        devices: "cpu", "mps", "cuda:0" and so on, `ANY_GPU`; several for several processes.
        share: do not wait for other runs on these devices.
        nonce: of the form that was sent; sent twice, it starts one run.

    Raises:
        InvalidConfig: no devices, too many runs of this owner, too little disk, or settings that contradict the
            checkpoint that the run starts from.
        InvalidCheckpoint: that checkpoint cannot be opened.
        UserError: this system has no locks.
    """
    check_locks()
    if not devices or not all(re.fullmatch(rf"cpu|mps|cuda:\d+|{ANY_GPU}", device) for device in devices):
        raise InvalidConfig("devices: choose cpu, or one or more GPUs.")
    kinds = {device.partition(":")[0].replace(ANY_GPU, "cuda") for device in devices}
    if len(kinds) > 1:
        raise InvalidConfig("devices: a run uses either the CPU or GPUs, not both.")
    kind, colon, path = config.data.partition(":")
    places = {"data": kind + colon + (str(Path(path).expanduser().absolute()) if colon else path)}
    places |= {"data_root": str(Path(config.data_root).absolute()), "device": kinds.pop()}
    config = config.model_copy(update=places)  # wherever it is resumed from
    base = None
    if config.init_from:
        base = fine_tuning.resolve(config)
    root = runs_folder()
    name = name or presets.run_name(config)
    limits = limits or Limits()
    with open_queue(root) as line:
        every = list_runs()
        if again := next((run for run in every if nonce and run.nonce == nonce), None):
            return again
        mine = sum(run.alive and run.owner == owner for run in every)
        if limits.runs_per_person is not None and mine >= limits.runs_per_person:
            raise InvalidConfig(
                f"You have {mine} runs waiting or running, and {limits.runs_per_person} are allowed. "
                "Stop one, or start this one later."
            )
        free = shutil.disk_usage(root).free
        if free < limits.free_bytes:
            raise InvalidConfig(
                f"The disk has {free / 1e9:.1f} GB free, and {limits.free_bytes / 1e9:.1f} GB are kept free. "
                "Delete old runs first."
            )
        folder = root / new_id(name)
        folder.mkdir()
        about = {
            "name": shorten(name, MAX_NAME),
            "notes": notes[:MAX_NOTES],
            "owner": owner,
            "sweep": sweep,
            "created": time.time(),
            "devices": list(devices),
            "share": share,
            "nonce": nonce,
        }
        write_json(folder / "about.json", about)
        with replaced(folder / "config.json") as file:
            file.write(config.model_dump_json(indent=2).encode() + b"\n")
        if base:
            fine_tuning.write_base(folder, base)
        if not share:  # now, so that the order of the launches counts and a run whose device is free never waits
            grant(root, line, folder.name, devices, gpu_names)
        _start(folder)
    return find_run(folder.name)


def _start(folder: Path) -> None:
    """Start the run's supervisor; the lock is held from before it exists, so there is no moment of doubt."""
    lock = os.open(folder / "alive.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not take_lock(lock):
            raise InvalidRun("This run is going on already.")
        forget_attempt(folder)
        wait_for_lock(lock, shared=True)
        with (folder / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "vit.runs.supervisor", str(folder), str(lock)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment_with_package(),
                pass_fds=[lock],
                start_new_session=True,  # the server's Ctrl-C is not the run's
            )
        process.wait()  # it forks and ends at once: the supervisor is nobody's child
    finally:
        os.close(lock)


def stop(run_id: str) -> None:
    """Ask a run to finish its step, save, and end; a waiting one leaves the queue.

    Raises:
        InvalidRun: it is not alive.
    """
    folder = _living_run(run_id).folder
    with changing(folder):
        (folder / "stop").touch()


def kill(run_id: str, patience: float = 5.0) -> None:
    """End a run now; the last complete state stays.

    Args:
        patience: time that its supervisor has for it before all processes that hold its lock are killed [s].

    Raises:
        InvalidRun: it is not alive.
    """
    folder = _living_run(run_id).folder
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
    if not os.path.exists(folder / "outcome.json"):
        record_outcome(folder, "stopped", "Killed on request. Resume continues from the last saved state.")


def resume(run_id: str, *, devices: Sequence[str] | None = None, epochs: int | None = None) -> Run:
    """Continue a run from its last saved state, in the queue's last place if its devices are not free.

    Raises:
        InvalidRun: it is alive, it has finished all its epochs, or its state is gone.
        InvalidConfig: `epochs` is no number of epochs.
    """
    run = find_run(run_id)
    if run.alive:
        raise InvalidRun("This run is going on already.")
    if run.status == "unreadable":
        raise InvalidRun(run.reason)
    check_resumable(run.folder)
    if run.status == "finished" and (epochs is None or epochs <= run.config.get("epochs", 0)):
        raise InvalidRun("This run has finished. Give it more epochs to continue it.")
    if epochs is not None:
        config = presets.train_config(**read_document(run.folder / "config.json") | {"epochs": epochs})
        with changing(run.folder), replaced(run.folder / "config.json") as file:
            file.write(config.model_dump_json(indent=2).encode() + b"\n")
    with open_queue(runs_folder()) as line:
        if devices is not None:
            _change(run.folder, devices=list(devices))
        with changing(run.folder):
            _start(run.folder)
        if not run.share:
            grant(runs_folder(), line, run.id, devices or run.devices, gpu_names)
    return find_run(run_id)


def delete(run_id: str) -> None:
    """Remove a run with everything that it wrote.

    Raises:
        InvalidRun: it is alive.
    """
    run = find_run(run_id)
    if run.alive:
        raise InvalidRun("This run is going on. Stop it first.")
    doomed = run.folder.with_name(f".{run.id}.deleted")
    with changing(run.folder):
        run.folder.rename(doomed)  # gone at once, for everybody
    shutil.rmtree(doomed, ignore_errors=True)


def rename(run_id: str, name: str) -> None:
    """Change the name that is shown; the folder keeps its own.

    Raises:
        InvalidRun: there is no such run, or the name is empty.
    """
    if not (short := shorten(name, MAX_NAME)):
        raise InvalidRun("A run needs a name of at least one letter.")
    with open_queue(runs_folder()):
        _change(find_run(run_id).folder, name=short)


def annotate(run_id: str, notes: str) -> None:
    """Replace a run's notes."""
    with open_queue(runs_folder()):
        _change(find_run(run_id).folder, notes=notes[:MAX_NOTES])


def move(run_id: str, place: int) -> None:
    """Put a waiting run at another place of the queue, 0 for the first.

    Raises:
        InvalidRun: it does not wait.
    """
    with open_queue(runs_folder()) as line:
        waiting = line["waiting"]
        if run_id not in waiting:
            raise InvalidRun("This run does not wait any more.")
        waiting.remove(run_id)
        waiting.insert(max(place, 0), run_id)
        line["waiting"] = waiting


def keep(run_id: str, name: str) -> Path:
    """Copy a run's best checkpoint to `checkpoints/<name>`.

    Raises:
        InvalidRun: it has none yet.
        InvalidCheckpoint: the name is taken, or none that a checkpoint may have.
    """
    best = find_run(run_id).best
    if best is None:
        raise InvalidRun("This run has no checkpoint yet: it is written after the first epoch.")
    return manage.copy(best, name)


def _living_run(run_id: str) -> Run:
    run = find_run(run_id)
    if not run.alive:
        raise InvalidRun("This run has ended already.")
    return run


def _change(folder: Path, **values: Any) -> None:
    with changing(folder):
        write_json(folder / "about.json", read_json(folder / "about.json") | values)
