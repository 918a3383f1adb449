"""Write a run's folder from any training loop, for pages Runs and Explore.

    with vit.RunWriter(name="my run", epochs=10, steps_per_epoch=len(loader), pictures=..., labels=...) as writer:
        ...
        writer.log_step(step, loss=loss, lr=lr)
        ...
        writer.log_epoch(epoch, model, val_loss=..., val_accuracy=...)

Once constructed, the writer raises no errors: it reports each once, in the log and on page Runs. It does not change the
training, which stays bit-identical: the model's mode, gradients and random number generators are restored.
`vit.training.other_loops.callbacks` uses it for Lightning and for transformers' Trainer.
"""

import functools
import logging
import math
import os
import platform
import sys
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, Concatenate, Literal, ParamSpec, Self

import torch
import torch.distributed as dist
from PIL import Image
from torch import Tensor, nn

from vit.errors import InvalidConfig, InvalidRun
from vit.files import check_locks
from vit.images.preprocess import Preprocess
from vit.paths import runs_folder
from vit.training.loop.metrics import MetricsReader, MetricsWriter, best_epoch, evaluation_key
from vit.training.loop.run_folder import (
    FORMAT,
    MAX_NAME,
    MOST_EPOCHS,
    RECORD_STEPS,
    Heartbeat,
    check_folder_name,
    lock_run,
    new_id,
    read_json,
    record_outcome,
    unlock_run,
    write_about,
    write_json,
)
from vit.training.other_loops.live_snapshots import Attention, LiveSnapshots, follow
from vit.untrusted import counted, is_whole

_RANKS = ("RANK", "SLURM_PROCID", "LOCAL_RANK")  # environment variables in which launchers set the rank

_log = logging.getLogger(__name__)
_Arguments = ParamSpec("_Arguments")


def _never_raises(
    method: Callable[Concatenate["RunWriter", _Arguments], None],
) -> Callable[Concatenate["RunWriter", _Arguments], None]:
    """Return early in all processes but rank 0, and catch all errors."""

    @functools.wraps(method)
    def call(self: "RunWriter", /, *arguments: _Arguments.args, **named: _Arguments.kwargs) -> None:
        if self.folder is None or os.getpid() != self._process or self._closed or _rank():
            return
        began = time.perf_counter()
        try:
            method(self, *arguments, **named)
        except Exception as error:
            self._warn(method.__name__, f"{method.__name__} failed: {type(error).__name__}: {error}")
        self.seconds += time.perf_counter() - began

    return call


