"""What every engine answers, whatever computes its runs: this machine, a Ray cluster, a Slurm cluster.

An engine submits, looks, asks to stop and kills; nothing else. What a run is (its folder, trainer, metrics, snapshots,
outcome) is the same everywhere.
"""

import os
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from vit.errors import InvalidRun, UserError
from vit.files import acquire_lock
from vit.runs.attempts import CANCELLED
from vit.training.run_folder import changing, forget_attempt, read_json, record_outcome, write_json
from vit.untrusted import is_number, is_text

HERE = "here"  # the name of this machine's engine
HANDLE = "handle.json"
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")  # of an engine
_JOB = re.compile(r"[a-z0-9-]{1,64}\.[0-9]{1,6}")  # it becomes an argument of the engine's commands
_OVER = "over.json"
_REPLACED_SECONDS = 5.0  # [s] between two looks of a job at whose turn it is
GRACE_SECONDS = 30  # [s] in which an engine may not know yet what was submitted


class Unreachable(UserError):
    """An engine gives no answer: nobody is there, it does not let us in, or it takes too long."""


class Refused(UserError):
    """An engine will not do what it is asked for, and says why."""


class Share(NamedTuple):
    """How much of something is free, and how much there is."""

    free: int
    total: int


class Capacity(NamedTuple):
    """What an engine has to give.

    Attributes:
        nodes: machines that take part.
        cpus, gpus: processors and GPUs, over all nodes.
    """

    nodes: int
    cpus: Share
    gpus: Share


class Request(NamedTuple):
    """What a run asks of an engine.

    Attributes:
        devices: one for each process of a node: "cpu", "gpu" for any, on this machine also "cuda:0" and so on.
        share: do not wait for others that use them; on this machine only.
        nodes: how many machines.
        minutes: after which the engine may end it; None for its own limit.
        workers: of a measurement in parts, processes that know nothing of each other, each with one of `devices`; 0
            for a training run.
    """

    devices: tuple[str, ...] = ("cpu",)
    share: bool = False
    nodes: int = 1
    minutes: int | None = None
    workers: int = 0

    @property
    def gpus(self) -> bool:
        """Whether each process has a GPU."""
        return self.devices[0] not in ("cpu", "mps")


class Handle(NamedTuple):
    """A run as its engine knows it.

    Attributes:
        folder: of the run.
        engine_name: `HERE`, or the cluster's name.
        job: unique on the cluster, chosen before it is submitted: what was submitted twice is one job.
        submitted: unix time [s].
    """

    folder: Path
    engine_name: str
    job: str
    submitted: float


class Look(NamedTuple):
    """What an engine says of a run.

    Attributes:
        word: waiting (for its turn), running, retrying (its processes died and are started again), gone.
        reason: why, in words; "" where there is nothing to say.
        starts: when a waiting one is expected to start, unix time [s].
        nodes: the machines that it is on.
    """

    word: Literal["waiting", "running", "retrying", "gone"]
    reason: str = ""
    starts: float | None = None
    nodes: tuple[str, ...] = ()


class Engine(Protocol):
    """What computes runs. Every call ends within seconds.

    Attributes:
        name: as people choose it.
    """

    name: str

    def capacity(self) -> Capacity:
        """What is there, and what of it is free.

        Raises:
            Unreachable: nobody answers.
        """

    def submit(self, folder: Path, request: Request) -> Handle:
        """Start the run in this folder, or queue it.

        Raises:
            InvalidRun: it is going on already.
            Refused: the engine has no room for this, ever.
            Unreachable: nobody answers.
        """

    def look(self, handle: Handle) -> Look:
        """Say how a run is.

        Raises:
            Unreachable: nobody answers.
        """

    def look_all(self, handles: Sequence[Handle]) -> Iterator[tuple[Handle, Look | Exception]]:
        """Say how each of several runs is, or what keeps that from being known.

        Looks at each, in engines that inherit it; others ask once.
        """
        return each(lambda: self.look, handles)

    def ask_to_stop(self, folder: Path) -> None:
        """Ask a run to finish its step, save, and end; a waiting one leaves the queue.

        The file `stop` in its folder asks, also where nobody answers: the trainer sees it, or the job when it starts.
        """

    def kill(self, handle: Handle) -> None:
        """End a run now, and return once it is over.

        Raises:
            Unreachable: nobody answers.
        """


def each(
    ask: Callable[[], Callable[[Handle], Look]], handles: Sequence[Handle]
) -> Iterator[tuple[Handle, Look | Exception]]:
    """Say how each of several runs is, or what kept that from being known.

    Args:
        ask: all that needs to be asked once; returns what then says how a run is.
    """
    try:
        look = ask()
    except Exception as error:
        yield from ((handle, error) for handle in handles)
        return
    for handle in handles:
        try:
            answer: Look | Exception = look(handle)
        except Exception as error:
            answer = error
        yield handle, answer


def read_handle(folder: Path) -> Handle | None:
    """How the engine of a cluster knows a run; None for a run of this machine, and for a copy of a cluster's run."""
    values = read_json(folder / HANDLE)
    engine_name, job, submitted = values.get("place"), values.get("job"), values.get("submitted")
    if not (
        is_text(engine_name)
        and NAME.fullmatch(engine_name)
        and is_text(job)
        and _JOB.fullmatch(job)
        and is_number(submitted)
    ):
        return None
    if job.rpartition(".")[0] != folder.name:
        return None
    return Handle(folder, engine_name, job, submitted)


