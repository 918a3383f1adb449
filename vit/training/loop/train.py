"""One attempt at a run: its folder, locks, signals and outcome; the training loop is `vit.training.loop.trainer`.

    python -m vit train --preset shapes
    python -m vit train --preset cifar-cpu --data folder:data/cifar10
    torchrun --standalone --nproc-per-node=2 -m vit train --preset cifar --run-dir DIR

`vit/training/loop/presets.py` states cost and accuracy of each preset. A run is a folder:

    config.json        validated settings
    base.json          settings from the initial checkpoint, see `vit.training.loop.fine_tuning`
    environment.json   versions, commit, hardware, seed, command
    metrics.jsonl      one record per line, see `vit.training.loop.metrics`
    events/            the same for TensorBoard
    probes/            explanations of a few pictures after every epoch, see `vit.training.loop.snapshot_writer`
    checkpoints/best, checkpoints/last   can be opened in the explorer
    checkpoints/state.pt                 everything that --resume needs, in one file
    checkpoints/state.previous.pt        the previous one, in case that one is damaged

and further files that `vit.training.runs` describes.

There are three splits of pictures (`vit.data.datasets` describes how they are made). The model trains on `train`.
`validation` is for model selection: it is evaluated every `validate_every` epochs, in the precision of the training,
and the best epoch is that with the highest accuracy, at a tie that with the lowest loss. `patience` counts epochs
without a higher accuracy. If weights are averaged (`ema`), both raw and averaged weights are evaluated, and the better
ones represent the epoch. `test` is evaluated once, at the end, in float32, with the weights that validation selected:
that is the accuracy to publish. An extended run evaluates it again only if validation then selects other weights.

Every random choice is a function of the seed and the step (`vit.data.augment.RandomGenerators`). The state is replaced
atomically with each validation, every few minutes in between, and when a person stops the run. On a CPU, a run that is
killed at any moment and resumed therefore repeats exactly what it would have done. On a GPU the last bits of a step
vary between runs, because fused attention adds gradients in no fixed order.
"""

import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import IO

import torch
import torch.distributed as dist

from vit.errors import InvalidConfig, InvalidRun, UserError
from vit.files import acquire_lock, check_locks
from vit.out_of_memory import describe_failure, is_out_of_memory
from vit.paths import INSTALLED, PROJECT
from vit.training.loop.config import TrainConfig
from vit.training.loop.distributed import Process, set_up_process
from vit.training.loop.fine_tuning import Base, base_of, write_base
from vit.training.loop.metrics import read_metrics
from vit.training.loop.recorder import Diverged
from vit.training.loop.run_folder import (
    FORMAT,
    STATES,
    check_resumable,
    hold_run,
    is_full,
    read_json,
    record_outcome,
    write_about,
    write_json,
)
from vit.training.loop.step import OutOfMemory
from vit.training.loop.trainer import Result, Trainer, hardware
from vit.untrusted import brief, is_whole

__all__ = ["DiskFull", "Diverged", "Result", "Trainer", "train"]
_RESERVE_BYTES = 1 << 16  # [bytes] of disk space that are released to write the outcome to a full disk


class DiskFull(UserError):
    """The disk is too full to save the state."""


def train(config: TrainConfig, run: Path, *, resume: bool = False, name: str = "") -> Result:
    """Train a model, with all output in the folder `run`.

    SIGTERM, or a file named "stop" in the folder, ends the run after the current step and saves its state.

    Args:
        config: settings.
        run: a new or empty folder; with `resume`, that of an earlier attempt.
        resume: continue from the last saved state.
        name: of a new run, as page Runs shows it; "" for one after the folder.

    Returns:
        The evaluations of the best epoch; only on the leading process.

    Raises:
        InvalidConfig, InvalidDataset: the settings cannot be used.
        InvalidCheckpoint: the initial checkpoint cannot be opened.
        InvalidRun: another process trains in this folder, another program did, or there is no valid state to resume
            from.
        Diverged: the loss became NaN or infinite; the last complete epoch is kept.
        DiskFull, OutOfMemory: the last complete state is kept.
        UserError: this system does not support locks.
    """
    check_locks()
    if not resume and run.exists() and (not run.is_dir() or any(run.iterdir())):
        raise InvalidConfig(f"{run} exists and is not empty. Continue it with --resume {run}, or choose another --run.")
    if resume:
        if loop := read_json(run / "environment.json").get("loop"):
            raise InvalidRun(f"{run.name} was trained by another program ({brief(loop)}), which has to continue it.")
        check_resumable(run)
    base = base_of(config, run)
    process = set_up_process(config)
    try:
        with _open_run(run, process):
            return _run_trainer(config, run, process, resume, base, name)
    finally:
        if process.opened:
            dist.destroy_process_group()


