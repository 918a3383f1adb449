"""What all steps of `gpu.py` share: their arguments and results."""

from pathlib import Path
from typing import Any, NamedTuple

Result = dict[str, Any]


class Job(NamedTuple):
    """The arguments of a step.

    Attributes:
        device: "cuda:0", or "cpu" in a dry run.
        dry: use tiny sizes, only to check that the step runs.
        out: folder of the results; a step may create a folder of its own there.
        data: dataset of step `cifar`.
        seconds: time limit of this process [s].
        photos: dataset of step `photos`.
    """

    device: str
    dry: bool
    out: Path
    data: str
    seconds: float
    photos: str = ""
