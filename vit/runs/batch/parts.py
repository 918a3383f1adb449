"""The folder of a measurement: its description, and the results of the parts computed so far.

    <runs>/.measurements/<task>-<12 hex>/
        measurement.json   task, checkpoint, data
        plan.json          number of parts, written once the data have been read
        parts/000000.npz   result of a part
        log.txt            output of the processes
        checkpoint/        a copy for cluster nodes, which may not see our checkpoints
        handle.json, ...   its job on a cluster, as for a training run

A part's result depends only on the description, so two processes that compute the same part write the same file.
"""

import hashlib
import io
import json
import os
import re
import secrets
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.load import load_checkpoint
from vit.data.partitioned import Part, PartitionedComputation
from vit.errors import InvalidDataset, InvalidRun
from vit.files import remove
from vit.runs.batch.tasks import TASKS
from vit.stored_archives import read_arrays
from vit.training.run_folder import read_json, write_json
from vit.untrusted import Unreadable, brief, is_whole
from vit.validation import as_tuple

FORMAT = 1
_PART_BYTES = 4 << 30  # of a result; features of 500 pictures take 3 MB
_PART = re.compile(r"[0-9]{6,9}")


class Measurement(NamedTuple):
    """Description of a measurement.

    Attributes:
        task: key in `TASKS`.
        checkpoint: name or path.
        data, data_root: see `vit.data.datasets.load_dataset`.
        limit: number of images; None for all.
    """

    task: str
    checkpoint: str
    data: str
    data_root: str
    limit: int | None = None

    def opened(self) -> PartitionedComputation:
        """Load the model and the data; images are decoded lazily, in this process."""
        limit = {} if self.limit is None else {"limit": self.limit}
        checkpoint = load_checkpoint(self.checkpoint)
        root = Path(self.data_root)
        return TASKS[self.task].partitioned(checkpoint, self.data, root=root, budget=0, workers=0, **limit)


def folder_of(runs: Path, measurement: Measurement, checkpoint: Checkpoint) -> Path:
    """Return the folder of a measurement, which its description determines."""
    what = [FORMAT, measurement.task, checkpoint.identity, measurement.data, measurement.data_root, measurement.limit]
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()
    return runs / ".measurements" / f"{measurement.task}-{digest[:12]}"


def write_measurement(folder: Path, measurement: Measurement) -> None:
    """Write the description of a measurement, for the processes that compute it."""
    (folder / "parts").mkdir(parents=True, exist_ok=True)
    write_json(folder / "measurement.json", measurement._asdict())


def read_measurement(folder: Path) -> Measurement:
    """Read the description of a measurement.

    Raises:
        Unreadable: it is damaged.
    """
    measurement = as_tuple(Measurement, read_json(folder / "measurement.json"), "measurement.json")
    if measurement.task not in TASKS:
        raise Unreadable(f"measurement.json cannot be read: there is no task {brief(measurement.task)}.")
    return measurement


def write_plan(folder: Path, work: PartitionedComputation) -> None:
    """Write the number of parts, or check that the existing plan matches the data.

    Raises:
        InvalidDataset: the data have changed since the plan was written.
    """
    labels = hashlib.sha256(work.pictures.labels.numpy().tobytes()).hexdigest()
    plan = {"parts": work.parts, "pictures": work.count, "at_once": work.batch_size, "labels": labels}
    if (begun := read_plan(folder)) and begun != plan:
        raise InvalidDataset(f"The data have changed since this was begun. Remove {folder} and ask again.")
    _write_atomically(folder / "plan.json", json.dumps(plan).encode())


def read_plan(folder: Path) -> dict[str, Any]:
    """Return parts, pictures, at_once, and a hash of the labels; {} before the plan is written, or if it is damaged."""
    plan = read_json(folder / "plan.json")
    return plan if is_whole(plan.get("parts"), 1, 10**9) else {}


def path_of(folder: Path, number: int) -> Path:
    """Return the result file of a part.

    Args:
        number: index of the part.
    """
    return folder / "parts" / f"{number:06}.npz"


def write_part(folder: Path, number: int, part: Part) -> None:
    """Write the result of a part atomically.

    Args:
        number: index of the part.
    """
    content = io.BytesIO()
    np.savez(content, **part)  # type: ignore[arg-type]
    _write_atomically(path_of(folder, number), content.getvalue())


def _write_atomically(path: Path, content: bytes) -> None:
    """Write a file atomically, while other processes may write the same one."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def done(folder: Path) -> set[int]:
    """Return the indices of the computed parts."""
    return {int(path.stem) for path in (folder / "parts").glob("*.npz") if _PART.fullmatch(path.stem)}


def read_parts(folder: Path) -> list[Part]:
    """Read the results of all parts, in order.

    Raises:
        InvalidRun: one is damaged; it was deleted, so that the next call computes it again.
    """
    every = []
    for number in range(read_plan(folder)["parts"]):
        try:
            every.append(read_arrays(path_of(folder, number), _PART_BYTES))
        except (FileNotFoundError, Unreadable) as error:
            remove(path_of(folder, number))
            raise InvalidRun(
                f"Part {number} of the results was damaged. Repeat the command to compute it again."
            ) from error
    return every
