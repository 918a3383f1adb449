"""The saved state of a run: everything that --resume needs, in one file, and the previous version of that file.

Random numbers depend on seed and step only, so the state holds no generator.
"""

import logging
import os
from pathlib import Path
from typing import Any

import torch

from vit.errors import InvalidConfig, InvalidDataset, InvalidRun
from vit.files import remove, replaced
from vit.training.loop.config import TrainConfig
from vit.training.loop.run_folder import STATES, restart_hint
from vit.untrusted import is_whole, open_file

# Settings that may change between a run and its resumption.
MAY_CHANGE = {"epochs", "device", "workers", "data_root", "compile", "patience", "track"}

log = logging.getLogger(__name__)


class StateFile:
    """The state of a run on disk.

    Attributes:
        path, previous: the latest state, and the one before it.
    """

    path: Path
    previous: Path

    def __init__(self, run: Path):
        self.run = run
        self.path, self.previous = (run / "checkpoints" / name for name in STATES)

    def exists(self) -> bool:
        """Whether a state exists; `read` finds out whether it is intact."""
        return self.path.exists() or self.previous.exists()

    def save(self, state: dict[str, Any]) -> None:
        """Replace the state atomically, and keep the one before it."""
        self.path.parent.mkdir(exist_ok=True)
        if self.path.exists():
            link = self.previous.with_name(self.previous.name + ".partial")
            link.unlink(missing_ok=True)
            try:
                os.link(self.path, link)
            except OSError:  # no hard links here: `path` is missing until the new state is written
                self.path.replace(self.previous)
            else:
                link.replace(self.previous)
                link.unlink(missing_ok=True)  # rename(2) does nothing if both names link to the same file
        with replaced(self.path) as file:
            torch.save(state, file)

    def read(self, device: torch.device, is_rank_zero: bool) -> tuple[dict[str, Any], bool]:
        """Read the latest state, or the previous one if that is damaged; returns it, and whether it is the previous.

        Args:
            is_rank_zero: whether this process writes the next state; if so, a damaged file is deleted, because `save`
                would otherwise keep it in place of the intact one.

        Raises:
            InvalidRun: both are damaged or missing.
        """
        for path in (self.path, self.previous):
            try:
                with open_file(path) as file:
                    saved = torch.load(file, map_location=device, weights_only=True)
                if not isinstance(saved["config"], dict) or not is_whole(saved["step"]):
                    raise ValueError("something else")
            except (torch.OutOfMemoryError, MemoryError):
                raise
            except Exception as error:  # the unpickler may raise anything on damaged bytes
                log.warning("%s cannot be read: %s", path, error)
                continue
            if path == self.previous and is_rank_zero:
                remove(self.path)
            return saved, path == self.previous
        raise self.damaged()

    def damaged(self) -> InvalidRun:
        """Return the error for a state that cannot be used."""
        return InvalidRun(f"The saved state of {self.run.name} is damaged. {restart_hint(self.run)}")


def check_same_run(saved: dict[str, Any], config: TrainConfig, fingerprint: list[object], run: Path) -> None:
    """Reject a state that belongs to other settings or other data.

    Raises:
        InvalidConfig: the settings differ.
        InvalidDataset: the data differ.
        InvalidRun: an old version wrote it, which chose the best epoch on test pictures.
    """
    for name, value in config.model_dump().items():
        before = saved["config"].get(name, TrainConfig.model_fields[name].default)
        moved = name == "data" and str(before).startswith("folder:") and str(value).startswith("folder:")
        if name not in MAY_CHANGE and value != before and not moved:  # the fingerprint below compares a moved folder
            raise InvalidConfig(
                f"{name} was {before!r} in this run, not {value!r}. Resume it as it was, or start another run."
            )
    if "models" not in saved:
        raise InvalidRun(
            "This run is of a version in which test pictures chose the best epoch; some of the pictures that it "
            f"learnt from are for validation now. {restart_hint(run)}"
        )
    if saved["data"] != fingerprint:
        raise InvalidDataset(f"{config.data} has changed since this run began. Start another run.")
