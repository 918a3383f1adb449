"""Typed session state, one class per page, beside the links and the controls.

Selections are stored in the link, so that they can be shared and undone with the browser's Back; see `link_controls`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeVar

import streamlit as st

from pages.links.source import Source
from pages.server.uploaded_pictures import Upload
from vit.view.selection import Selection, View

if TYPE_CHECKING:
    from vit.checkpoints.hub.push import Plan, PushResult
    from vit.explain.faithfulness_correlation import Verdict
    from vit.explain.map_comparison import Layout

State = TypeVar("State")


def of(kind: type[State]) -> State:
    """Return this session's state of a kind; the first call creates it."""
    return st.session_state.setdefault(kind.__name__, kind())


def end_if_stopped() -> None:
    """Raise Streamlit's stop exception if the script run was stopped. Long computations call this.

    Streamlit checks for stop requests whenever session state is read.
    """
    of(Visit)


@dataclass
class Visit:
    """State shared by all pages.

    Attributes:
        in_app: `app.py` has run; see `navigation.start_page`.
        entered: the current page.
        links: last link of each page.
        heads: number of attention heads that the visitor entered, by checkpoint.
        requested: keys of long computations that were started or requested, see `pages.shared.long_passes`.
        groups_added: number of groups of examples that were added, by prefix of the controls.
        group_notes: note to show about added examples, by prefix of the controls.
    """

    in_app: bool = False
    entered: str = ""
    links: dict[str, dict[str, list[str]]] = field(default_factory=dict)
    heads: dict[str, int] = field(default_factory=dict)
    requested: set[Hashable] = field(default_factory=set)
    groups_added: dict[str, int] = field(default_factory=dict)
    group_notes: dict[str, str] = field(default_factory=dict)


class StoredUpload(NamedTuple):
    """An uploaded picture that the server stores.

    Attributes:
        key: see `pages.server.uploaded_pictures`; "" if it could not be stored.
        since: time of the monotonic clock when it was last stored or read [s].
    """

    content: bytes = b""
    key: str = ""
    since: float = 0.0


@dataclass
class Progress:
    """Progress of a computation over many pictures: number of finished parts."""

    done: int = 0
    stopped: bool = False


@dataclass
class Explore:
    """State of page Explore.

    Attributes:
        source: where the picture comes from.
        refused: why some of the last uploads cannot be shown, until another picture is selected.
        upload: the uploaded picture.
        files: Streamlit's ids of the last uploaded files.
        uploads: number of accepted uploads; the uploader gets a new key after each.
        stored_upload: the upload that the link reopens.
        shown_token: layout of the last shown tokens, and the link's viewer parameters for them.
        torch_due: the first view is drawn, so PyTorch may be loaded.
        frames: key of the last explained animation, and its files.
        importance, verdict: key of the picture and class for which each was measured or requested.
        best_map, more_best: name of the best map whose masks were requested, by a click and by the browser.
        stopped_best: name of the best map whose measurement was stopped.
        more_masks: key, by `method_choice.masks_name`, of the map for which the browser requests more masks.
        progress: progress of computations over many pictures, by key.
    """

    source: Literal["sample", "upload", "camera"] = "sample"
    refused: str = ""
    upload: Source | None = None
    files: tuple[str, ...] = ()
    uploads: int = 0
    stored_upload: StoredUpload = field(default_factory=StoredUpload)
    shown_token: tuple[Layout, dict[str, str]] | None = None
    torch_due: bool = False
    frames: tuple[Hashable, dict[str, bytes]] | None = None
    importance: str = ""
    verdict: str = ""
    more_masks: str = ""
    best_map: str = ""
    more_best: str = ""
    stopped_best: str = ""
    progress: dict[str, Progress] = field(default_factory=dict)


class UploadedPictures(NamedTuple):
    """Pictures of one uploader.

    Attributes:
        key: reopens them, see `pages.server.uploaded_pictures`; "" if they could not be stored.
        fresh: they come from the uploader, not from a link.
    """

    key: str = ""
    pictures: Sequence[Upload] = ()
    fresh: bool = False


@dataclass
class Compare:
    """State of page Compare.

    Attributes:
        layouts: token layouts of both sides, for which the next four are valid; None before anything was shown.
        one_view: both sides show the same view.
        seeds: selection that the server set in each side's viewer.
        lead: the side whose viewer was used last, and its selection.
        views: view of each side.
        verdicts: faithfulness of maps on contact sheets, by the sheet's key and the picture's digest.
        files: by uploader, the last uploads, or those that a link reopened.
    """

    layouts: list[tuple[int, int, int, Layout]] | None = None
    one_view: bool = False
    seeds: dict[str, Selection] = field(default_factory=dict)
    lead: tuple[str, Selection] = ("a", Selection())
    views: dict[str, View] = field(default_factory=dict)
    verdicts: dict[tuple[str, str], Verdict] = field(default_factory=dict)
    files: dict[str, UploadedPictures] = field(default_factory=dict)


@dataclass
class Checkpoints:
    """State of page Checkpoints.

    Attributes:
        uploads: number of accepted uploads; the uploader gets a new key after each.
        suggested: the name that the page filled into the form.
        refused: the last upload was rejected; the reason is shown beside the uploader.
        added: name of the checkpoint that was uploaded just now, until the page has scrolled to it.
        lesson: key and content of the last lesson.
        fetching: name of the last download that was requested in the form.
        selections: number of downloads that the page selected in the table.
    """

    uploads: int = 0
    suggested: str = ""
    refused: bool = False
    added: str = ""
    lesson: tuple[Hashable, bytes] | None = None
    fetching: str = ""
    selections: int = 0


@dataclass
class Push:
    """State of the dialog that pushes a checkpoint to the Hub.

    Attributes:
        folder: of the checkpoint, while the dialog is open.
        plan: files and destination of the push, once computed.
        problem: why the push is impossible.
        pushed: result of the push.
    """

    folder: Path | None = None
    plan: Plan | None = None
    problem: str = ""
    pushed: PushResult | None = None
