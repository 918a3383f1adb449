"""Distribute a measurement over processes and wait for it; computed parts are kept, and a repeated call continues."""

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.devices import visibility
from vit.errors import InvalidConfig, InvalidRun, UserError
from vit.files import acquire_lock
from vit.paths import environment_with_package, runs_folder
from vit.progress import tqdm
from vit.runs.batch import cluster_dry_run, parts
from vit.runs.batch.parts import Measurement
from vit.runs.batch.tasks import TASKS
from vit.runs.engines.clusters import downloads_of, find_cluster
from vit.runs.engines.contract import (
    HERE,
    Engine,
    Handle,
    JobStatus,
    Request,
    RequestRejected,
    Unreachable,
    is_new,
    read_handle,
)
from vit.runs.engines.factory import cluster_engine
from vit.runs.engines.local import Local
from vit.runs.scheduler import gpu_names
from vit.training.run_folder import forget_attempt, read_json

_PAUSE_SECONDS = 0.5  # [s] between two checks of the folder
_ASK_SECONDS = 5.0  # [s] between two requests to an engine
_MOST_PROCESSES = 64  # default limit


def measure(
    measurement: Measurement,
    checkpoint: Checkpoint,
    *,
    on: str = HERE,
    workers: int | None = None,
    device: str = "cpu",
    bar: bool = False,
) -> Any:
    """Compute a measurement in several processes, with one thread each, or on a cluster with its `cpus`.

    Args:
        on: this machine, or the name of a cluster.
        workers: number of processes; None for as many as there are free resources.
        device: device of each process, "cpu" or "gpu".

    Returns:
        what the task's `combined` returns.

    Raises:
        UserError: a problem with the checkpoint, the data or the cluster.
    """
    if workers is not None and workers < 1:
        raise InvalidConfig(f"--workers must be at least 1, not {workers}.")
    if device not in ("cpu", "gpu"):
        raise InvalidConfig(f"--device is cpu or gpu, not {device}.")
    measurement = _with_absolute_paths(measurement)
    if on == HERE:
        folder = parts.folder_of(runs_folder(), measurement, checkpoint)
    else:
        cluster = find_cluster(on)
        root = downloads_of(cluster, measurement.data, measurement.data_root)
        folder = parts.folder_of(cluster.runs, measurement._replace(data_root=root), checkpoint)
        copy = folder / "checkpoint" / checkpoint.name
        if not copy.exists():
            save_checkpoint(copy, checkpoint.model, checkpoint.labels, checkpoint.preprocess)
        measurement = measurement._replace(data_root=root, checkpoint=str(copy))
    parts.write_measurement(folder, measurement)
    with _folder_lock(folder):
        try:
            if on == HERE:
                _measure_locally(folder, workers, device, bar)
            else:
                _measure_on_cluster(
                    folder, cluster_engine(on), Request((device,), workers=workers or _free_processes(on, device)), bar
                )
        except RequestRejected:
            if not parts.done(folder):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        except KeyboardInterrupt:
            raise KeyboardInterrupt("Stopped. Finished parts are kept; repeat the command to continue.") from None
        computed = parts.read_parts(folder)
        try:
            return TASKS[measurement.task].combined(computed)
        except (KeyError, ValueError, TypeError, IndexError) as error:
            raise InvalidRun("The results of some parts do not fit together. Repeat the command.") from error
        finally:
            shutil.rmtree(folder, ignore_errors=True)  # the data may have changed at the next call


def _with_absolute_paths(measurement: Measurement) -> Measurement:
    kind, colon, path = measurement.data.partition(":")
    data = kind + colon + (os.path.abspath(Path(path).expanduser()) if colon else path)
    return measurement._replace(data=data, data_root=os.path.abspath(measurement.data_root))


def _free_processes(on: str, device: str) -> int:
    capacity = cluster_engine(on).capacity()
    free = capacity.gpus.free if device == "gpu" else capacity.cpus.free // find_cluster(on).cpus
    return max(1, min(free, _MOST_PROCESSES))


