"""Attention snapshots that a run stores during training."""

from pathlib import Path

from vit.training.runs.registry import Run
from vit.view.attention_snapshots import list_epochs


def epochs(run: Run) -> list[int]:
    """List the epochs with stored attention."""
    return list_epochs(run.folder / "probes")


def stamp(folder: Path, epoch: int) -> int:
    """Return the modification time of an epoch's snapshot [ns], as a cache key; 0 if there is none."""
    try:
        return (folder / f"epoch-{epoch:05}.zip").stat().st_mtime_ns
    except OSError:
        return 0
