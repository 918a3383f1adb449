"""What a visitor's session remembers beside its links and its controls: one typed state for each page.

What somebody chose stands in the link, so that it can be shared and the browser's Back undoes it; see `link_controls`.
"""

from __future__ import annotations

import secrets
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import streamlit as st

from pages.links.page_links import ExploreLink
from pages.links.source import Source
from pages.server.uploaded_pictures import Upload
from vit.view.selection import Selection, View

if TYPE_CHECKING:
    from vit.checkpoints.push import Plan, Pushed
    from vit.explain.map_comparison import Layout
    from vit.explain.sensitivity import Verdict
    from vit.runs.batch.cluster_dry_run import ClusterDryRun
    from vit.training.dry_run import DryRun, Point

State = TypeVar("State")
TriedRecipe = tuple[str, tuple[str, ...]]  # what a dry run depends on: the recipe as JSON, and its devices


def of(kind: type[State]) -> State:
    """This session's state of a kind, as new when it is first asked for."""
    return st.session_state.setdefault(kind.__name__, kind())


def end_if_stopped() -> None:
    """End a run that was stopped, from within what takes long: Streamlit looks where a session's state is read."""
    of(Visit)


@dataclass
class Visit:
    """Of all pages.

    Attributes:
        in_app: `app.py` has run; see `navigation.start_page`.
        entered: the page that was entered last.
        links: by page, how its link was when it was left.
        heads: by checkpoint, how many attention heads somebody said that it has.
        features: of which pictures they were computed, or asked for.
        groups_added: how many groups of examples were added, by where.
        group_notes: what is to be said of examples that were added, by where.
    """

    in_app: bool = False
    entered: str = ""
    links: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)
    features: set[Hashable] = field(default_factory=set)
    groups_added: dict[str, int] = field(default_factory=dict)
    group_notes: dict[str, str] = field(default_factory=dict)


class Carried(NamedTuple):
    """An uploaded picture that the server keeps.

    Attributes:
        key: see `pages.server.uploaded_pictures`; "" where it could not be kept.
        since: moment of the monotonic clock when it was written down, or found there.
    """

    content: bytes = b""
    key: str = ""
    since: float = 0.0


@dataclass
class Progress:
    """How far this visitor has come with looking at many pictures: parts that are done."""

    done: int = 0
    stopped: bool = False


@dataclass
class Explore:
    """Of page Explore.

    Attributes:
        source: where the picture comes from.
        refused: why some of the last uploads cannot be shown, until another picture is chosen.
        upload: the uploaded picture.
        files: Streamlit's names for what was uploaded last.
        uploads: how many were taken in; the next one has an uploader of its own.
        carried: what of it the link reopens.
        asked_about: layout of the tokens that were shown, and what the link said of them.
        torch_due: the first view is drawn, so PyTorch may be loaded.
        frames: of an animation: for what they were explained, and the files made of them.
        importance, verdict: of which picture and class that was measured, or asked for.
        more_masks: of which picture and class the browser wants more masks, by `class_question.masks_name`.
        looks: at many pictures, by what is looked at.
        before_tour: what the link said, and where the picture came from, when the tour began.
    """

    source: Literal["sample", "upload", "camera"] = "sample"
    refused: str = ""
    upload: Source | None = None
    files: tuple[str, ...] = ()
    uploads: int = 0
    carried: Carried = field(default_factory=Carried)
    asked_about: tuple[Layout, dict[str, str]] | None = None
    torch_due: bool = False
    frames: tuple[Hashable, dict[str, bytes]] | None = None
    importance: str = ""
    verdict: str = ""
    more_masks: str = ""
    looks: dict[str, Progress] = field(default_factory=dict)
    before_tour: tuple[ExploreLink, Literal["sample", "upload", "camera"]] | None = None


