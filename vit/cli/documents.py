"""Fields that the JSON output of several commands shares."""

from typing import Any

from vit.checkpoints.checkpoint import Checkpoint


def facts_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Return the fields that identify a checkpoint."""
    return {"checkpoint": checkpoint.name, "sha256": checkpoint.hash, "identity": checkpoint.identity}