@contextmanager
def _folder_lock(folder: Path) -> Iterator[None]:
    """Ensure that one command at a time waits for a measurement, because it removes the folder at the end."""
    lock = os.open(folder / "wait.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not acquire_lock(lock):
            raise UserError("Another command measures this already. Wait for its result.")
        yield
    finally:
        os.close(lock)


def _measure_locally(folder: Path, workers: int | None, device: str, bar: bool) -> None:
    """Run worker processes on this machine, and kill them on exit.

    Args:
        workers: None for one per processor, or per GPU.
    """
    names = gpu_names() if device == "gpu" else []
    if device == "gpu" and not names:
        raise InvalidConfig("--device gpu: this machine shows none.")
    workers = workers or min(len(names) or Local().capacity().cpus.total, _MOST_PROCESSES)
    forget_attempt(folder)
    environment = environment_with_package() | {"OMP_NUM_THREADS": "1"}
    with ExitStack() as stack, (folder / "log.txt").open("ab") as log:
        processes = []
        for number in range(workers):
            command = [sys.executable, "-m", "vit.runs.batch.worker", str(folder), str(number), str(workers)]
            visible = visibility([names[number % len(names)]]) if device == "gpu" else {"CUDA_VISIBLE_DEVICES": ""}
            process = subprocess.Popen(
                command,
                env=environment | visible,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            processes.append(stack.enter_context(_ended_at_exit(process)))

        def status() -> JobStatus:
            return JobStatus("running" if any(process.poll() is None for process in processes) else "gone")

        _wait_for_parts(folder, status, bar)
        if not _is_complete(folder):
            raise UserError(_failure_reason(folder, ""))


@contextmanager
def _ended_at_exit(process: "subprocess.Popen[bytes]") -> Iterator["subprocess.Popen[bytes]"]:
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _measure_on_cluster(folder: Path, engine: Engine, request: Request, bar: bool) -> None:
    """Run worker processes on a cluster, and resubmit as long as they make progress."""
    handle = read_handle(folder)  # of an earlier command, whose job may still run
    while not _is_complete(folder):
        before = len(parts.done(folder))
        if handle is None or engine.status(handle).state == "gone":
            handle = engine.submit(folder, request)
        try:
            last = _wait_for_parts(folder, partial(_status_or_waiting, engine, handle), bar)
        except KeyboardInterrupt:
            with suppress(UserError):
                engine.kill(handle)
            raise
        failed = read_json(folder / "outcome.json").get("outcome") == "failed"
        if not _is_complete(folder) and (failed or len(parts.done(folder)) == before):
            raise UserError(_failure_reason(folder, last.reason))
    with suppress(UserError):  # ends processes that still compute parts that others have finished
        if handle and engine.status(handle).state != "gone":
            engine.kill(handle)


def _status_or_waiting(engine: Engine, handle: Handle) -> JobStatus:
    """Return the engine's status; if it does not respond, report that as waiting."""
    try:
        latest = engine.status(handle)
    except Unreachable as error:
        return JobStatus("waiting", str(error))
    return JobStatus("waiting") if latest.state == "gone" and is_new(handle) else latest


def _wait_for_parts(folder: Path, query_status: Callable[[], JobStatus], bar: bool) -> JobStatus:
    """Show progress until all parts are computed or no process works on them; returns the last status."""
    queried_at, latest = 0.0, JobStatus("waiting")
    with tqdm(unit="parts", leave=False, disable=not bar) as line:
        while True:
            if time.monotonic() - queried_at > _ASK_SECONDS:
                queried_at, latest = time.monotonic(), query_status()
            plan, done = parts.read_plan(folder), len(parts.done(folder))
            if plan and line.total is None:
                line.reset(plan["parts"])
                line.initial = done  # tqdm must not count parts of an earlier attempt in its rate
            line.n = done
            line.set_postfix_str(latest.reason if latest.state == "waiting" else "")
            if latest.state == "gone" or _is_complete(folder):
                return latest
            time.sleep(_PAUSE_SECONDS)


def _is_complete(folder: Path) -> bool:
    plan = parts.read_plan(folder)
    return bool(plan) and len(parts.done(folder)) >= plan["parts"]


def _failure_reason(folder: Path, status: str) -> str:
    """Return why all processes ended before the measurement was complete."""
    if reason := read_json(folder / "outcome.json").get("reason"):
        return str(reason)
    status = f"{status} {cluster_dry_run.last_line_of_log(folder)}".strip()
    return f"The measurement ended early. {status} Finished parts are kept; repeat the command to continue."
