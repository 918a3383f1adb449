"""Training runs: start, list, queue, stop, resume. A run is a process and a folder, and the folder is the truth.

    <runs>/<time>-<name>-<4 hex>/
        config.json        what is trained (`vit.recipes.TrainConfig`)
        base.json          what follows from the checkpoint that it starts from (`vit.start.Base`)
        about.json         name, notes, owner, devices; all that a person may change
        environment.json, metrics.jsonl, events/, checkpoints/, probes/    see `vit.train`
        log.txt            what the processes printed
        alive.lock         every process of the run holds a shared lock on it
        heartbeat          written anew by the training loop: what it does, and how far that is
        stop, kill         requests to this attempt: present or not
        outcome.json       the last word of an attempt: finished, stopped or failed, and why
    <runs>/.queue/queue.json, lock     who waits for a device, and who has one

Nothing stores that a run is running. It is alive while its lock is held, and the operating system releases the lock
when the last of its processes is gone, however it went; a process id is never asked. Requests and the last word stay
until the next attempt begins, so that a state, once told, holds until it ends. Each run has a supervisor
(`vit.supervise`), a process of its own, so neither the page, the browser nor the server is needed while it trains.
"""

import fcntl
import json
import logging
import os
import re
import secrets
import shlex
import shutil
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypedDict

from vit.errors import InvalidConfig, InvalidRun
from vit.files import is_locked, replaced, silence, take_lock
from vit.paths import environment_with_package, runs_folder
from vit.untrusted import DOCUMENT_BYTES, Unreadable, is_number, is_text, is_whole, read_object

if TYPE_CHECKING:
    from vit.recipes import TrainConfig

Status = Literal[
    "waiting", "starting", "running", "testing", "stopping", "ending", "stalled",
    "finished", "stopped", "failed", "interrupted", "unreadable",
]  # fmt: skip
ALIVE = ("waiting", "starting", "running", "testing", "stopping", "ending", "stalled")
ANY_GPU = "gpu"  # in place of a device's name: the first that is free

STALLED = 300  # [s] without a sign of life; compiling a large model takes minutes
MAX_NAME, MAX_NOTES, MAX_REASON = 60, 5000, 2000  # characters
MOST_DEVICES = 64  # of one run
MOST_EPOCHS = 10_000
_LATEST = 2.0**32  # a moment in 2106 [s]
_SMALL = 64 << 10  # [bytes] of a document that is remembered
STATES = ("state.pt", "state.previous.pt")  # in checkpoints/, the newest first
_ID = re.compile(r"[a-z0-9-]{1,64}")
_DEVICE = re.compile(rf"cpu|mps|cuda:\d{{1,4}}|{ANY_GPU}", re.ASCII)

_log = logging.getLogger(__name__)


class Limits(NamedTuple):
    """What a server grants.

    Attributes:
        runs_per_person: waiting and running ones together; None for no limit.
        free_bytes: of the disk that no new run may use.
    """

    runs_per_person: int | None = None
    free_bytes: int = 2 << 30