def write_handle(handle: Handle, request: Request) -> None:
    """Write how the engine of a cluster will know a run, before it is submitted."""
    resources = request._asdict() | {"devices": list(request.devices)}
    identity = {"place": handle.engine_name, "job": handle.job, "submitted": handle.submitted}
    write_json(handle.folder / HANDLE, identity | {"request": resources})


def read_request(folder: Path) -> Request:
    """What was asked of a cluster for a run, by whoever submitted it; for its job there."""
    resources = read_json(folder / HANDLE)["request"]
    return Request(**resources | {"devices": tuple(resources["devices"])})


def next_handle(folder: Path, engine_name: str, last: int = 0) -> Handle:
    """For another attempt at the run in this folder.

    Args:
        last: number of a job that was sent before, whatever came of it.
    """
    before = read_handle(folder)
    number = max(int(before.job.rpartition(".")[2]) if before else 0, last) + 1
    return Handle(folder, engine_name, f"{folder.name}.{number}", time.time())


def is_new(handle: Handle) -> bool:
    """Whether an engine may not know a job yet: it was submitted a moment ago, and has left no sign of life."""
    begun = any((handle.folder / name).exists() for name in ("heartbeat", "outcome.json"))
    return not begun and time.time() - handle.submitted < GRACE_SECONDS


def mark_over(handle: Handle) -> None:
    """Note that a job is gone for good, as engines forget: by the job itself at its end, or by who learns it."""
    write_json(handle.folder / _OVER, {"job": handle.job})


def is_over(handle: Handle) -> bool:
    """Whether that is noted, of this job and not of one before it."""
    return read_json(handle.folder / _OVER).get("job") == handle.job


def conclude(handle: Handle, outcome: Literal["stopped", "failed"], reason: str) -> None:
    """Record that a job is over, and how, where the trainer did not say, or said it failed as a person ended it."""
    path = handle.folder / "outcome.json"
    if outcome == "stopped" and read_json(path).get("outcome") == "failed":
        path.unlink()
    record_outcome(handle.folder, outcome, reason)
    mark_over(handle)


def leave_stop(engine: Engine, folder: Path) -> None:
    """Ask a cluster's run to stop: by the file, and of one that waits by ending its job."""
    with changing(folder):
        (folder / "stop").touch()
    handle = read_handle(folder)
    with suppress(Unreachable):
        if handle and engine.look(handle).word == "waiting":
            engine.kill(handle)
            call_off(handle)


def claim_job(folder: Path, job: str) -> Handle | None:
    """For a job at its start: its run's handle; None where it shall not begin.

    Another job has its place, it was ended before (Ray starts jobs that it was told to stop while they were pending),
    or a person has asked the run to stop.
    """
    handle = read_handle(folder)
    return None if handle is None or handle.job != job or is_over(handle) or call_off(handle) else handle


def end_when_replaced(handle: Handle, end: Callable[[], object]) -> None:
    """For a job at work, in the background: end it once the run has another one.

    A run that gave no sign of life for a while may have been declared over, and resumed.
    """

    def wait() -> None:
        while (now := read_handle(handle.folder)) is None or now.job == handle.job:
            time.sleep(_REPLACED_SECONDS)
        print("The run has another job, so this one ends.", flush=True)
        end()

    threading.Thread(target=wait, daemon=True, name="ends when replaced").start()


def call_off(handle: Handle) -> bool:
    """Whether a person stopped a run before it began, which is then over."""
    if not any((handle.folder / request).exists() for request in ("stop", "kill")):
        return False
    write_json(handle.folder / "outcome.json", {"outcome": "stopped", "reason": CANCELLED, "t": time.time()})
    mark_over(handle)
    return True


def _last_number(lock: int, request: Request) -> int:
    """Of the job that was sent last, which an engine may know although it gave no answer.

    A measurement begins anywhere: its folder has the same name again when it is asked for again, and engines remember.
    """
    sent = os.pread(lock, 16, 0)
    return int(sent) if sent.isdigit() else secrets.randbelow(900_000) if request.workers else 0


@contextmanager
def submitting(engine: Engine, folder: Path, request: Request) -> Iterator[Handle]:
    """The handle of another attempt at a run, for its engine to submit; only one does so at a time.

    Where that fails, the run is as it was before. A job that began all the same finds a handle that is not its own.

    Raises:
        InvalidRun: the run is going on, or somebody else submits it at this moment.
    """
    lock = os.open(folder / "submit.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not acquire_lock(lock):
            raise InvalidRun("This run is being started already.")
        if (last := read_handle(folder)) and engine.look(last).word != "gone":
            if not is_over(last):
                raise InvalidRun("This run is going on already.")
            engine.kill(last)  # it has said its last word, and is on its way out
        files = [folder / name for name in (HANDLE, "outcome.json")]
        contents = [file.read_bytes() if file.exists() else None for file in files]
        with changing(folder):
            forget_attempt(folder)
            handle = next_handle(folder, engine.name, _last_number(lock, request))
            os.pwrite(lock, handle.job.rpartition(".")[2].encode(), 0)
            write_handle(handle, request)
        try:
            yield handle
        except UserError:
            for file, content in zip(files, contents, strict=True):
                if content is None:
                    file.unlink(missing_ok=True)
                else:
                    file.write_bytes(content)
            raise
    finally:
        os.close(lock)
