"""Error report of a checkpoint: its confusion matrix and its most confident mistakes.

A report is an NPZ file in the run's folder. A separate process (`start`, `vit.training.runs.error_search`) writes it;
reading it needs no torch.
"""

import json
import os
import re
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vit.errors import UserError
from vit.files import acquire_lock, is_locked, replaced
from vit.out_of_memory import prefer_for_oom_kill
from vit.paths import environment_with_package
from vit.stored_archives import read_arrays
from vit.training.loop.run_folder import write_errors
from vit.untrusted import Unreadable, parse_json, read_tail

FILE = "report.npz"  # in a run's folder
_LOG = "report.log"
_LOCK = "report.lock"
_TAIL_BYTES = 2000  # of the log, for its last lines


@dataclass(frozen=True)
class Report:
    """How a checkpoint does on the test images of a dataset.

    Attributes:
        checkpoint: hash of its weights, as `Checkpoint.hash`.
        classes: one name per label.
        confusion: (C, C) counts of images; rows are true classes, columns predicted ones.
        indices: (W,) indices into the test set of all mistakes, most confident first; earlier reports hold 24.
        pictures: (V, height, width, 3) uint8, the model's input for the first of them.
        overlays: (V, height, width, 3) uint8, enlarged, with the attention of the last block, mean over heads.
        true, predicted: (W,) labels.
        probability: (W,) probability of the wrong class, 0 to 1.
        names: of the pictures, W of them with their folders; empty in earlier reports.
    """

    checkpoint: str
    classes: tuple[str, ...]
    confusion: NDArray[np.int64]
    indices: NDArray[np.int64]
    pictures: NDArray[np.uint8]
    overlays: NDArray[np.uint8]
    true: NDArray[np.int64]
    predicted: NDArray[np.int64]
    probability: NDArray[np.float32]
    names: tuple[str, ...] = ()

    @property
    def accuracy(self) -> float:
        """Share of images classified correctly, 0 to 1."""
        return float(np.trace(self.confusion) / max(self.confusion.sum(), 1))

    @property
    def per_class(self) -> NDArray[np.float64]:
        """(C,) share of each class's images classified correctly; NaN for a class without images."""
        counts = self.confusion.sum(1)
        with np.errstate(invalid="ignore"):
            return np.where(counts > 0, np.diag(self.confusion) / np.maximum(counts, 1), np.nan)


def save(report: Report, file: Path) -> None:
    """Write a report; the file is replaced atomically.

    Raises:
        OSError: the file cannot be written.
    """
    with replaced(file) as out:
        np.savez_compressed(
            out,
            meta=np.array([report.checkpoint]),
            classes=np.array(report.classes),
            names=np.frombuffer(json.dumps(report.names).encode(), np.uint8),
            **{name: getattr(report, name) for name in _ARRAYS},
        )


_KINDS = {"confusion": "i", "indices": "i", "true": "i", "predicted": "i", "probability": "f"}  # NumPy's `dtype.kind`
_ARRAY_BYTES = 256 << 20  # all arrays together; the confusion matrix of 21,000 classes alone would take 3.5 GB
_ARRAYS = {"confusion": 2, "indices": 1, "pictures": 4, "overlays": 4, "true": 1, "predicted": 1, "probability": 1}


def read(file: Path) -> Report:
    """Read a report.

    Raises:
        UserError: it does not exist or is damaged.
    """
    try:
        arrays = read_arrays(file, _ARRAY_BYTES)
        checkpoint, *_ = map(_displayable, arrays["meta"])
        classes = tuple(_displayable(name) for name in arrays["classes"])
        names = tuple(map(str, parse_json(arrays["names"].tobytes()))) if "names" in arrays else ()
        report = Report(checkpoint, classes, **{name: arrays[name] for name in _ARRAYS}, names=names)
        _check_report(report)
    except FileNotFoundError as error:
        raise UserError("This run has not been evaluated yet.") from error
    except (Unreadable, ValueError, TypeError, KeyError) as error:
        raise UserError("The report is damaged. Evaluate again.") from error
    return report


