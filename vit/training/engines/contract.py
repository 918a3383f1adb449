"""The interface of every engine that computes runs: this machine, a Ray cluster, a Slurm cluster.

An engine submits, reports status, requests a stop and kills; nothing else. The run itself (folder, trainer, metrics,
snapshots, outcome) is the same everywhere.
"""

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Literal, NamedTuple, Protocol

from vit.errors import InvalidRun, UserError
from vit.files import acquire_lock
from vit.training.loop.run_folder import forget_attempt, read_json, record_outcome, write_errors, write_json
from vit.training.runs.attempts import CANCELLED
from vit.untrusted import Unreadable, is_number, is_text
from vit.validation import as_tuple

HERE = "here"  # name of this machine's engine
HANDLE = "handle.json"
NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,31}")  # name of an engine
_JOB = re.compile(r"[a-z0-9-]{1,64}\.[0-9]{1,6}")  # strict, because it becomes an argument of the engine's commands
_OVER = "over.json"
_REPLACED_SECONDS = 5.0  # [s] between two checks whether another job has replaced this one
GRACE_SECONDS = 30  # [s] for which an engine may not list a submitted job yet


class Unreachable(UserError):
    """An engine does not respond: it is down, denies access, or times out."""


class RequestRejected(UserError):
    """An engine rejects a request; the message says why."""


class Share(NamedTuple):
    """Free and total amount of a resource."""

    free: int
    total: int


class Capacity(NamedTuple):
    """Resources of an engine.

    Attributes:
        nodes: number of active nodes.
        cpus, gpus: processors and GPUs, over all nodes.
    """

    nodes: int
    cpus: Share
    gpus: Share


class Request(NamedTuple):
    """Resources that a run requests from an engine.

    Attributes:
        devices: one for each process of a node: "cpu", "gpu" for any GPU, on this machine also "cuda:0" and so on.
        share: run at once, next to the runs that hold the devices; on this machine only.
        nodes: number of nodes.
        minutes: time limit; None for the engine's own limit.
    """

    devices: tuple[str, ...] = ("cpu",)
    share: bool = False
    nodes: int = 1
    minutes: int | None = None

    @property
    def gpus(self) -> bool:
        """Whether each process needs a GPU."""
        return self.devices[0] not in ("cpu", "mps")


class Handle(NamedTuple):
    """Identifies a run's job to its engine.

    Attributes:
        folder: the run's folder.
        engine_name: `HERE`, or the cluster's name.
        job: unique on the cluster and chosen before submission, so that submitting twice starts one job.
        submitted: unix time [s].
    """

    folder: Path
    engine_name: str
    job: str
    submitted: float


class JobStatus(NamedTuple):
    """Status of a run, as its engine reports it.

    Attributes:
        state: waiting (in the queue), running, retrying (its processes died and are restarted), gone.
        reason: explanation for the user; "" for none.
        starts: expected start of a waiting run, unix time [s].
        nodes: machines that it runs on.
    """

    state: Literal["waiting", "running", "retrying", "gone"]
    reason: str = ""
    starts: float | None = None
    nodes: tuple[str, ...] = ()


class Engine(Protocol):
    """Computes runs. Every call returns within seconds.

    Attributes:
        name: the name that users select.
    """

    name: str

    def capacity(self) -> Capacity:
        """Return the total and free resources.

        Raises:
            Unreachable: the engine does not respond.
        """

    def submit(self, folder: Path, request: Request) -> Handle:
        """Start or queue the run in this folder.

        Raises:
            InvalidRun: the run is active already.
            RequestRejected: the engine can never provide these resources.
            Unreachable: the engine does not respond.
        """

    def submit_all(self, folders: Sequence[Path], request: Request) -> None:
        """Start or queue runs in turn, as `submit` does; those before a failure stay submitted."""
        for folder in folders:
            self.submit(folder, request)

    def status(self, handle: Handle) -> JobStatus:
        """Return the status of a run.

        Raises:
            Unreachable: the engine does not respond.
        """

    def statuses(self, handles: Sequence[Handle]) -> Iterator[tuple[Handle, JobStatus | Exception]]:
        """Yield the status of each run, or the exception that its query raised.

        The default queries one by one; clusters override it with a single request.
        """
        return query_each(lambda: self.status, handles)

    def request_stop(self, folder: Path) -> None:
        """Ask a run to finish its step, save, and exit; a waiting run leaves the queue.

        The request is the file `stop` in the run's folder, so it also works while the engine is unreachable: the
        trainer checks for it, and so does a job when it starts.
        """

    def kill(self, handle: Handle) -> None:
        """Kill a run, and return when it is over.

        Raises:
            Unreachable: the engine does not respond.
        """


def query_each(
    ask: Callable[[], Callable[[Handle], JobStatus]], handles: Sequence[Handle]
) -> Iterator[tuple[Handle, JobStatus | Exception]]:
    """Yield the status of each run, or the exception that its query raised.

    Args:
        ask: makes the request that all runs share, and returns a function from handle to status.
    """
    try:
        status_of = ask()
    except Exception as error:
        yield from ((handle, error) for handle in handles)
        return
    for handle in handles:
        try:
            answer: JobStatus | Exception = status_of(handle)
        except Exception as error:
            answer = error
        yield handle, answer


def read_handle(folder: Path) -> Handle | None:
    """Return the handle of a cluster's run; None for a run of this machine, or for a copy of a cluster's run."""
    values = read_json(folder / HANDLE)
    engine_name = values.get("engine", values.get("place"))  # "place" in older runs
    job, submitted = values.get("job"), values.get("submitted")
    if not (
        is_text(engine_name)
        and NAME.fullmatch(engine_name)
        and is_text(job)
        and _JOB.fullmatch(job)
        and is_number(submitted)
    ):
        return None
    # A copy of a run's folder has another name than the job in its handle.
    if job.rpartition(".")[0] != folder.name:
        return None
    return Handle(folder, engine_name, job, submitted)