@dataclass(frozen=True)
class Run:
    """One run, as it was found.

    Attributes:
        created: unix time [s].
        devices: that it asks for, such as ("cuda:0", "cuda:1"); the same twice means two processes on it.
        sweep: shared by runs that were started together to be compared, "" for none.
        status: waiting (for a device), starting, running, testing, stopping (asked to), ending (said its last word),
            stalled (alive but silent); finished, stopped, failed, or interrupted: it died without a last word, and can
            be resumed; unreadable: nobody can say.
        reason: more about the status, in words; "" where there is nothing to say.
        problem: what of its files cannot be read, and why; "" where all can.
        place: in the queue, from 1; 0 for a run that does not wait.
        tested: share of the pictures that the present testing has seen, 0 to 1; None where it does not test.
        step: done, as its last sign of life says, which may be ahead of its records.
    """

    id: str
    folder: Path
    name: str
    notes: str
    owner: str
    sweep: str
    created: float
    devices: tuple[str, ...]
    status: Status
    reason: str
    problem: str = ""
    place: int = 0
    tested: float | None = None
    step: int = 0
    share: bool = field(default=False, repr=False)
    nonce: str = field(default="", repr=False)

    @property
    def alive(self) -> bool:
        """Whether a process of it exists."""
        return self.status in ALIVE

    @cached_property
    def config(self) -> dict[str, Any]:
        """Its settings, those that can be read."""
        return _config(self.folder)[0]

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The same, with what follows from a named size or a checkpoint as its model has it, once that is saved."""
        config, model = self.config, read_json(self.best / "config.json").get("vit") if self.best else None
        used = {name: model[name] for name in config if name in model} if isinstance(model, dict) else {}
        if isinstance(sides := used.get("image_size"), list) and sides:
            used["image_size"] = sides[0]
        used = {name: value for name, value in used.items() if _is_setting(value)}
        return config | used | ({"size": None, "start": None} if config.get("init_from") else {})

    @property
    def best(self) -> Path | None:
        """The checkpoint of its best epoch, once there is one."""
        path = self.folder / "checkpoints" / "best"
        return path if os.path.isdir(path) else None


# --- Finding --------------------------------------------------------------------------------------------------------


def list_runs() -> list[Run]:
    """Every run, newest first; those that cannot be read are among them, and say why."""
    root = runs_folder()
    try:
        names = sorted(e.name for e in os.scandir(root) if _ID.fullmatch(e.name) and e.is_dir(follow_symlinks=False))
    except OSError:
        return []
    waiting = _read_queue(root)["waiting"]
    found = [_read_guarded(root / name, waiting) for name in names if _is_run(root / name)]
    return sorted(found, key=lambda run: (run.created, run.id), reverse=True)


def find_run(run_id: str) -> Run:
    """One run, looked up among those that exist; for ids that strangers send.

    Raises:
        InvalidRun: there is none.
    """
    root = runs_folder()
    known = isinstance(run_id, str) and _ID.fullmatch(run_id) and _is_run(root / run_id)
    if not known or (root / run_id).is_symlink():
        raise InvalidRun("There is no such run. It may have been deleted.")
    return _read_guarded(root / run_id, _read_queue(root)["waiting"])


def queue() -> list[Run]:
    """The runs that wait for a device, in their order."""
    return sorted((run for run in list_runs() if run.status == "waiting"), key=lambda run: run.place)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; empty if there is none that can be read."""
    try:
        return _document(path)
    except (FileNotFoundError, Unreadable):
        return {}


def _document(path: Path) -> dict[str, Any]:
    """A file's JSON object, parsed once for each version of a small file."""
    try:
        facts = path.stat()
    except FileNotFoundError:
        raise
    except OSError as error:
        raise Unreadable(f"{path.name} cannot be read: {error.strerror}.") from error
    if facts.st_size > _SMALL or not stat.S_ISREG(facts.st_mode):
        return read_object(path, DOCUMENT_BYTES)
    return dict(_parsed(path, facts.st_ino, facts.st_mtime_ns, facts.st_size))


@lru_cache(2048)
def _parsed(path: Path, inode: int, changed: int, size: int) -> dict[str, Any]:
    return read_object(path, _SMALL)


def _is_run(folder: Path) -> bool:
    """Whether a folder is a run, or is closed to this user, who then cannot know."""
    try:
        os.stat(folder / "config.json")
    except PermissionError:
        return True
    except OSError:
        return False
    return True


def _read_guarded(folder: Path, waiting: Sequence[str]) -> Run:
    """A run, whatever its folder holds: what is wrong with one of them hides none of the others."""
    try:
        return _read(folder, waiting)
    except OSError as error:
        reason = f"Its folder cannot be read: {error.strerror}."
    except Exception as error:
        _log.exception("The run %s cannot be read", folder)
        reason = f"It cannot be read: {type(error).__name__}. The server's log says more."
    name = _name_of(folder)
    return Run(folder.name, folder, name, "", "", "", 0.0, (), "unreadable", reason, reason)