class Uploaded(NamedTuple):
    """Pictures of one uploader.

    Attributes:
        key: what reopens them, see `pages.server.uploaded_pictures`; "" where nothing does.
        fresh: the uploader has taken them in, no link has reopened them.
    """

    key: str = ""
    pictures: Sequence[Upload] = ()
    fresh: bool = False


@dataclass
class Compare:
    """Of page Compare.

    Attributes:
        layouts: of both sides' tokens, for which the next four hold; None before anything was shown.
        one_view: both sides show one view.
        seeds: by side, what its viewer was told to show.
        lead: the side whose viewer was used last, and what it shows.
        views: by side.
        agreed: contact sheets that were looked at, or asked for.
        verdicts: on maps of contact sheets, by the sheet and the picture's digest.
        files: by uploader, what was uploaded last, or reopened by a link.
    """

    layouts: list[tuple[int, int, int, Layout]] | None = None
    one_view: bool = False
    seeds: dict[str, Selection] = field(default_factory=dict)
    lead: tuple[str, Selection] = ("a", Selection())
    views: dict[str, View] = field(default_factory=dict)
    agreed: set[str] = field(default_factory=set)
    verdicts: dict[tuple[str, str], Verdict] = field(default_factory=dict)
    files: dict[str, Uploaded] = field(default_factory=dict)


@dataclass
class Checkpoints:
    """Of page Checkpoints.

    Attributes:
        uploads: how many were taken in; the next one has an uploader of its own.
        suggested: the name that was put into the form.
        refused: the last upload was, and the page says why where it was given.
        lesson: the last one that was made, after what it was made of.
    """

    uploads: int = 0
    suggested: str = ""
    refused: bool = False
    lesson: tuple[Hashable, bytes] | None = None


@dataclass
class Push:
    """Of the dialog that pushes a checkpoint to the Hub.

    Attributes:
        folder: of the checkpoint, while the dialog is open.
        plan: what would go where, once that was looked at.
        problem: why nothing can be pushed there.
        pushed: what came of it.
    """

    folder: Path | None = None
    plan: Plan | None = None
    problem: str = ""
    pushed: Pushed | None = None


@dataclass
class Train:
    """Of page Train.

    Attributes:
        nonce: of the next run; the same form sent twice starts it once.
        started: a run was, so that the next click is another one.
        dry_run: what was tried, and what came of it.
        cluster_dry_run: what is tried on a cluster, the folder of that, and what came of it: None yet, or why nothing.
        cancelled: the dry run was, and the page has not said so yet.
        try_again: a smaller recipe was taken, which is tried at once.
        overfit: which recipe learned a batch by heart, and the points of its curve.
        uploads: how many archives were taken in; the next one has an uploader of its own.
        arriving: Streamlit's name for the archive that came last, and the data that were chosen then.
        refused: the uploader's name for the archive that was refused, and why.
        undeleted: why an upload could not be deleted, until the page has said so.
        failed: by dataset, why its download failed.
        tried_ladders: what was tried without training, by what that depends on.
    """

    nonce: str = field(default_factory=lambda: secrets.token_hex(8))
    started: bool = False
    dry_run: tuple[TriedRecipe, DryRun] | None = None
    cluster_dry_run: tuple[tuple[TriedRecipe, str], Path, ClusterDryRun | str | None] | None = None
    cancelled: bool = False
    try_again: bool = False
    overfit: tuple[TriedRecipe, list[Point]] | None = None
    uploads: int = 0
    arriving: tuple[str, str] = ("", "")
    refused: tuple[str, str] = ("", "")
    undeleted: str = ""
    failed: dict[str, str] = field(default_factory=dict)
    tried_ladders: set[Hashable] = field(default_factory=set)


@dataclass
class Runs:
    """Of page Runs.

    Attributes:
        alive: runs that were seen at work.
        announced: those whose end was.
        ticked: those that are in the table.
        tables: how often it was drawn anew.
    """

    alive: set[str] = field(default_factory=set)
    announced: set[str] = field(default_factory=set)
    ticked: list[str] = field(default_factory=list)
    tables: int = 0