class RunWriter:
    """Writes a run's folder from a foreign training loop.

    With several processes, only rank 0 writes; calls in the others do nothing.

    Args:
        folder: new or empty; its name has lower-case letters, digits and dashes. None for a new one among the runs of
            page Runs.
        epochs: length of the whole training.
        steps_per_epoch: updates of the weights per epoch.
        pictures: pictures to follow, for example of the validation set: PIL, or uint8 (n, channels, height, width) at
            the model's input size. Six are chosen, from all classes.
        labels: true class of each picture.
        classes: one name per class; None for the model's own.
        preprocess: mean and deviation that the model is trained with; None for the usual ones of its library, which
            are noted on page Runs.
        attention: for models that cannot be converted: maps the model and normalised pictures (n, channels, height,
            width) to the attention of its L blocks, (n, H, N, N) each, or to an output with these as `attentions` and
            optionally `logits`, like transformers' models. Called after each epoch, in evaluation mode, without
            gradients.
        name: display name.
        settings: settings to list on page Runs: batch size, optimizer, and so on. `data` is the name of the dataset.
        batch_size: pictures per step, over all processes; for the rate of pictures per second.
        loop: display name of the training loop.
        resume: continue the run in `folder`, which a RunWriter wrote.

    Attributes:
        folder: the run's folder; None in processes that do not write.
        seconds: time spent in calls so far [s].

    Raises:
        InvalidConfig: an argument is invalid, or the folder cannot be written.
        InvalidRun: another process writes this run, or there is none to resume.
        UserError: this system has no file locks.
    """

    folder: Path | None
    seconds: float

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        epochs: int,
        steps_per_epoch: int,
        pictures: Sequence[Image.Image] | Tensor | None = None,
        labels: Sequence[int] | Tensor | None = None,
        classes: Sequence[str] | None = None,
        preprocess: Preprocess | None = None,
        attention: Attention | None = None,
        name: str = "",
        settings: Mapping[str, Any] | None = None,
        batch_size: int | None = None,
        loop: str = "PyTorch",
        resume: bool = False,
    ):
        _check_whole("epochs", epochs, MOST_EPOCHS)
        _check_whole("steps_per_epoch", steps_per_epoch)
        if batch_size is not None:
            _check_whole("batch_size", batch_size)
        self.epochs, self.steps_per_epoch, self.batch_size = epochs, steps_per_epoch, batch_size
        self.classes = list(classes or ())
        followed = follow(pictures, labels, self.classes)
        settings = _check_settings(settings or {}) | {"epochs": epochs}
        name = " ".join((name or (Path(folder).name if folder else loop)).split())[:MAX_NAME]
        path = Path(os.path.abspath(folder)) if folder else runs_folder() / new_id(name)
        check_folder_name(path)
        self.folder, self.seconds = None, 0.0
        self._process, self._closed, self._warned = os.getpid(), False, set[str]()
        if _rank():
            return
        check_locks()
        self._locks: list[int] = []
        try:
            self._open(path, resume)
            self._attempt = self._write_documents(path, name, settings, loop)
        except OSError as error:
            unlock_run(self._locks)
            raise InvalidConfig(f"The run's folder {path} cannot be written: {error.strerror}.") from error
        except BaseException:
            unlock_run(self._locks)
            raise
        self.folder, self.loop = path, loop
        # If the writer is garbage-collected without close, the run reads as interrupted.
        weakref.finalize(self, _release_in_process, self._locks, self._process)
        self._metrics = MetricsWriter(path / "metrics.jsonl")
        self._losses: list[Tensor | float] = []
        self._rate: float | None = None
        self._step, self._recorded = -1, 0  # last step, and last step whose loss is recorded
        self._epoch, self._best = 0, (-2.0, 0.0)
        self._clock, self._heartbeat = time.perf_counter(), Heartbeat(path)
        self._logged, self._device = False, ""
        self._snapshots = LiveSnapshots(path, followed, self.classes, preprocess, attention, self._warn)
        if self._attempt:
            reader = MetricsReader(path / "metrics.jsonl")
            reader.update()
            if best := best_epoch(reader.records):
                self._best = evaluation_key(best.get("accuracy"), best.get("loss"))
        else:
            self._start(0)
        self._write_heartbeat()

    # --- Called by the training loop ----------------------------------------------------------------------------

    @_never_raises
    def log_step(self, step: int, *, loss: Tensor | float, lr: float | None = None) -> None:
        """Log one update of the weights; every 20 steps the mean loss is recorded.

        Args:
            step: number of steps done, over the whole training.
            loss: loss of the batch. A tensor stays on its device until it is recorded.
            lr: learning rate.
        """
        if self._step < 0 and self._attempt:
            self._start(step - 1)
        if step < max(self._step, 1):
            text = f"Step {step} came after step {self._step}. Count steps over the whole training, from 1."
            return self._warn("step", text)
        self._losses.append(loss.detach().clone() if isinstance(loss, Tensor) else float(loss))
        self._rate = None if lr is None else float(lr)
        self._step, self._logged = step, True
        self._write_heartbeat()
        if step - self._recorded >= RECORD_STEPS:
            self._flush()

    @_never_raises
    def log_epoch(
        self,
        epoch: int,
        model: nn.Module | None = None,
        *,
        train_loss: float | None = None,
        val_loss: float | None = None,
        val_accuracy: float | None = None,
        lr: float | None = None,
    ) -> None:
        """Log the end of an epoch: explain the pictures, and save the model if it is the best.

        The best epoch has the highest accuracy, then the lowest loss; without both, it is the last.

        Args:
            epoch: number of epochs done.
            model: the model, in any wrapper; None to skip explanation and checkpoint.
            train_loss, lr: for loops that do not call `log_step`.
            val_loss, val_accuracy: on validation pictures; accuracy from 0 to 1.
        """
        if self._step < 0 and self._attempt:
            self._start((epoch - 1) * self.steps_per_epoch)
        if not self._logged:
            self._step = epoch * self.steps_per_epoch
            self._losses = [] if train_loss is None else [float(train_loss)]
            self._rate = None if lr is None else float(lr)
        self._flush()
        self._epoch = epoch
        loss, accuracy = _finite(val_loss), _finite(val_accuracy)
        if accuracy is not None and not 0 <= accuracy <= 1:
            self._warn("accuracy", f"val_accuracy is {accuracy:g}, and left out: give a share from 0 to 1.")
            accuracy = None
        measured = {"loss": loss, "accuracy": accuracy}
        if any(value is not None for value in measured.values()):
            self._record("validation", epoch=epoch, **{k: v for k, v in measured.items() if v is not None})
        if model is not None:
            self._snapshot(epoch, model, accuracy, loss)
        self._write_heartbeat()
        self._clock = time.perf_counter()

    @_never_raises
    def note(self, text: str) -> None:
        """Record a message for the user."""
        self._record("note", text=text)

    @_never_raises
    def heartbeat(self) -> None:
        """Write the heartbeat, if steps are logged rarely; a run without one for five minutes is shown as stalled."""
        self._write_heartbeat()

    @_never_raises
    def close(self, outcome: Literal["finished", "stopped", "failed"] = "finished", reason: str = "") -> None:
        """Write pending records and the outcome; later calls do nothing.

        A run whose process ends without this is shown as interrupted.
        """
        assert self.folder
        try:
            self._flush()
            self._snapshots.wait()
            if not reason and outcome == "finished" and 0 < self._epoch < self.epochs:
                reason = f"Ended after {self._epoch} of {counted(self.epochs, 'epoch')}."
            record_outcome(self.folder, outcome, reason)
        finally:
            self._snapshots.close()
            self._metrics.close()
            self._closed = True
            unlock_run(self._locks)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if error is None:
            self.close()
        elif isinstance(error, KeyboardInterrupt | SystemExit):
            self.close("stopped", "Interrupted.")
        else:
            self.close("failed", f"{type(error).__name__}: {error}")

    def _snapshot(self, epoch: int, model: nn.Module, accuracy: float | None, loss: float | None) -> None:
        """Explain the pictures, and save the model if it is the best so far."""
        assert self.folder
        score = evaluation_key(accuracy, loss)
        better = score > self._best or score == self._best == evaluation_key(None, None)
        facts = {"epochs": epoch, "validation_accuracy": accuracy, "recipe": f"A training loop of {self.loop}"}
        device = self._snapshots.take(epoch, model, facts if better else None)
        self._best = max(score, self._best)
        if device and device != self._device:
            self._device = device
            write_json(self.folder / "about.json", read_json(self.folder / "about.json") | {"devices": [device]})

    # --- Folder and records -------------------------------------------------------------------------------------

    def _open(self, folder: Path, resume: bool) -> None:
        """Create the folder and lock it."""
        if resume and not (folder / "environment.json").exists():
            raise InvalidRun(f"There is no run in {folder} to resume.")
        if resume and not read_json(folder / "environment.json").get("loop"):
            raise InvalidRun(f"The run in {folder} is not one that a RunWriter wrote. Choose another folder.")
        if not resume and folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise InvalidConfig(f"folder: {folder} is not empty. Choose another one, or continue it with resume=True.")
        folder.mkdir(parents=True, exist_ok=True)
        lock_run(folder, self._locks)

    def _write_documents(self, folder: Path, name: str, settings: dict[str, Any], loop: str) -> int:
        """Write the run's documents; returns the number of the attempt, from 0."""
        before = read_json(folder / "environment.json")
        attempt = before["attempt"] + 1 if is_whole(before.get("attempt")) else 0
        facts = {
            "format": FORMAT,
            "loop": loop,
            "command": sys.argv,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "host": platform.node(),
            "devices": dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1,
            "attempt": attempt,
        }
        write_json(folder / "environment.json", facts)
        write_about(folder, name)
        write_json(folder / "config.json", settings)  # last: this file makes the folder a run
        return attempt

    def _start(self, step: int) -> None:
        """Write the "start" record of this attempt, which replaces what earlier attempts recorded after this step."""
        self._step = self._recorded = step
        self._record(
            "start",
            total_steps=self.epochs * self.steps_per_epoch,
            steps_per_epoch=self.steps_per_epoch,
            epochs=self.epochs,
            **({"batch_size": self.batch_size} if self.batch_size else {}),
            **({"classes": self.classes} if self.classes else {}),
        )

    def _record(self, kind: str, **values: Any) -> None:
        self._metrics.write(kind=kind, step=max(self._step, 0), t=time.time(), attempt=self._attempt, **values)

    def _flush(self) -> None:
        """Record the mean loss since the last record."""
        if not self._losses:
            return
        losses, self._losses = [float(loss) for loss in self._losses], []
        loss, now = math.fsum(losses) / len(losses), time.perf_counter()
        steps, self._recorded = self._step - self._recorded, self._step
        if not math.isfinite(loss):
            return self._warn("loss", f"The loss became {loss} by step {self._step}.")
        facts: dict[str, Any] = {} if self._rate is None else {"lr": self._rate}
        if self.batch_size:
            facts["pictures_per_second"] = round(steps * self.batch_size / max(now - self._clock, 1e-9), 1)
        self._clock = now
        self._record("step", loss=loss, **facts)

    def _write_heartbeat(self) -> None:
        """Write the heartbeat, at most every two seconds."""
        self._heartbeat.write(max(self._step, 0))

    def _warn(self, about: str, text: str) -> None:
        """Report a problem in the log and on page Runs, once per topic."""
        if about in self._warned:
            return
        self._warned.add(about)
        _log.warning("RunWriter: %s", text)
        with suppress(Exception):
            self._record("note", text=text[:1000])


# --- Arguments ------------------------------------------------------------------------------------------------------


def _rank() -> int:
    """Return the rank of this process; rank 0 writes."""
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank()
    return next((int(os.environ[name]) for name in _RANKS if os.environ.get(name, "").isdigit()), 0)


def _release_in_process(locks: list[int], process: int) -> None:
    """Release a run's locks, but not in a forked child, which shares them and may end first."""
    if os.getpid() == process:
        unlock_run(locks)


def _check_whole(name: str, value: object, most: int = 1 << 40) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
        raise InvalidConfig(f"{name} must be a whole number from 1 to {most:,}, not {value!r}.")


def _check_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Validate settings for the list on page Runs."""
    for name, value in settings.items():
        finite = not isinstance(value, float) or math.isfinite(value)
        if not isinstance(name, str) or not isinstance(value, str | int | float | None) or not finite:
            raise InvalidConfig(f"settings: {name} must be text, a number, true, false or None, not {value!r}.")
    return dict(settings)


def _finite(value: float | None) -> float | None:
    return float(value) if value is not None and math.isfinite(float(value)) else None