def _displayable(text: object) -> str:
    """Return text that a page can show: NumPy strings may hold lone surrogates."""
    return str(text).encode("utf-8", "replace").decode()


def _check_report(report: Report) -> None:
    """Reject arrays that no evaluation writes.

    Raises:
        ValueError: shapes, dtypes or ranges of the arrays do not match.
    """
    arrays = {name: getattr(report, name) for name in _ARRAYS}
    classes, worst = len(report.classes), len(report.indices)
    labels = np.concatenate([report.true.ravel(), report.predicted.ravel()])
    fits = (
        all(arrays[name].ndim == dimensions for name, dimensions in _ARRAYS.items())
        and all(arrays[name].dtype.kind == kind for name, kind in _KINDS.items())
        and all(len(arrays[name]) == worst for name in ("true", "predicted", "probability"))
        and len(report.names) in (0, worst)
        and len(report.pictures) == len(report.overlays) <= worst
        and all(arrays[name].dtype == np.uint8 and arrays[name].shape[3] == 3 for name in ("pictures", "overlays"))
        and report.confusion.shape == (classes, classes)
        and (report.confusion >= 0).all()
        and ((labels >= 0) & (labels < classes)).all()
        and np.isfinite(report.probability).all()
        and all(min(arrays[name].shape[1:3]) > 0 for name in ("pictures", "overlays") if worst)
    )
    if not fits:
        raise ValueError("These arrays are no report.")


# --- The evaluation process -----------------------------------------------------------------------------------------


class State(NamedTuple):
    """Progress of a run's evaluation.

    Attributes:
        status: "none" before the first evaluation, "running", "done", or "failed".
        share: share done, 0 to 1; None until it is known.
        reason: why it failed, for the user.
    """

    status: Literal["none", "running", "done", "failed"]
    share: float | None = None
    reason: str = ""


def start(run: Path, data: str, root: str) -> None:
    """Evaluate a run's best checkpoint in a process that outlives this one; it writes the report to the run's folder.

    Raises:
        UserError: the run is being evaluated already, has no checkpoint yet, or its folder cannot be written.
    """
    best = run / "checkpoints" / "best"
    if not best.is_dir():
        raise UserError("This run has no checkpoint yet: it is written after the first epoch.")
    with write_errors(run):
        _start(run, best, data, root)


def _start(run: Path, best: Path, data: str, root: str) -> None:
    lock = os.open(run / _LOCK, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        # The child inherits the lock; the system releases it however the child ends.
        if not acquire_lock(lock):
            raise UserError("This run is being evaluated already.")
        (run / FILE).unlink(missing_ok=True)
        command = [sys.executable, "-m", "vit", "evaluate", "--checkpoint", str(best), "--data", data]
        with (run / _LOG).open("wb") as log:
            process = subprocess.Popen(
                [*command, "--data-root", root, "--report", str(run / FILE)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=log,
                env=environment_with_package(),
                pass_fds=[lock],
                start_new_session=True,
            )
        prefer_for_oom_kill(process.pid)
        # Wait for the process, so that it does not stay behind as a zombie.
        threading.Thread(target=process.wait, name="report", daemon=True).start()
    finally:
        os.close(lock)


def state(run: Path) -> State:
    """Return whether the run is being, or has been, evaluated."""
    if is_locked(run / _LOCK):
        percents = re.findall(rb"(\d{1,3})%\|", read_tail(run / _LOG, _TAIL_BYTES))
        return State("running", min(int(percents[-1]) / 100, 1.0) if percents else None)
    if os.path.exists(run / FILE):
        return State("done")
    if not os.path.exists(run / _LOG):
        return State("none")
    log = read_tail(run / _LOG, _TAIL_BYTES).decode("utf-8", "replace")
    lines = [line for line in re.split(r"[\r\n]+", log) if line.strip()]
    messages = [line for line in lines if "%|" not in line]
    return State("failed", reason=messages[-1].strip() if messages else "The evaluation was cut off. Start it again.")
