"""A measurement, given to several processes and waited for; what is done is kept, and asked again it goes on."""

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
from vit.errors import InvalidConfig, UserError
from vit.files import acquire_lock
from vit.paths import environment_with_package, runs_folder
from vit.progress import tqdm
from vit.runs.batch import cluster_dry_run, parts
from vit.runs.batch.parts import Measurement
from vit.runs.batch.tasks import TASKS
from vit.runs.engines.clusters import downloads_of, find_cluster
from vit.runs.engines.contract import HERE, Engine, Handle, Look, Refused, Request, Unreachable, is_new, read_handle
from vit.runs.engines.factory import cluster_engine
from vit.runs.engines.local import Local
from vit.training.run_folder import forget_attempt, read_json

_PAUSE_SECONDS = 0.5  # [s] between two looks at the folder
_ASK_SECONDS = 5.0  # [s] between two questions to an engine
_MOST_PROCESSES = 64  # unless somebody asks for more


def measure(
    measurement: Measurement,
    checkpoint: Checkpoint,
    *,
    on: str = HERE,
    workers: int | None = None,
    device: str = "cpu",
    bar: bool = False,
) -> Any:
    """Do a measurement in several processes, each with one thread here and with the cluster's `cpus` there.

    Args:
        on: this machine, or a cluster by its name.
        workers: processes; None for as many as have room.
        device: of each, "cpu" or "gpu".

    Returns:
        what the function of `TASKS` makes of all parts.

    Raises:
        UserError: what is wrong with checkpoint, data or cluster.
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
        except Refused:
            if not parts.done(folder):
                shutil.rmtree(folder, ignore_errors=True)
            raise
        except KeyboardInterrupt:
            raise KeyboardInterrupt("Stopped. What is done is kept: the same command goes on from there.") from None
        result = TASKS[measurement.task].combined(parts.read_parts(folder))
        shutil.rmtree(folder, ignore_errors=True)  # the data may be others when it is asked for again
    return result


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
    """Nobody else waits for the same measurement, and removes it at its end."""
    lock = os.open(folder / "wait.lock", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        if not acquire_lock(lock):
            raise UserError("Another command measures this already. Wait for its result.")
        yield
    finally:
        os.close(lock)


def _measure_locally(folder: Path, workers: int | None, device: str, bar: bool) -> None:
    """Processes of this machine, which end with this one.

    Args:
        workers: None for one on each processor, or GPU.
    """
    _, cpus, gpus = Local().capacity()
    if device == "gpu" and not gpus.total:
        raise InvalidConfig("--device gpu: this machine shows none.")
    workers = workers or min(gpus.total if device == "gpu" else cpus.total, _MOST_PROCESSES)
    forget_attempt(folder)
    environment = environment_with_package() | {"OMP_NUM_THREADS": "1"}
    with ExitStack() as stack, (folder / "log.txt").open("ab") as log:
        processes = []
        for number in range(workers):
            command = [sys.executable, "-m", "vit.runs.batch.worker", str(folder), str(number), str(workers)]
            visible = {"CUDA_VISIBLE_DEVICES": str(number % gpus.total) if device == "gpu" else ""}
            process = subprocess.Popen(
                command,
                env=environment | visible,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            processes.append(stack.enter_context(_ended_at_exit(process)))

        def look() -> Look:
            return Look("running" if any(process.poll() is None for process in processes) else "gone")

        _wait_for_parts(folder, look, bar)
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
    """Processes of a cluster, submitted again as long as that helps."""
    handle = read_handle(folder)  # of a command that waited before
    while not _is_complete(folder):
        before = len(parts.done(folder))
        if handle is None or engine.look(handle).word == "gone":
            handle = engine.submit(folder, request)
        try:
            last = _wait_for_parts(folder, partial(_look_patiently, engine, handle), bar)
        except KeyboardInterrupt:
            with suppress(UserError):
                engine.kill(handle)
            raise
        failed = read_json(folder / "outcome.json").get("outcome") == "failed"
        if not _is_complete(folder) and (failed or len(parts.done(folder)) == before):
            raise UserError(_failure_reason(folder, last.reason))
    with suppress(UserError):  # processes that help others with the last parts
        if handle and engine.look(handle).word != "gone":
            engine.kill(handle)


def _look_patiently(engine: Engine, handle: Handle) -> Look:
    """What an engine says; one that gives no answer may do so later."""
    try:
        latest = engine.look(handle)
    except Unreachable as error:
        return Look("waiting", str(error))
    return Look("waiting") if latest.word == "gone" and is_new(handle) else latest


def _wait_for_parts(folder: Path, look: Callable[[], Look], bar: bool) -> Look:
    """Draw how far it is, until all is done or nobody works on it; returns what was said last."""
    looked_at, latest = 0.0, Look("waiting")
    with tqdm(unit="parts", leave=False, disable=not bar) as line:
        while True:
            if time.monotonic() - looked_at > _ASK_SECONDS:
                looked_at, latest = time.monotonic(), look()
            plan, done = parts.read_plan(folder), len(parts.done(folder))
            if plan and line.total is None:
                line.reset(plan["parts"])
                line.initial = done  # what was done before does not tell how fast it goes
            line.n = done
            line.set_postfix_str(latest.reason if latest.word == "waiting" else "")
            if latest.word == "gone" or _is_complete(folder):
                return latest
            time.sleep(_PAUSE_SECONDS)


def _is_complete(folder: Path) -> bool:
    plan = parts.read_plan(folder)
    return bool(plan) and len(parts.done(folder)) >= plan["parts"]


def _failure_reason(folder: Path, status: str) -> str:
    """Why nobody works on it any more although it is not done."""
    if reason := read_json(folder / "outcome.json").get("reason"):
        return str(reason)
    status = f"{status} {cluster_dry_run.last_line_of_log(folder)}".strip()
    return f"The measurement ended before it was done. {status} The same command goes on from what is done."