def _read(folder: Path, waiting: Sequence[str]) -> Run:
    os.stat(folder / "config.json")  # a closed folder is told as such, before anything is taken for absent
    about, problem = _readable(folder / "about.json")

    def text(name: str, most: int) -> str:
        value = about.get(name)
        return value[:most] if isinstance(value, str) else ""

    created = about.get("created")
    if not is_number(created, 0, _LATEST):
        created = min(max(os.stat(folder / "config.json").st_mtime, 0.0), _LATEST)
    pulse = read_json(folder / "heartbeat")
    status, reason = _status(folder, waiting, pulse)
    unreadable = _config(folder)[1]
    if unreadable and status not in ALIVE and not _config(folder)[0]:
        status, reason = "unreadable", unreadable
    return Run(
        id=folder.name,
        folder=folder,
        name=_short(text("name", MAX_NAME), MAX_NAME) or _name_of(folder),
        notes=text("notes", MAX_NOTES),
        owner=text("owner", MAX_REASON),
        sweep=text("sweep", MAX_REASON),
        created=float(created),
        devices=_devices(about.get("devices")),
        status=status,
        reason=reason,
        problem=unreadable or problem,
        place=waiting.index(folder.name) + 1 if status == "waiting" else 0,
        tested=_tested(pulse) if status in ("testing", "stopping") else None,
        step=pulse["step"] if is_whole(pulse.get("step")) else 0,
        share=about.get("share") is True,
        nonce=text("nonce", MAX_REASON),
    )


def _devices(names: object) -> tuple[str, ...]:
    """Devices as a run may ask for them; none where a name is no device."""
    some = [name for name in names if is_text(name) and _DEVICE.fullmatch(name)] if isinstance(names, list) else []
    return tuple(some) if isinstance(names, list) and len(some) == len(names) <= MOST_DEVICES else ()


def _name_of(folder: Path) -> str:
    return re.sub(r"^\d{8}-\d{6}-|-[0-9a-f]{4}$", "", folder.name)


def _readable(path: Path) -> tuple[dict[str, Any], str]:
    """A file's JSON object and "", or an empty one and why it cannot be read; no file is an empty object."""
    try:
        return _document(path), ""
    except FileNotFoundError:
        return {}, ""
    except Unreadable as error:
        return {}, str(error)


def _config(folder: Path) -> tuple[dict[str, Any], str]:
    """The settings that can be one, and in words those that cannot."""
    values, problem = _readable(folder / "config.json")
    kept = {name: value for name, value in values.items() if _is_setting(value)}
    if not is_whole(kept.get("epochs", 1), 1, MOST_EPOCHS):
        del kept["epochs"]
    if values and len(kept) < len(values):
        wrong = next(name for name in values if name not in kept)
        problem = f"config.json cannot be read: {wrong[:MAX_NAME]} has a value that it cannot have."
    return kept, problem


def _is_setting(value: object) -> bool:
    """Whether a run's setting may have this value; which one of them, `vit.recipes` knows."""
    return value is None or isinstance(value, bool) or is_number(value) or is_text(value)


def _tested(pulse: dict[str, Any]) -> float | None:
    """The share of the present testing, if a sign of life tells of one."""
    share = pulse.get("share")
    return float(share) if pulse.get("doing") == "testing" and is_number(share, 0, 1) else None


def _status(folder: Path, waiting: Sequence[str], pulse: dict[str, Any]) -> tuple[Status, str]:
    outcome = read_json(folder / "outcome.json")
    if is_alive(folder):
        if os.path.lexists(folder / "stop") or os.path.lexists(folder / "kill"):
            words = "the testing is over" if _tested(pulse) is not None else "the step that it is in"
            return "stopping", f"It ends after {words}."
        if outcome:
            return "ending", "It has said its last word, and clears up."
        if folder.name in waiting:
            return "waiting", "It starts by itself when its device is free."
        try:
            silent = silence(folder / "heartbeat")
        except OSError:
            return "starting", "It loads PyTorch and its pictures."
        if silent > STALLED:
            return "stalled", f"No step in the last {silent / 60:.0f} minutes. The log may say why."
        return ("running" if _tested(pulse) is None else "testing"), ""
    ends: dict[Any, Status] = {"finished": "finished", "stopped": "stopped", "failed": "failed"}
    word, reason = outcome.get("outcome"), outcome.get("reason")
    if isinstance(word, str) and word in ends:
        return ends[word], reason[:MAX_REASON] if isinstance(reason, str) else ""
    return "interrupted", "It was cut off, by a restart of the machine perhaps. Resume it: no complete epoch is lost."


