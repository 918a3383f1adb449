"""Attention during training: snapshots of a few pictures after every epoch.

A run's folder `probes/` has one file per epoch, `epoch-00001.zip`, written atomically. It is a ZIP file of

    facts.json      for each picture its label, the predictions, and the entropy of its attention
    0.vit, 1.vit    one viewer payload per picture, see `vit.view.payload`

Reading needs no torch, so that pages that watch a run stay light.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from vit import view
from vit.errors import InvalidRun
from vit.stored_archives import read_member
from vit.untrusted import Unreadable, is_number, is_text, parse_json

FOLDER_BYTES = 200 << 20  # maximum size of the folder; beyond it, every other epoch is deleted

_FILE = re.compile(r"epoch-([0-9]{5,9})\.zip")


class Snapshot(NamedTuple):
    """One picture after one epoch.

    Attributes:
        label: the true class; "" if unknown.
        probability: predicted for the true class, 0 to 1; None if it is unknown or the model has no classes.
        predictions: most probable classes with probabilities, best first; empty for a model without classes.
        entropy: (L, H), normalised entropy of attention, averaged over all tokens: 0 for one key, 1 for uniform.
    """

    label: str
    probability: float | None
    predictions: tuple[tuple[str, float], ...]
    entropy: tuple[tuple[float, ...], ...]


def list_epochs(folder: Path) -> list[int]:
    """Return the stored epochs in order; empty if the folder does not exist yet."""
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return []
    return sorted(int(match[1]) for name in names if (match := _FILE.fullmatch(name)))


def stamp(folder: Path, epoch: int) -> int:
    """Return the modification time of an epoch's file [ns], as a cache key; 0 if there is none."""
    try:
        return epoch_file(folder, epoch).stat().st_mtime_ns
    except OSError:
        return 0


def read_snapshots(folder: Path, epoch: int) -> list[Snapshot]:
    """Read the predictions for each picture after an epoch.

    Raises:
        InvalidRun: the epoch is not stored, or its file is damaged.
    """
    try:
        snapshots = [_parse_snapshot(fact) for fact in parse_json(_read_member(folder, epoch, "facts.json"))]
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(epoch) from error
    if not snapshots or len({tuple(map(len, one.entropy)) for one in snapshots}) > 1:
        raise _damaged(epoch)
    return snapshots


def _parse_snapshot(fact: dict[str, Any]) -> Snapshot:
    """Parse and validate a picture's facts."""
    predictions = tuple((label, p) for label, p in fact["predictions"])
    entropy = tuple(map(tuple, fact["entropy"]))
    sure = [p for p in (fact["probability"], *(p for _, p in predictions)) if p is not None]
    texts = [fact["label"], *(label for label, _ in predictions)]
    spread = [value for heads in entropy for value in heads]
    if not (
        all(map(is_text, texts))
        and all(is_number(p, 0, 1.001) for p in sure)
        and all(map(is_number, spread))
        and entropy
        and all(entropy)
    ):
        raise ValueError("A picture's facts cannot be.")
    return Snapshot(fact["label"], fact["probability"], predictions, entropy)


def read_payload(folder: Path, epoch: int, picture: int) -> bytes:
    """Read the viewer payload of a picture after an epoch, see `vit.view.payload`.

    Raises:
        InvalidRun: the epoch is not stored, has no such picture, or its file is damaged.
    """
    payload = _read_member(folder, epoch, f"{picture}.vit")
    try:
        header, sections = view.unpack(payload)
        if "picture" not in sections or header["blocks"] < 1 or header["heads"] < 1:
            raise _damaged(epoch)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise _damaged(epoch) from error
    return payload


def _read_member(folder: Path, epoch: int, member: str) -> bytes:
    try:
        return read_member(epoch_file(folder, epoch), member, FOLDER_BYTES)
    except FileNotFoundError as error:
        raise InvalidRun(f"The pictures of epoch {epoch} are not kept. Choose another epoch.") from error
    except Unreadable as error:
        raise _damaged(epoch) from error


def _damaged(epoch: int) -> InvalidRun:
    return InvalidRun(f"The pictures of epoch {epoch} are damaged. Choose another epoch.")


def epoch_file(folder: Path, epoch: int) -> Path:
    """Return the path of an epoch's file in the folder `probes/` of a run."""
    return folder / f"epoch-{epoch:05}.zip"