def _run_trainer(
    config: TrainConfig, run: Path, process: Process, resume: bool, base: Base | None, name: str
) -> Result:
    resumed = resume and any((run / "checkpoints" / name).exists() for name in STATES)
    try:
        with _folder_errors(run):
            if process.is_rank_zero and not resume:
                write_about(run, name)
            attempt = _write_environment(config, run, process) if process.is_rank_zero else 0
            if base and process.is_rank_zero:
                write_base(run, base)
            job = Trainer(config, run, process, base=base, resumed=resumed)
            if resumed:
                job.load()
            with _stop_signal() as stop:
                result, ending = job.train(attempt, stop)
    except BaseException as error:
        if not resume and not (run / "metrics.jsonl").exists() and isinstance(error, UserError):
            if process.is_rank_zero:  # nothing was started
                shutil.rmtree(run)
            raise
        (run / "reserve").unlink(missing_ok=True)
        with suppress(OSError):
            record_outcome(run, "stopped" if isinstance(error, KeyboardInterrupt) else "failed", _error_sentence(error))
        if is_full(error):
            raise DiskFull(_error_sentence(error)) from error
        if is_out_of_memory(error):
            raise OutOfMemory(_error_sentence(error)) from error
        raise
    if process.is_rank_zero:
        record_outcome(run, *ending)
    return result


@contextmanager
def _open_run(run: Path, process: Process) -> Iterator[None]:
    """Create the run's folder, hold the run's shared lock, and exclude other writers."""
    with ExitStack() as stack:
        try:
            if process.is_rank_zero:
                run.mkdir(parents=True, exist_ok=True)
            if process.world > 1:
                dist.barrier()
            stack.enter_context(hold_run(run))
            if process.is_rank_zero:
                _lock_writer(run, stack.enter_context((run / "writer.lock").open("w")))
                for leftover in ("outcome.json", "heartbeat"):  # left by an attempt that a cluster killed
                    (run / leftover).unlink(missing_ok=True)
                (run / "reserve").write_bytes(os.urandom(_RESERVE_BYTES))
                stack.callback((run / "reserve").unlink, missing_ok=True)
        except OSError as error:
            if is_full(error):
                raise DiskFull(_error_sentence(error)) from error
            raise InvalidConfig(f"The run's folder {run} cannot be written: {error.strerror}.") from error
        yield


def _lock_writer(run: Path, lock: IO[str]) -> None:
    if not acquire_lock(lock.fileno()):
        raise InvalidRun(f"Another process trains in {run}. Stop that one first.")


@contextmanager
def _stop_signal() -> Iterator[threading.Event]:
    """Yield an event that SIGTERM sets; in threads other than the main one, signals cannot be handled."""
    stop = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before = signal.signal(signal.SIGTERM, lambda *_: stop.set())
    try:
        yield stop
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _folder_errors(run: Path) -> Iterator[None]:
    """Convert errors of the run's own files: one may be another user's, or there may be a folder in its place."""
    try:
        yield
    except OSError as error:
        file = Path(str(error.filename2 or error.filename))
        if is_full(error) or not file.is_relative_to(run):
            raise
        raise InvalidRun(f"{file} cannot be used: {error.strerror}. Move it away, and resume the run.") from error


def _error_sentence(error: BaseException) -> str:
    """Explain the failure of a run, for people."""
    if isinstance(error, UserError):
        return str(error)
    if is_full(error):
        return "The disk is full. Free some space and resume: the last complete state is kept."
    if is_out_of_memory(error):
        return describe_failure(error, "Training", "Choose a smaller model or image_size, or close other programs.")
    if isinstance(error, KeyboardInterrupt):
        return "Interrupted. Resume continues from the last saved state."
    return f"{type(error).__name__}: {error}. The log holds the traceback."


def _write_environment(config: TrainConfig, run: Path, process: Process) -> int:
    """Write config and environment before anything slow; return the number of the attempt, from 0."""
    environment = run / "environment.json"
    attempt = read_json(environment).get("attempt")
    if is_whole(attempt):
        attempt += 1
    else:  # a new run, or the file is damaged: each attempt has recorded its start
        attempt = sum(record["kind"] == "start" for record in read_metrics(run / "metrics.jsonl"))
    write_json(run / "config.json", config.model_dump(mode="json"))
    facts = {
        "format": FORMAT,
        "command": sys.argv,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "commit": _git_commit(),
        "host": platform.node(),
        "hardware": hardware(process.device),
        "devices": process.world,
        "bfloat16": process.autocast,
        "threads": torch.get_num_threads(),
        "seed": config.seed,
        "attempt": attempt,
    }
    write_json(environment, facts)
    return attempt


def _git_commit() -> str | None:
    """Return the commit of the training code, with "+" if files differ from it; None outside a repository."""
    if INSTALLED:  # a surrounding repository is not ours
        return None
    git = ["git", "-C", str(PROJECT), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    with suppress(OSError, subprocess.SubprocessError):
        return subprocess.run(git, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    return None
