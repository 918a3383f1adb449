"""What the JSON documents of all commands say."""

from typing import Any

from vit.checkpoints.checkpoint import Checkpoint


def facts_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """Which checkpoint numbers are of."""
    return {"checkpoint": checkpoint.name, "sha256": checkpoint.hash, "identity": checkpoint.identity}
