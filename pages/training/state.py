"""State of a visitor's session on pages Train and Runs, see `pages.links.session`."""

from __future__ import annotations

import secrets
from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vit.training.loop.dry_run import DryRun, Point

TriedRecipe = tuple[str, tuple[str, ...]]  # key of a dry run: the recipe as JSON, and its devices


@dataclass
class Train:
    """State of page Train.

    Attributes:
        nonce: nonce of the next run, so that submitting the same form twice starts one run.
        started: a run was started, so the next click starts another one.
        dry_run: the recipe of the last dry run, and its result.
        cancelled: the dry run was cancelled, and the page has not reported it yet.
        overfit: the recipe that overfitted one batch, and the points of its curve.
        uploads: number of accepted archives; the uploader gets a new key after each.
        arriving: Streamlit's id of the last archive, and the dataset that was selected then.
        refused: the uploader's id of the rejected archive, and the reason.
        undeleted: why an upload could not be deleted, until the page has reported it.
        failed: by dataset, why its download failed.
        ladder: key of the ladder's job, see `pages.server.background`.
    """

    nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    started: bool = False
    dry_run: tuple[TriedRecipe, DryRun] | None = None
    cancelled: bool = False
    overfit: tuple[TriedRecipe, list[Point]] | None = None
    uploads: int = 0
    arriving: tuple[str, str] = ("", "")
    refused: tuple[str, str] = ("", "")
    undeleted: str = ""
    failed: dict[str, str] = field(default_factory=dict)
    ladder: Hashable = None


@dataclass
class Runs:
    """State of page Runs.

    Attributes:
        alive: ids of runs that this session has seen alive.
        announced: ids of runs whose end was announced.
        ticked: ids of runs that are selected in the table.
        tables: number of times the table was replaced.
    """

    alive: set[str] = field(default_factory=set)
    announced: set[str] = field(default_factory=set)
    ticked: list[str] = field(default_factory=list)
    tables: int = 0
