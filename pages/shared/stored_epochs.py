"""The attention that a run keeps while it learns: of which epochs, and when it changed."""

from pathlib import Path

from vit.runs.registry import Run
from vit.view.attention_snapshots import list_epochs


def epochs(run: Run) -> list[int]:
    """Epochs whose attention is kept."""
    return list_epochs(run.folder / "probes")


def stamp(folder: Path, epoch: int) -> int:
    """Changes with what is kept of an epoch; 0 where nothing is."""
    try:
        return (folder / f"epoch-{epoch:05}.zip").stat().st_mtime_ns
    except OSError:
        return 0
