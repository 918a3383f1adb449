"""A run's metrics: one JSON object per line, appended during training, readable at any time.

Every record has `kind`, `step`, `t` (unix time [s]) and `attempt` (from 0, incremented when the run is resumed):

    start       total_steps, steps_per_epoch, batch_size, epochs, train_pictures, validation_pictures, test_pictures,
                classes, params, device
    step        loss, lr, lr_share, pictures_per_second, memory [bytes]; means over the last few steps; if pictures are
                decoded during training, also the rates at which decoding and model alone could work, data_per_second
                and model_per_second
    validation  after each epoch: epoch (from 1; 0 for a linear probe before training), accuracy (0 to 1), loss,
                seconds (of training so far); with averaged weights also which weights were better, weights ("raw" or
                "averaged"), raw_accuracy, averaged_accuracy; from foreign training loops either accuracy or loss
                may be missing
    test        once, for the epoch with the best validation: epoch, accuracy, loss, pictures, right (hexadecimal; the
                bits, highest first, say which of the pictures are right), split (a hash of data and labels)
    note        text
"""

import bisect
import json
import math
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from vit.confidence import paired
from vit.untrusted import Unreadable, is_number, is_text, is_whole, parse_json, read_bytes

Record = dict[str, Any]

FILE_BYTES = 64 << 20  # size limit; a run of 200,000 records takes 40 MB
_LATE_RECORDS = 1000  # limit of out-of-order records, each of which costs a list insertion

# Required keys by kind; a line without them is rejected, because the file may come from anywhere.
_REQUIRED = {
    "start": ("t", "attempt", "total_steps", "steps_per_epoch", "epochs"),
    "step": ("loss",),
    "validation": ("epoch",),
    "test": ("epoch", "accuracy", "loss"),
    "note": ("text",),
}
_REQUIRED_ONE_OF = {"validation": {"accuracy", "loss"}}


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


# Validators by key, for every kind of record; other keys may have any value.
_CHECKS: dict[str, Callable[[object], bool]] = {
    "kind": is_text,
    "step": is_whole,
    "t": partial(is_number, least=0, most=1e11),
    "attempt": is_whole,
    "total_steps": partial(is_whole, least=1),
    "steps_per_epoch": partial(is_whole, least=1),
    "epochs": partial(is_whole, least=1),
    "epoch": partial(is_whole, least=0),
    "batch_size": is_whole,
    "train_pictures": is_whole,
    "validation_pictures": is_whole,
    "test_pictures": is_whole,
    "pictures": is_whole,
    "right": lambda value: is_text(value) and bool(re.fullmatch("[0-9a-f]+", value)),
    "split": is_text,
    "params": is_whole,
    "classes": _are_texts,
    "loss": is_number,
    "accuracy": partial(is_number, least=0, most=1),
    "lr": is_number,
    "lr_share": is_number,
    "pictures_per_second": partial(is_number, least=0),
    "data_per_second": partial(is_number, least=0),
    "model_per_second": partial(is_number, least=0),
    "seconds": partial(is_number, least=0),
    "memory": lambda value: value is None or is_whole(value, most=1 << 60),
    "text": is_text,
}


class MetricsWriter:
    """Append records to a file; each is one write, so readers see whole lines even if the writer is killed."""

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")  # end the partial line of a killed writer

    def write(self, **values: Any) -> None:
        """Append one record in a single write."""
        os.write(self._file, (json.dumps(values) + "\n").encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)


class MetricsReader:
    """Follow a file that is being written; each update reads only what was appended.

    Attributes:
        records: by kind, in the order of steps. Steps repeated by a resumed run appear once, from the latest attempt.
        problem: why the file, or lines of it, cannot be read; "" for none.
    """

    def __init__(self, path: Path):
        self.path = path
        self._restart()

    def _restart(self) -> None:
        self.records: dict[str, list[Record]] = {}
        self.problem, self._damaged, self._late = "", 0, 0
        self._offset, self._inode = 0, -1

    def update(self) -> bool:
        """Read new complete lines; returns whether there were any. Torn and invalid lines are skipped."""
        try:
            facts = self.path.stat()
            if facts.st_ino != self._inode or facts.st_size < self._offset:
                self._restart()
                self._inode = facts.st_ino
            new = read_bytes(self.path, FILE_BYTES - self._offset, self._offset)
        except FileNotFoundError:
            return False
        except (OSError, Unreadable) as error:
            self.problem = str(error) if isinstance(error, Unreadable) else f"{self.path.name}: {error.strerror}."
            return False
        whole = new[: new.rfind(b"\n") + 1]  # the last line may still be incomplete
        self._offset += len(whole)
        any_new = sum(map(self._add_line, whole.split(b"\n"))) > 0
        if self._damaged:
            lines = "A line" if self._damaged == 1 else f"{self._damaged:,} lines"
            self.problem = f"{lines} of {self.path.name} cannot be read, and left out."
        return any_new

    def _add_line(self, line: bytes) -> bool:
        try:
            record = parse_json(line)
            kind, step = record["kind"], record["step"]
            fits = all(_CHECKS[name](value) for name, value in record.items() if name in _CHECKS)
            whole = all(name in record for name in _REQUIRED.get(kind, ()))
            whole = whole and not (kind in _REQUIRED_ONE_OF and _REQUIRED_ONE_OF[kind].isdisjoint(record))
            if not fits or not whole or self._late > _LATE_RECORDS:
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            # Lines without a closing bracket are torn, by a killed writer, and not counted as damage.
            self._damaged += line.rstrip().endswith((b"}", b"]"))
            return False
        if kind == "start":  # a resumed run repeats the steps after this one
            for records in self.records.values():
                del records[bisect.bisect_right(records, step, key=_step_of) :]
        of_kind = self.records.setdefault(kind, [])
        index = bisect.bisect_left(of_kind, step, key=_step_of)
        again = index < len(of_kind) and of_kind[index]["step"] == step
        if kind == "note" and again:  # a step may have several notes
            index = bisect.bisect_right(of_kind, step, key=_step_of)
            again = of_kind[index - 1]["text"] == record["text"]
            index -= again
        self._late += index < len(of_kind) and not again
        of_kind[index : index + again] = [record]
        return True


