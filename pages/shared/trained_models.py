"""Models of training runs, as pages Explore, Compare and Checkpoints use them.

These pages import nothing of training: `pages.training.models` registers where these models come from.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pages.links.page_links import best_of_run
from vit.errors import UserError


@dataclass(frozen=True)
class TrainedModel:
    """A run, as far as these pages use it.

    Attributes:
        id: of the run.
        name: given by its owner.
        file_name: its name in the form of a file name.
        best: folder of its best checkpoint; None before there is one.
        accuracy: of the best checkpoint, for people; "" if unknown.
        data: its dataset, see `vit.data.datasets.load_dataset`.
        data_root: folder of downloaded datasets.
        snapshots: folder with the attention after each epoch, see `vit.view.attention_snapshots`; may be missing.
        waits_for: checkpoint that it starts from, while it waits; else "".
    """

    id: str
    name: str
    file_name: str
    best: Path | None
    accuracy: str
    data: str
    data_root: str
    snapshots: Path
    waits_for: str

    @property
    def checkpoint(self) -> str:
        """Name of its best checkpoint in links."""
        return best_of_run(self.id)


def _none() -> Sequence[TrainedModel]:
    return ()


_source: Callable[[], Sequence[TrainedModel]] = _none


def register(source: Callable[[], Sequence[TrainedModel]]) -> None:
    """Let `every` return the models of a function, newest first."""
    global _source
    _source = source


def every() -> Sequence[TrainedModel]:
    """Return the models of all runs, newest first; empty in an app without training."""
    return _source()


def find(checkpoint: str) -> TrainedModel | None:
    """Return the model whose best checkpoint has this name in links, None if there is none."""
    return next((model for model in every() if model.checkpoint == checkpoint), None)


def check_not_awaited(checkpoint: str) -> None:
    """Check that no waiting run starts from a checkpoint: a run copies its weights when it begins, not before.

    Raises:
        UserError: one does.
    """
    for model in every():
        if model.waits_for == checkpoint:
            raise UserError(f"The waiting run {model.name!r} starts from it. Let it start, or cancel it first.")
