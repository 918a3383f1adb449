"""A measurement's folder: what is to be done, and what of it is done.

    <runs>/.measurements/<task>-<12 hex>/
        measurement.json   task, checkpoint, data
        plan.json          how many parts, known once the data have been read
        parts/000000.npz   one for each part that is done
        log.txt            what the processes printed
        checkpoint/        a copy, for machines that see no other of ours
        handle.json, ...   how its cluster knows it, as of a training run

Parts depend on nothing but what is to be done: one that two processes compute is the same twice.
"""

import hashlib
import io
import json
import os
import secrets
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vit.checkpoints.checkpoint import Checkpoint
from vit.checkpoints.load import load_checkpoint
from vit.data.in_parts import InParts, Part
from vit.errors import InvalidDataset
from vit.runs.batch.tasks import TASKS
from vit.training.run_folder import read_document, read_json, write_json

FORMAT = 1


class Measurement(NamedTuple):
    """What is to be done.

    Attributes:
        task: in `TASKS`.
        checkpoint: its name or path.
        data, data_root: see `vit.data.datasets.load_dataset`.
        limit: pictures; None for all of them.
    """

    task: str
    checkpoint: str
    data: str
    data_root: str
    limit: int | None = None

    def opened(self) -> InParts:
        """With the model and the data; pictures are decoded when they are asked for, in this process."""
        limit = {} if self.limit is None else {"limit": self.limit}
        checkpoint = load_checkpoint(self.checkpoint)
        root = Path(self.data_root)
        return TASKS[self.task].in_parts(checkpoint, self.data, root=root, budget=0, workers=0, **limit)


def folder_of(runs: Path, measurement: Measurement, checkpoint: Checkpoint) -> Path:
    """The folder of a measurement: the same one whenever the same is measured."""
    what = [FORMAT, measurement.task, checkpoint.identity, measurement.data, measurement.data_root, measurement.limit]
    digest = hashlib.sha256(json.dumps(what).encode()).hexdigest()
    return runs / ".measurements" / f"{measurement.task}-{digest[:12]}"


def write_measurement(folder: Path, measurement: Measurement) -> None:
    """Write down what is to be measured, for the processes that do it."""
    (folder / "parts").mkdir(parents=True, exist_ok=True)
    write_json(folder / "measurement.json", measurement._asdict())


def read_measurement(folder: Path) -> Measurement:
    """Read what `write_measurement` wrote down."""
    return Measurement(**read_document(folder / "measurement.json"))


def write_plan(folder: Path, work: InParts) -> None:
    """Say how many parts there are, or see that they are those that were begun.

    Raises:
        InvalidDataset: the data have changed since.
    """
    labels = hashlib.sha256(work.pictures.labels.numpy().tobytes()).hexdigest()
    plan = {"parts": work.parts, "pictures": work.count, "at_once": work.batch_size, "labels": labels}
    if (begun := read_plan(folder)) and begun != plan:
        raise InvalidDataset(f"The data have changed since this was begun. Remove {folder} and ask again.")
    _write_part(folder / "plan.json", json.dumps(plan).encode())


def read_plan(folder: Path) -> dict[str, Any]:
    """parts, pictures, at_once, and what tells the data from others; empty before anybody has read the data."""
    return read_json(folder / "plan.json")


def path_of(folder: Path, number: int) -> Path:
    """The file that a part is written to.

    Args:
        number: of the part, from 0.
    """
    return folder / "parts" / f"{number:06}.npz"


def keep(folder: Path, number: int, part: Part) -> None:
    """Write what was measured of a part, whole.

    Args:
        number: of the part, from 0.
    """
    content = io.BytesIO()
    np.savez(content, **part)  # type: ignore[arg-type]
    _write_part(path_of(folder, number), content.getvalue())


def _write_part(path: Path, content: bytes) -> None:
    """Write a file, whole, while others may write the same."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    with temporary.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)


def done(folder: Path) -> set[int]:
    """The parts that are there."""
    return {int(path.stem) for path in (folder / "parts").glob("[0-9]*.npz")}


def read_parts(folder: Path) -> list[Part]:
    """All parts in their order."""
    every = []
    for number in range(read_plan(folder)["parts"]):
        with np.load(path_of(folder, number), allow_pickle=False) as arrays:
            every.append(dict(arrays))
    return every
