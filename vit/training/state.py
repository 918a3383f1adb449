"""The saved state of a run: everything that --resume needs, in one file that is replaced whole, and the one before it.

Random numbers follow from the seed and the step, so no generator is among it.
"""

import logging
import os
from pathlib import Path
from typing import Any

import torch

from vit.errors import InvalidConfig, InvalidDataset, InvalidRun
from vit.files import replaced
from vit.training.config import TrainConfig
from vit.training.run_folder import STATES, begin_anew

# Between a run and its resumption.
MAY_CHANGE = {"epochs", "device", "workers", "data_root", "compile", "patience", "track"}

log = logging.getLogger(__name__)


class StateFile:
    """The state of a run on disk.

    Attributes:
        path, previous: the newest one, and the one before it.
    """

    path: Path
    previous: Path

    def __init__(self, run: Path):
        self.run = run
        self.path, self.previous = (run / "checkpoints" / name for name in STATES)

    def exists(self) -> bool:
        """Whether either is there; whether it is sound is seen when it is read."""
        return self.path.exists() or self.previous.exists()

    def save(self, state: dict[str, Any]) -> None:
        """Replace the state whole; the one before stays beside it."""
        self.path.parent.mkdir(exist_ok=True)
        if self.path.exists():
            link = self.previous.with_name(self.previous.name + ".partial")
            link.unlink(missing_ok=True)
            try:
                os.link(self.path, link)
            except OSError:  # a file system without hard links: for a moment there is the previous one only
                self.path.replace(self.previous)
            else:
                link.replace(self.previous)
                link.unlink(missing_ok=True)  # to rename one link of a file to another leaves both
        with replaced(self.path) as file:
            torch.save(state, file)

    def read(self, device: torch.device, leads: bool) -> tuple[dict[str, Any], bool]:
        """The saved state, or the one before it if that is damaged, and whether it is that one.

        Args:
            leads: this process writes the next one: a damaged file would take the place of the sound one then.

        Raises:
            InvalidRun: neither is sound.
        """
        for path in (self.path, self.previous):
            try:
                saved = torch.load(path, map_location=device, weights_only=True)
                if not isinstance(saved, dict) or not {"config", "step"} <= saved.keys():
                    raise ValueError("something else")
            except (torch.OutOfMemoryError, MemoryError):
                raise
            except Exception as error:  # damaged bytes make the unpickler stumble in ways that cannot be listed
                log.warning("%s cannot be read: %s", path, error)
                continue
            if path == self.previous and leads:
                self.path.unlink(missing_ok=True)
            return saved, path == self.previous
        raise InvalidRun(f"The saved state of {self.run.name} is damaged. {begin_anew(self.run)}")


def check_same_run(saved: dict[str, Any], config: TrainConfig, fingerprint: list[object], run: Path) -> None:
    """Refuse a state that is of other settings or other pictures.

    Raises:
        InvalidConfig, InvalidDataset: which.
        InvalidRun: it is of a version in which test pictures chose the best epoch.
    """
    for name, value in config.model_dump().items():
        before = saved["config"].get(name, TrainConfig.model_fields[name].default)
        if name not in MAY_CHANGE and value != before:
            raise InvalidConfig(
                f"{name} was {before!r} in this run, not {value!r}. Resume it as it was, or start another run."
            )
    if "models" not in saved:
        raise InvalidRun(
            "This run is of a version in which test pictures chose the best epoch; some of the pictures that it "
            f"learnt from are for validation now. {begin_anew(run)}"
        )
    if saved["data"] != fingerprint:
        raise InvalidDataset(f"{config.data} has changed since this run began. Start another run.")