def write_handle(handle: Handle, request: Request) -> None:
    """Write the handle and the requested resources of a cluster's run, before it is submitted."""
    resources = request._asdict() | {"devices": list(request.devices)}
    identity = {"engine": handle.engine_name, "job": handle.job, "submitted": handle.submitted}
    write_json(handle.folder / HANDLE, identity | {"request": resources})


def read_request(folder: Path) -> Request:
    """Return the resources that were requested for a run; its job reads them on the cluster.

    Raises:
        Unreadable: the handle is damaged.
    """
    stated = read_json(folder / HANDLE).get("request")
    if isinstance(stated, dict):
        for name in ("workers", "dry_run"):  # of earlier versions, whose waiting jobs are still to run
            stated.pop(name, None)
    request = as_tuple(Request, stated, HANDLE)
    if not request.devices:
        raise Unreadable(f"{HANDLE} cannot be read: it names no device.")
    return request


def next_handle(folder: Path, engine_name: str, last: int = 0) -> Handle:
    """Return the handle of another attempt at the run in this folder.

    Args:
        last: number of the last job submitted, successfully or not.
    """
    before = read_handle(folder)
    number = max(int(before.job.rpartition(".")[2]) if before else 0, last) + 1
    return Handle(folder, engine_name, f"{folder.name}.{number}", time.time())


def is_new(handle: Handle) -> bool:
    """Whether an engine may not list a job yet: it was submitted within `GRACE_SECONDS` and has written nothing."""
    begun = any((handle.folder / name).exists() for name in ("heartbeat", "outcome.json"))
    return not begun and time.time() - handle.submitted < GRACE_SECONDS


def mark_ended(handle: Handle) -> None:
    """Record that a job is gone for good, because engines forget ended jobs."""
    write_json(handle.folder / _OVER, {"job": handle.job})


def has_ended(handle: Handle) -> bool:
    """Whether this job, not an earlier one of the run, is recorded as gone."""
    return read_json(handle.folder / _OVER).get("job") == handle.job


def record_end(handle: Handle, reason: str) -> None:
    """Record that a job is over, as stopped unless the trainer wrote an outcome; "stopped" overrides "failed"."""
    path = handle.folder / "outcome.json"
    if read_json(path).get("outcome") == "failed":
        path.unlink()
    record_outcome(handle.folder, "stopped", reason)
    mark_ended(handle)


def request_stop(engine: Engine, folder: Path) -> None:
    """Request a cluster's run to stop through the file, and cancel its job if it still waits."""
    with write_errors(folder):
        (folder / "stop").touch()
    handle = read_handle(folder)
    with suppress(Unreachable):
        if handle and engine.status(handle).state == "waiting":
            engine.kill(handle)
            cancel_if_requested(handle)


def claim_job(folder: Path, job: str) -> Handle | None:
    """Return the handle of a job's run, called when the job starts; None if the job must not run.

    It must not if another job has replaced it, if it is over (Ray starts jobs that were stopped while pending), or if a
    person has stopped the run.
    """
    handle = read_handle(folder)
    return None if handle is None or handle.job != job or has_ended(handle) or cancel_if_requested(handle) else handle


def end_when_replaced(handle: Handle, end: Callable[[], object]) -> None:
    """Call `end` when the run gets another job; watches in the background while this job works.

    A run without a heartbeat may have been declared over and resumed, while this job was only cut off from storage.
    """

    def wait() -> None:
        while (now := read_handle(handle.folder)) is None or now.job == handle.job:
            time.sleep(_REPLACED_SECONDS)
        print("The run has another job, so this one ends.", flush=True)
        end()

    threading.Thread(target=wait, daemon=True, name="ends when replaced").start()


def cancel_if_requested(handle: Handle) -> bool:
    """Whether a person stopped the run before it began; if so, record it as stopped and over."""
    if not any((handle.folder / request).exists() for request in ("stop", "kill")):
        return False
    write_json(handle.folder / "outcome.json", {"outcome": "stopped", "reason": CANCELLED, "t": time.time()})
    mark_ended(handle)
    return True


def _last_number(lock: int) -> int:
    """Return the number of the job submitted last, which the engine may have accepted without responding."""
    sent = os.pread(lock, 7, 0)  # a name of a job has at most six digits
    return int(sent) if sent.isdigit() and len(sent) < 7 else 0


@contextmanager
def submitting(engine: Engine, folder: Path, request: Request) -> Iterator[Handle]:
    """Yield the handle of another attempt for the engine to submit, under a lock against concurrent submissions.

    On failure the run's files are restored. If the job started anyway, it finds another job's handle and exits.

    Raises:
        InvalidRun: the run is active, or is being submitted by another process.
    """
    with write_errors(folder):
        lock = os.open(folder / "submit.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not acquire_lock(lock):
            raise InvalidRun("This run is already being started.")
        if (last := read_handle(folder)) and engine.status(last).state != "gone":
            if not has_ended(last):
                raise InvalidRun("This run is already active.")
            engine.kill(last)  # its outcome is recorded; it is only shutting down
        files = [folder / name for name in (HANDLE, "outcome.json")]
        with write_errors(folder):
            contents = [file.read_bytes() if file.is_file() else None for file in files]
            forget_attempt(folder)
            handle = next_handle(folder, engine.name, _last_number(lock))
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
