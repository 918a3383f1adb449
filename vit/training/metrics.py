"""A run's figures: one JSON object per line, appended while training, read at any moment.

Every record has `kind`, `step`, `t` (unix time [s]) and `attempt` (from 0, one more for each resumption):

    start       total_steps, steps_per_epoch, batch_size, epochs, train_pictures, validation_pictures, test_pictures,
                classes, params, device
    step        loss, lr, lr_share, pictures_per_second, memory [bytes]; means over the last few steps; where pictures
                are decoded meanwhile, also how many the decoding processes could give, data_per_second, and how many
                the model would learn from, model_per_second
    validation  after each epoch: epoch (from 1; 0 for a probe that the run begins with), accuracy (0 to 1), loss,
                seconds (of training so far); where weights are averaged, also which were better, weights ("raw" or
                "averaged"), raw_accuracy, averaged_accuracy; in other people's loops either accuracy or loss
                may be missing
    test        once, of the epoch that validation chose: epoch, accuracy, loss, pictures
    note        text
"""

import bisect
import json
import math
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from vit.untrusted import Unreadable, is_number, is_text, is_whole, parse_json, read_bytes

Record = dict[str, Any]

FILE_BYTES = 64 << 20  # a run of 200,000 records takes 40 MB
_LATE_RECORDS = 1000  # before another of their kind, without a "start" between them, that are put in their place

# Without these a line is not taken for a record of its kind: the file may come from anywhere.
_NEEDED = {
    "start": ("t", "attempt", "total_steps", "steps_per_epoch", "epochs"),
    "step": ("loss",),
    "validation": ("epoch",),
    "test": ("epoch", "accuracy", "loss"),
    "note": ("text",),
}
_NEEDED_ONE_OF = {"validation": {"accuracy", "loss"}}


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(map(is_text, value))


# What a value of this name must be, in every kind of record; of other names, whatever JSON can say.
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
    "test_pictures": is_whole,
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
    """Append records to a file; a reader sees whole lines, whatever happens to the writer."""

    def __init__(self, path: Path):
        self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            os.write(self._file, b"\n")  # a killed writer left half a line

    def write(self, **values: Any) -> None:
        """Append one record in one write."""
        os.write(self._file, (json.dumps(values) + "\n").encode())

    def close(self) -> None:
        """Give the file back."""
        os.close(self._file)


class MetricsReader:
    """Follow a file that is being written; each call reads only what is new.

    Attributes:
        records: by kind, in the order of their steps. Steps that a resumed run repeated appear once, as the latest
            attempt wrote them.
        problem: why the file, or a part of it, cannot be read; "" where all of it can.
    """

    def __init__(self, path: Path):
        self.path = path
        self._restart()

    def _restart(self) -> None:
        self.records: dict[str, list[Record]] = {}
        self.problem, self._damaged, self._late = "", 0, 0
        self._offset, self._inode = 0, -1

    def update(self) -> bool:
        """Take up whole new lines; returns whether there were any. Torn and foreign lines are left out."""
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
        whole = new[: new.rfind(b"\n") + 1]  # the rest is still being written
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
            whole = all(name in record for name in _NEEDED.get(kind, ()))
            whole = whole and not (kind in _NEEDED_ONE_OF and _NEEDED_ONE_OF[kind].isdisjoint(record))
            if not fits or not whole or self._late > _LATE_RECORDS:
                raise ValueError
        except (ValueError, KeyError, TypeError, AttributeError):
            self._damaged += line.rstrip().endswith((b"}", b"]"))  # others are torn, by the kill of a writer
            return False
        if kind == "start":  # what came after this step is about to be repeated
            for records in self.records.values():
                del records[bisect.bisect_right(records, step, key=_step_of) :]
        of_kind = self.records.setdefault(kind, [])
        index = bisect.bisect_left(of_kind, step, key=_step_of)
        again = index < len(of_kind) and of_kind[index]["step"] == step
        if kind == "note" and again:  # of one step there may be several
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
    """All whole records, in the order of their steps; a file not yet there has none."""
    reader = MetricsReader(path)
    reader.update()
    return sorted((r for kind in reader.records.values() for r in kind), key=lambda record: record["step"])


def evaluations(records: dict[str, list[Record]]) -> list[Record]:
    """What was measured on validation pictures after each epoch, of `MetricsReader.records`."""
    return records.get("validation", [])


def best_epoch(records: dict[str, list[Record]]) -> Record | None:
    """The evaluation of the epoch whose weights are kept as best; None before the first epoch is complete."""
    return max(evaluations(records), key=lambda one: merit(one.get("accuracy"), one.get("loss")), default=None)


def merit(accuracy: float | None, loss: float | None) -> tuple[float, float]:
    """What makes one evaluation better than another: accuracy, and where that is equal or missing a low loss."""
    return -1.0 if accuracy is None else accuracy, -math.inf if loss is None else -loss


def final_test(records: dict[str, list[Record]]) -> Record | None:
    """The evaluation on test pictures of the epoch that validation chose; None before the end."""
    tests = records.get("test")
    return tests[-1] if tests else None


class Progress(NamedTuple):
    """How far a run is.

    Attributes:
        epoch: done, with the part of the present one.
        pictures_per_second: lately, 0 before the first figure.
        bottleneck: a sentence, which of decoding and model is the slower one; "" where nothing is decoded.
        seconds_left: at the pace of this attempt, evaluations included; None before there is a pace.
        accuracy: best so far on validation pictures, None before the first evaluation.
        memory: of the training process on its device [bytes], None where unknown.
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
        """The share of the steps that are done, 0 to 1."""
        return min(self.step / self.total_steps, 1.0) if self.total_steps else 0.0


def bottleneck(step: Record) -> str:
    """Which of decoding and model holds the other up, of a record of kind "step"; "" where nothing is decoded.

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
    """How far a run is, from `MetricsReader.records`; None before it has begun to train."""
    if not records.get("start"):
        return None
    start = max(records["start"], key=lambda record: record["attempt"])
    steps, epochs = records.get("step", []), evaluations(records)
    last = max([start, *steps[-1:], *epochs[-1:]], key=lambda record: record["step"])
    total = start["total_steps"]
    since = max(last.get("t", start["t"]) - start["t"], 0.0)  # clocks are set back at times
    done = last["step"] - start["step"]  # in this attempt; earlier ones may have run elsewhere
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