# --- Alive ----------------------------------------------------------------------------------------------------------


def is_alive(folder: Path) -> bool:
    """Whether any process of the run exists."""
    return is_locked(folder / "alive.lock")


@contextmanager
def living(folder: Path) -> Iterator[None]:
    """Count this process, and those that it forks, to the run; the first one begins an attempt."""
    file = os.open(folder / "alive.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if take_lock(file, fcntl.LOCK_EX):
            _forget_attempt(folder)
        fcntl.flock(file, fcntl.LOCK_SH)
        yield
    finally:
        os.close(file)


def _forget_attempt(folder: Path) -> None:
    """Remove what was asked of the attempt before, and what it said; by whoever alone holds the run's lock."""
    for leftover in ("stop", "kill", "outcome.json", "heartbeat"):
        (folder / leftover).unlink(missing_ok=True)


def _holders(folder: Path) -> list[int]:
    """Processes that hold the run's lock: found by the lock, so a reused id cannot be among them. Linux only."""
    try:
        lock = (folder / "alive.lock").stat()
    except OSError:
        return []
    found = set()
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):  # a process or a file that is gone by now, or that is another user's
            file = link.stat()
            if (file.st_dev, file.st_ino) == (lock.st_dev, lock.st_ino):
                held = (link.parents[1] / "fdinfo" / link.name).read_text()
                if re.search(r"^lock:.*FLOCK.*READ", held, re.MULTILINE):  # who only asks holds WRITE for an instant
                    found.add(int(link.parents[1].name))
    return sorted(found - {os.getpid()})


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
    """
    from vit.recipes import run_name

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
        from vit.start import resolve, write_base  # bring torch along

        base = resolve(config)
    root = runs_folder()
    name = name or run_name(config)
    limits = limits or Limits()
    with _queue(root) as line:
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
            "name": _short(name, MAX_NAME),
            "notes": notes[:MAX_NOTES],
            "owner": owner,
            "sweep": sweep,
            "created": time.time(),
            "devices": list(devices),
            "share": share,
            "nonce": nonce,
        }
        _write_json(folder / "about.json", about)
        with replaced(folder / "config.json") as file:
            file.write(config.model_dump_json(indent=2).encode() + b"\n")
        if base:
            write_base(folder, base)
        if not share:  # now, so that the order of the launches counts and a run whose device is free never waits
            _grant(root, line, folder.name, devices, gpu_names)
        _start(folder)
    return find_run(folder.name)


def gpu_names() -> list[str]:
    """This machine's GPUs as devices are named."""
    from vit.devices import list_devices

    return [device.name for device in list_devices() if device.name.startswith("cuda")]


def _start(folder: Path) -> None:
    """Start the run's supervisor; the lock is held from before it exists, so there is no moment of doubt."""
    lock = os.open(folder / "alive.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not take_lock(lock, fcntl.LOCK_EX):
            raise InvalidRun("This run is going on already.")
        _forget_attempt(folder)
        fcntl.flock(lock, fcntl.LOCK_SH)
        with (folder / "log.txt").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, "-m", "vit.supervise", str(folder), str(lock)],
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
    with _changing(folder):
        (folder / "stop").touch()


def kill(run_id: str, patience: float = 5.0) -> None:
    """End a run now; the last complete state stays.

    Args:
        patience: time that its supervisor has for it before all processes that hold its lock are killed [s].

    Raises:
        InvalidRun: it is not alive.
    """
    folder = _living_run(run_id).folder
    with _changing(folder):
        (folder / "kill").touch()
    until = time.monotonic() + patience
    while time.monotonic() < until:
        if not is_alive(folder):
            return
        time.sleep(0.1)
    for pid in _holders(folder):
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)
    if not os.path.exists(folder / "outcome.json"):
        last_word(folder, "stopped", "Killed on request. Resume continues from the last saved state.")


