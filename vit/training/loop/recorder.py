"""Output of a training run: metrics.jsonl, TensorBoard events, heartbeat, progress bar, experiment tracker."""

import math
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from time import perf_counter as clock
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from vit.confidence import figure, share
from vit.errors import UserError
from vit.progress import tqdm
from vit.training.loop.distributed import Process
from vit.training.loop.evaluation import Evaluation
from vit.training.loop.metrics import MetricsWriter, bottleneck
from vit.training.loop.run_folder import RECORD_STEPS, Heartbeat
from vit.training.loop.tracking import TrackerProcess


class Diverged(UserError):
    """The loss is not finite."""

    def __init__(self, loss: float, step: int):
        super().__init__(
            f"The loss became {loss} by step {step}. Lower the learning rate, or raise warmup_epochs; "
            "the last complete epoch is kept."
        )


class _NullEventWriter:
    """Replaces TensorBoard's writer if that is not installed."""

    def add_scalar(self, *_: object) -> None:
        """Do nothing."""

    flush = close = add_scalar


def _event_writer(folder: Path, step: int) -> Any:
    """Return a writer for TensorBoard events, or, if TensorBoard is missing, a message on stderr and a no-op."""
    try:
        from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415 # optional
    except ModuleNotFoundError:
        print("tensorboard is not installed, so no events are written for it.", file=sys.stderr)
        return _NullEventWriter()
    return SummaryWriter(folder, purge_step=step)


class Stopwatch:
    """Device time between `start` and `stop` [s]; on a GPU it uses events, which do not synchronise."""

    def __init__(self, device: torch.device):
        self._gpu = device.type == "cuda"
        self._started: Any = None
        self._spans: list[tuple[Any, Any]] = []

    def _moment(self) -> Any:
        if not self._gpu:
            return clock()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def start(self) -> None:
        """Start measuring."""
        self._started = self._moment()

    def stop(self) -> None:
        """Stop measuring, until the next `start`."""
        if self._started is not None:
            self._spans.append((self._started, self._moment()))
            self._started = None

    def read(self) -> float:
        """Return the time since the last reading [s]; on a GPU it waits for the measured work."""
        spans, self._spans = self._spans, []
        if spans and self._gpu:
            spans[-1][1].synchronize()
        return sum(begin.elapsed_time(end) / 1000 if self._gpu else end - begin for begin, end in spans)