def _step_of(record: Record) -> int:
    step: int = record["step"]
    return step


def read_metrics(path: Path) -> list[Record]:
    """Return all valid records, in the order of steps; [] for a missing file."""
    reader = MetricsReader(path)
    reader.update()
    return sorted((r for kind in reader.records.values() for r in kind), key=lambda record: record["step"])


def evaluations(records: dict[str, list[Record]]) -> list[Record]:
    """Return the validation records of `MetricsReader.records`."""
    return records.get("validation", [])


def best_epoch(records: dict[str, list[Record]]) -> Record | None:
    """Return the validation record of the best checkpoint; None before the first epoch is complete."""
    return max(evaluations(records), key=lambda one: evaluation_key(one.get("accuracy"), one.get("loss")), default=None)


def evaluation_key(accuracy: float | None, loss: float | None) -> tuple[float, float]:
    """Sort key of an evaluation: accuracy, then low loss; either may be missing."""
    return -1.0 if accuracy is None else accuracy, -math.inf if loss is None else -loss


def final_test(records: dict[str, list[Record]]) -> Record | None:
    """Return the test record; None before the end of the run."""
    tests = records.get("test")
    return tests[-1] if tests else None


def pictures_of(records: dict[str, list[Record]], split: str) -> int | None:
    """Return the number of pictures of "validation" or "test"; None if not recorded, as by foreign training loops."""
    start = records.get("start")
    return start[-1].get(f"{split}_pictures") if start else None


def paired_difference(first: Record, second: Record) -> tuple[float, float, float] | None:
    """Return the difference of two tests' accuracies with its 95% interval, see `vit.confidence.paired`.

    None unless both recorded the same pictures, and which of them are right.
    """
    count, one, other = first.get("pictures", 0), *(int(record.get("right", "0"), 16) for record in (first, second))
    same = all(first.get(key) == second.get(key) for key in ("split", "pictures"))
    known = count and all("right" in record for record in (first, second))
    if not (same and known) or (one | other).bit_length() > count:
        return None
    return paired(one, other, count)


class Progress(NamedTuple):
    """Progress of a run.

    Attributes:
        epoch: number of epochs done, with the fraction of the current one.
        pictures_per_second: of the latest record, 0 before the first.
        bottleneck: a sentence about whether decoding or the model is slower; "" if nothing is decoded.
        seconds_left: extrapolated from this attempt, evaluations included; None before its first step.
        accuracy: best so far on validation pictures, None before the first validation.
        memory: of the training process on its device [bytes], None if unknown.
    """

    step: int
    total_steps: int
    epoch: float
    epochs: int
    pictures_per_second: float
    bottleneck: str
    seconds_left: float | None
    accuracy: float | None
    memory: int | None

    @property
    def share(self) -> float:
        """Share of steps done, 0 to 1."""
        return min(self.step / self.total_steps, 1.0) if self.total_steps else 0.0


def bottleneck(step: Record) -> str:
    """Return a sentence about whether decoding or the model is slower, from a step record; "" if nothing is decoded.

    >>> bottleneck({"data_per_second": 410.0, "model_per_second": 1630.0})
    'Decoding is the bottleneck: 410 pictures per second, of 1,630 that the model could learn from.'
    """
    data, model = step.get("data_per_second"), step.get("model_per_second")
    if not data or not model:
        return ""
    if data < model:
        return (
            f"Decoding is the bottleneck: {data:,.0f} pictures per second, of {model:,.0f} that the model could "
            "learn from."
        )
    return (
        f"The model is the bottleneck: it learns from {model:,.0f} pictures per second, of {data:,.0f} that could "
        "be decoded."
    )


def progress(records: dict[str, list[Record]]) -> Progress | None:
    """Return the progress of a run from `MetricsReader.records`; None before training starts."""
    if not records.get("start"):
        return None
    start = max(records["start"], key=lambda record: record["attempt"])
    steps, epochs = records.get("step", []), evaluations(records)
    last = max([start, *steps[-1:], *epochs[-1:]], key=lambda record: record["step"])
    total = start["total_steps"]
    since = max(last.get("t", start["t"]) - start["t"], 0.0)  # a clock may be set back
    done = last["step"] - start["step"]  # in this attempt; earlier ones may have run on other hardware
    left = (total - last["step"]) * since / done if done > 0 else None
    return Progress(
        step=last["step"],
        total_steps=total,
        epoch=last["step"] / max(start["steps_per_epoch"], 1),
        epochs=start["epochs"],
        pictures_per_second=steps[-1].get("pictures_per_second", 0.0) if steps else 0.0,
        bottleneck=bottleneck(steps[-1]) if steps else "",
        seconds_left=left,
        accuracy=max((record["accuracy"] for record in epochs if "accuracy" in record), default=None),
        memory=steps[-1].get("memory") if steps else None,
    )