def resume(run_id: str, *, devices: Sequence[str] | None = None, epochs: int | None = None) -> Run:
    """Continue a run from its last saved state, in the queue's last place if its devices are not free.

    Raises:
        InvalidRun: it is alive, it has finished all its epochs, or its state is gone.
        InvalidConfig: `epochs` is no number of epochs.
    """
    from vit.recipes import train_config

    run = find_run(run_id)
    if run.alive:
        raise InvalidRun("This run is going on already.")
    if run.status == "unreadable":
        raise InvalidRun(run.reason)
    check_resumable(run.folder)
    if run.status == "finished" and (epochs is None or epochs <= run.config.get("epochs", 0)):
        raise InvalidRun("This run has finished. Give it more epochs to continue it.")
    if epochs is not None:
        config = train_config(**_document(run.folder / "config.json") | {"epochs": epochs})
        with _changing(run.folder), replaced(run.folder / "config.json") as file:
            file.write(config.model_dump_json(indent=2).encode() + b"\n")
    with _queue(runs_folder()) as line:
        if devices is not None:
            _change(run.folder, devices=list(devices))
        with _changing(run.folder):
            _start(run.folder)
        if not run.share:
            _grant(runs_folder(), line, run.id, devices or run.devices, gpu_names)
    return find_run(run_id)


def check_resumable(folder: Path) -> None:
    """Refuse to continue what has learnt something and lost its state: it would begin again, and overwrite that.

    Raises:
        InvalidRun: how a new run can start from what it learnt.
    """
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
    here = Path.cwd()
    config, weights = (
        path.relative_to(here) if path.is_relative_to(here) else path
        for path in (folder.absolute() / "config.json", weights.absolute())
    )
    command = shlex.join(["python", "-m", "vit", "train", "--config", str(config), "--set", f"init_from={weights}"])
    return f"A new run can start from its last weights: *Begin anew* on page Runs, or `{command}`"


def delete(run_id: str) -> None:
    """Remove a run with everything that it wrote.

    Raises:
        InvalidRun: it is alive.
    """
    run = find_run(run_id)
    if run.alive:
        raise InvalidRun("This run is going on. Stop it first.")
    doomed = run.folder.with_name(f".{run.id}.deleted")
    with _changing(run.folder):
        run.folder.rename(doomed)  # gone at once, for everybody
    shutil.rmtree(doomed, ignore_errors=True)


def rename(run_id: str, name: str) -> None:
    """Change the name that is shown; the folder keeps its own.

    Raises:
        InvalidRun: there is no such run, or the name is empty.
    """
    if not (short := _short(name, MAX_NAME)):
        raise InvalidRun("A run needs a name of at least one letter.")
    with _queue(runs_folder()):
        _change(find_run(run_id).folder, name=short)


def annotate(run_id: str, notes: str) -> None:
    """Replace a run's notes."""
    with _queue(runs_folder()):
        _change(find_run(run_id).folder, notes=notes[:MAX_NOTES])


def move(run_id: str, place: int) -> None:
    """Put a waiting run at another place of the queue, 0 for the first.

    Raises:
        InvalidRun: it does not wait.
    """
    with _queue(runs_folder()) as line:
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
    from vit.checkpoints import manage

    best = find_run(run_id).best
    if best is None:
        raise InvalidRun("This run has no checkpoint yet: it is written after the first epoch.")
    return manage.copy(best, name)


def last_word(folder: Path, outcome: Literal["finished", "stopped", "failed"], reason: str = "") -> None:
    """Record how an attempt ended; the first word counts."""
    if not (folder / "outcome.json").exists():
        _write_json(folder / "outcome.json", {"outcome": outcome, "reason": reason, "t": time.time()})


def _living_run(run_id: str) -> Run:
    run = find_run(run_id)
    if not run.alive:
        raise InvalidRun("This run has ended already.")
    return run


def _short(text: str, length: int) -> str:
    return " ".join(text.split())[:length]


def _write_json(path: Path, values: dict[str, Any]) -> None:
    with replaced(path) as file:
        file.write(json.dumps(values, indent=2).encode() + b"\n")


def _change(folder: Path, **values: Any) -> None:
    with _changing(folder):
        _write_json(folder / "about.json", read_json(folder / "about.json") | values)


