"""Training runs: start, list, queue, stop, resume. A run is a process and a folder, and the folder is the truth."""

from typing import TYPE_CHECKING

from vit.lazy import names_of

if TYPE_CHECKING:
    from vit.runs.control import Limits, delete, kill, launch, rename, resume, stop
    from vit.runs.registry import Run, find_run, list_runs, queue

__all__, __getattr__ = names_of(__name__, __path__)