class Recorder(AbstractContextManager["Recorder"]):
    """Records one attempt of a run; does nothing in processes other than rank 0.

    Args:
        run: the run's folder.
        step: number of steps done before this attempt.
        process: this process.
        attempt: number of times the run was resumed.
        facts: fields of the "start" record: total_steps, steps_per_epoch, batch_size, lr, ...
        best: best validation accuracy before this attempt, 0 to 1.
        decoded_per_second: decoding rate of the training pictures (`vit.data.pictures.Pictures`).
        track: name of the experiment tracker, "" for none.

    Attributes:
        outcome: how the attempt ends, unless an exception ends it.
    """

    def __init__(
        self,
        run: Path,
        step: int,
        process: Process,
        attempt: int,
        facts: dict[str, Any],
        best: float = 0.0,
        decoded_per_second: Callable[[], float | None] = lambda: None,
        track: str = "",
    ):
        self.run, self.process, self.attempt, self.facts = run, process, attempt, facts
        self.losses: list[Tensor] = []
        self.at, self.share = step, 0.0
        self._heartbeat = Heartbeat(run)
        self.best = best
        self.decoded_per_second, self.stopwatch = decoded_per_second, Stopwatch(process.device)
        self.outcome = "finished"
        self._tracker = TrackerProcess(run, track) if track and process.is_rank_zero else None
        self.begun, self.first = clock(), step
        self.resume_clock()
        if process.is_rank_zero:
            self.metrics = MetricsWriter(run / "metrics.jsonl")
            self.events = _event_writer(run / "events", step)
            self.bar = tqdm(
                total=facts["total_steps"],
                initial=step,
                unit="steps",
                smoothing=0.05,
                dynamic_ncols=True,
                disable=not sys.stderr.isatty(),  # a log file gets a line per epoch instead
            )
            self.postfix: dict[str, str] = {}
            self.bottleneck = ""
            self._record("start", **facts)
            self.write_heartbeat()

    def _record(self, kind: str, **values: Any) -> None:
        self.metrics.write(kind=kind, step=self.at, t=time.time(), attempt=self.attempt, **values)

    def resume_clock(self) -> None:
        """Restart the clock of pictures per second, after work other than training."""
        self.clock = clock()

    def write_heartbeat(self) -> None:
        """Write the heartbeat, at most every few seconds."""
        self._write_heartbeat("training")

    def probing(self, share: float) -> None:
        """Report the share of training pictures whose features are computed, 0 to 1."""
        self._write_heartbeat("probing", round(share, 3))

    def validating(self, share: float) -> None:
        """Report the share of validation pictures done, 0 to 1."""
        self._write_heartbeat("validating", round(share, 3))

    def testing(self, share: float) -> None:
        """Report the share of test pictures done, 0 to 1."""
        self._write_heartbeat("testing", round(share, 3))

    def _write_heartbeat(self, doing: str, share: float | None = None) -> None:
        if self.process.is_rank_zero:
            self._heartbeat.write(self.at, doing, share)

    def begin_step(self) -> None:
        """Start timing the model, once a step's pictures are on the device."""
        self.stopwatch.start()

    def step(self, step: int, loss: Tensor, share: float) -> None:
        """Record a step; `step` is the number of steps done. The loss stays on the device until it is flushed."""
        self.stopwatch.stop()
        self.losses.append(loss)
        self.at, self.share = step, share
        self.write_heartbeat()
        if (
            step % self.facts["steps_per_epoch"] % RECORD_STEPS == 0
        ):  # counted within the epoch, so that a resumed run records the same steps
            self.flush()

    def flush(self) -> None:
        """Record the mean loss since the last record.

        Raises:
            Diverged: the loss is not finite, in any of the processes.
        """
        if not self.losses:
            return
        average = torch.stack(self.losses).mean()
        if self.process.world > 1:  # all processes get the same mean, so they also raise together
            dist.all_reduce(average)
            average /= self.process.world
        loss, count = average.item(), len(self.losses)
        self.losses.clear()
        learnt = count * self.facts["batch_size"]
        seconds, model_seconds = clock() - self.clock, self.stopwatch.read()
        paces: dict[str, float] = {}
        if (decoded := self.decoded_per_second()) and model_seconds:
            paces["data_per_second"] = round(decoded * self.process.world, 1)
            paces["model_per_second"] = round(learnt / model_seconds, 1)
        self.resume_clock()
        if not math.isfinite(loss):
            raise Diverged(loss, self.at)
        if self.process.is_rank_zero:
            self._record(
                "step",
                loss=loss,
                lr=self.share * self.facts["lr"],
                lr_share=self.share,
                pictures_per_second=round(learnt / seconds, 1),
                **paces,
                memory=self.process.memory(),
            )
            self.events.add_scalar("train/loss", loss, self.at)
            self.events.add_scalar("train/lr_share", self.share, self.at)
            self.bottleneck = bottleneck(paces)
            self.postfix["loss"] = f"{loss:.3f}"
            self.bar.set_postfix(self.postfix, refresh=False)
            self.bar.update(count)

    def epoch(self, epoch: int, results: Mapping[str, Evaluation], better: str, seconds: float) -> None:
        """Record the validation after an epoch; called by rank 0 only.

        Args:
            epoch: from 1; 0 for the state before training.
            results: per kind of weights, "raw" and optionally "averaged".
            better: the kind with the better result.
            seconds: training time so far.
        """
        result = results[better]
        both = {"weights": better} | {f"{kind}_accuracy": one.accuracy for kind, one in results.items()}
        self._record(
            "validation",
            epoch=epoch,
            accuracy=result.accuracy,
            loss=result.loss,
            seconds=seconds,
            **(both if len(results) > 1 else {}),
        )
        self.events.add_scalar("validation/accuracy", result.accuracy, self.at)
        self.events.add_scalar("validation/loss", result.loss, self.at)
        self.events.flush()  # so that a kill after this epoch loses none of its events
        if self._tracker:
            self._note_tracker(self._tracker.note())
        self.best = max(self.best, result.accuracy)
        self.postfix["accuracy"] = share(result.accuracy, result.pictures)
        self.bar.set_postfix(self.postfix)
        if self.bar.disable:
            facts = [f"validation accuracy {figure(result.accuracy, result.pictures)}"]
            facts.append(f"best {share(self.best, result.pictures)}")
            if steps := self.at - self.first:  # an evaluation before the first step has no pace
                left = (clock() - self.begun) / steps * (self.facts["total_steps"] - self.at)
                facts.append(f"{tqdm.format_interval(left)} left")
            if "loss" in self.postfix:
                facts.insert(0, f"loss {self.postfix['loss']}")
            why = f". {self.bottleneck}" if self.bottleneck else ""
            print(f"Epoch {epoch} of {self.facts['epochs']}: {', '.join(facts)}{why}", flush=True)

    def test(self, epoch: int, result: Evaluation, **which: str) -> None:
        """Record the test result of the best checkpoint, of this epoch, and `which` pictures; called by rank 0 only."""
        facts = {"loss": result.loss, "pictures": result.pictures} | which
        self._record("test", epoch=epoch, accuracy=result.accuracy, **facts)
        self.events.add_scalar("test/accuracy", result.accuracy, self.at)
        self.events.add_scalar("test/loss", result.loss, self.at)
        self.events.flush()

    def _note_tracker(self, note: str) -> None:
        """Record that the tracker failed, once, and stop using it."""
        if note:
            self.note(note)
            self._tracker = None

    def note(self, text: str) -> None:
        """Record a message for the user."""
        if self.process.is_rank_zero:
            self._record("note", text=text)
            self.bar.write(text, file=sys.stderr)

    def __exit__(self, *error: object) -> None:
        if self._tracker:
            stopped = isinstance(error[1], KeyboardInterrupt)
            outcome = self.outcome if error[1] is None else "stopped" if stopped else "failed"
            self._note_tracker(self._tracker.finish(outcome))
        if self.process.is_rank_zero:
            self.bar.close()
            self.events.close()
            self.metrics.close()