@contextmanager
def _changing(folder: Path) -> Iterator[None]:
    """Say in one sentence that a run's folder, another user's perhaps, cannot be changed."""
    try:
        yield
    except OSError as error:
        raise InvalidRun(f"The folder of {folder.name} cannot be changed: {error.strerror}.") from error


# --- The queue ------------------------------------------------------------------------------------------------------
#
# One document: {"waiting": [run, ...], "held": {device: run}}. It changes only under a lock, and whoever reads
# it leaves out the runs that are dead. The waiting supervisors look at it once a second; no server takes part.


class _Line(TypedDict):
    """Who waits, in order, and who has which device."""

    waiting: list[str]
    held: dict[str, str]


@contextmanager
def _queue(root: Path) -> Iterator[_Line]:
    """The queue, for this process alone; what is changed is written back."""
    with _changing(root):
        (root / ".queue").mkdir(parents=True, exist_ok=True)
        lock = os.open(root / ".queue" / "lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)
        line = _read_queue(root)
        before = json.dumps(line)
        yield line
        if json.dumps(line) != before:
            _write_json(root / ".queue" / "queue.json", dict(line))
    finally:
        os.close(lock)


def _read_queue(root: Path) -> _Line:
    """The queue, without what no run wrote there."""
    line = read_json(root / ".queue" / "queue.json")
    waiting, held = line.get("waiting"), line.get("held")
    return {
        "waiting": [name for name in waiting if _is_id(name)] if isinstance(waiting, list) else [],
        "held": {name: run for name, run in held.items() if _is_id(run)} if isinstance(held, dict) else {},
    }


def _is_id(value: object) -> bool:
    return isinstance(value, str) and _ID.fullmatch(value) is not None


def take_devices(folder: Path, gpus: Callable[[], Sequence[str]]) -> tuple[str, ...] | None:
    """Give the run its devices if they are free and nobody before it waits for one of them; called by its supervisor.

    Args:
        gpus: names of this machine's GPUs, asked for only where a run takes any of them.

    Returns:
        the devices, resolved; None while the run has to wait.
    """
    root = folder.parent
    run = _read(folder, ())
    if run.share:
        return _resolved(run.devices, {}, gpus)
    with _queue(root) as line:
        return _grant(root, line, run.id, run.devices, gpus)


def _grant(
    root: Path, line: _Line, run_id: str, wanted: Sequence[str], gpus: Callable[[], Sequence[str]]
) -> tuple[str, ...] | None:
    """Enter in the queue that a run has its devices, or else that it waits for them."""
    waiting = [name for name in line["waiting"] if name == run_id or is_alive(root / name)]
    if run_id not in waiting:  # what was granted at the launch, a supervisor asks for again
        waiting.insert(0 if run_id in line["held"].values() else len(waiting), run_id)
    held = {device: holder for device, holder in line["held"].items() if holder != run_id and is_alive(root / holder)}
    taken = dict(held)
    for name in waiting[: waiting.index(run_id)]:  # those before it keep what they wait for
        theirs = _read_guarded(root / name, ()).devices
        for device in _resolved(theirs, taken, gpus) or theirs:
            taken[device] = name
    given = _resolved(wanted, taken, gpus)
    if given is not None:
        waiting.remove(run_id)
        held |= dict.fromkeys(given, run_id)
    line["waiting"], line["held"] = waiting, held
    return given


def leave_queue(folder: Path) -> None:
    """Give up the run's place and its devices."""
    with _queue(folder.parent) as line:
        line["waiting"] = [name for name in line["waiting"] if name != folder.name]
        line["held"] = {device: holder for device, holder in line["held"].items() if holder != folder.name}


def _resolved(
    wanted: Sequence[str], taken: dict[str, str], gpus: Callable[[], Sequence[str]]
) -> tuple[str, ...] | None:
    """Real devices for those wanted, none of them taken; None if there are not enough."""
    given: list[str] = []
    for device in wanted:
        if device == ANY_GPU:
            free = (gpu for gpu in gpus() if gpu not in taken and gpu not in given)
            device = next(free, "")
        if not device or device in taken:
            return None
        given.append(device)
    return tuple(given)
