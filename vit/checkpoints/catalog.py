"""The checkpoints in `checkpoints/`, by name."""

import os
from pathlib import Path

from vit.checkpoints.checkpoint import NAME
from vit.errors import InvalidCheckpoint
from vit.paths import checkpoints_folder
from vit.untrusted import brief, brief_list


def find_checkpoint(name: str, root: str | Path | None = None) -> Path:
    """Return the folder of a named checkpoint; safe for untrusted names, which are compared with the existing folders.

    Raises:
        InvalidCheckpoint: no checkpoint has that name.
    """
    for folder in list_folders(root):
        if folder.name == name:
            return folder
    if names := brief_list(folder.name for folder in list_folders(root)):
        raise InvalidCheckpoint(f"There is no checkpoint {brief(name)!r}. There are: {names}.")
    raise InvalidCheckpoint(
        f"There is no checkpoint {brief(name)!r}, and none in the folder checkpoints: name a file or folder of "
        "weights, or a model to download such as google/vit-base-patch16-224, or set VIT_CHECKPOINTS to their folder."
    )


def list_folders(root: str | Path | None = None) -> list[Path]:
    """List the folders of all checkpoints, sorted by name."""
    root = checkpoints_folder() if root is None else Path(root)
    try:
        with os.scandir(root) as entries:
            folder_names = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    # A save that was killed between its two renames leaves only ".name.old", which still opens as "name".
    names = {name[1:-4] if name.startswith(".") and name.endswith(".old") else name for name in folder_names}
    return [root / name for name in sorted(names) if NAME.fullmatch(name) and not name.startswith(".")]
