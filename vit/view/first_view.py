"""Precomputed first view of a page, stored beside the checkpoint, so that the page need not wait for torch.

    python -m vit.view.first_view

writes `first_view.zip` into the folder of the shipped checkpoint: the explanation of the first sample at the
checkpoint's own input size, computed by the same code as on a live page. The file contains hashes of everything it was
computed from, and is ignored if one of them differs. Reading it needs no torch.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from PIL import Image

from vit import checkpoints, view
from vit.explain import methods, self_check
from vit.explain.recorded_pass import RecordedPass
from vit.files import replaced
from vit.images import samples
from vit.images.encode import encode_image
from vit.paths import PROJECT
from vit.stored_archives import read_member
from vit.untrusted import Unreadable, parse_json
from vit.view.prediction import Prediction

if TYPE_CHECKING:
    from vit.checkpoints.checkpoint import Checkpoint

FILE = "first_view.zip"
CHECKPOINT = "everyday"  # shipped; the page opens it first
SAMPLE = "coffee"  # initial picture of the page
METHOD = "attnlrp"  # initial class-specific method, the recommended one of this checkpoint
COMMAND = "python -m vit.view.first_view"
_MEMBERS = ("made_of.json", "view.json", "payload", "seen.png")
_MEMBER_BYTES = 64 << 20


class Config(NamedTuple):
    """The fields of `vit.model.config.ViTConfig` that a page shows."""

    image_size: tuple[int, int]
    patch_size: int
    grid: tuple[int, int]
    depth: int
    heads: int
    dim: int
    pool: str
    multi_label: bool


class Input(NamedTuple):
    """The fields of `vit.images.preprocess.Preprocess` that a page shows.

    Attributes:
        size: (height, width) [px].
    """

    size: tuple[int, int]


class Model(NamedTuple):
    """The fields of `vit.checkpoints.Checkpoint` that a page shows before the checkpoint is loaded. Same names."""

    name: str
    identity: str
    config: Config
    labels: tuple[str, ...]
    assumed: Mapping[str, str]
    card: str
    facts: Mapping[str, Any]
    family: str
    params: int

    @property
    def custom_classes(self) -> None:
        """Always None: a stored view uses the checkpoint's own classes."""

    @property
    def estimates(self) -> bool:
        """Always False: the shipped checkpoint has classes."""
        return False

    @property
    def preprocess(self) -> Input:
        """Preprocessing at the model's own input size."""
        height, width = self.config.image_size
        return Input((height, width))


class Record(NamedTuple):
    """The shape of a `vit.explain.record.AttentionRecord`. Its numbers are in the payload."""

    blocks: int
    heads: int
    tokens: int
    prefix: tuple[str, ...]
    grid: tuple[int, int]


@dataclass(frozen=True)
class Explanation:
    """The fields of `vit.view.explanation.Explanation` that a page shows. Same names."""

    record: Record
    predictions: tuple[Prediction, ...]
    probabilities: tuple[float, ...]
    logit: float
    payload: bytes
    png: bytes

    @cached_property
    def input_image(self) -> Image.Image:
        """The model's input."""
        return Image.open(io.BytesIO(self.png), formats=("PNG",)).convert("RGB")


@dataclass(frozen=True)
class FirstView:
    """Content of the first view.

    Attributes:
        size: (height, width) of the model's input [px].
        error: of the self-check, see `vit.explain.self_check`.
        target: class that `METHOD` explains.
        weights: of the method's map for the class, (N,).
    """

    checkpoint: Model
    explanation: Explanation
    size: tuple[int, int]
    error: float
    target: int
    weights: Sequence[float]


def write(folder: Path) -> Path:
    """Compute the first view of the checkpoint in a folder and store it there. Returns the file's path."""
    content = pack(build(checkpoints.load_checkpoint(folder)), fingerprint(folder))
    with replaced(folder / FILE) as file:
        file.write(content)
    return folder / FILE


def read(folder: Path) -> FirstView | None:
    """Read the first view in a checkpoint's folder; None if it is missing or outdated."""
    try:
        members = {name: read_member(folder / FILE, name, _MEMBER_BYTES) for name in _MEMBERS}
        stale = parse_json(members["made_of.json"]) != fingerprint(folder)
        view = None if stale else _unpack_view(members)
        return view if view and view.checkpoint.name == folder.name else None  # a renamed folder makes it outdated
    except (OSError, Unreadable, ValueError, KeyError, TypeError, AttributeError):  # missing, or of an older version
        return None


def build(checkpoint: Checkpoint) -> FirstView:
    """Explain the first sample with the code that pages use."""
    image = samples.read(SAMPLE)
    explanation = view.explain(checkpoint, image)
    record, target = explanation.record, int(explanation.record.logits[0].argmax())
    recorded = RecordedPass.forward_only(checkpoint.model, explanation.preprocess(explanation.picture), target)
    config = checkpoint.config
    return FirstView(
        checkpoint=Model(
            name=checkpoint.name,
            identity=checkpoint.identity,
            config=Config(**{name: getattr(config, name) for name in Config._fields}),
            labels=checkpoint.labels,
            assumed=checkpoint.assumed,
            card=checkpoint.card,
            facts=checkpoint.facts,
            family=checkpoints.summarise(checkpoint.path).family,
            params=checkpoint.params,
        ),
        explanation=Explanation(
            Record(record.blocks, record.heads, record.tokens, record.prefix, record.grid),
            tuple(Prediction(*one) for one in explanation.predictions),
            explanation.probabilities,
            explanation.logit,
            explanation.payload,
            encode_image(explanation.input_image, "PNG"),
        ),
        size=explanation.preprocess.size,
        error=self_check.verify(checkpoint.model, checkpoint.preprocess(explanation.picture)),
        target=target,
        weights=methods.weights(recorded, METHOD).tolist(),
    )


def fingerprint(folder: Path) -> dict[str, Any]:
    """Return everything that a first view depends on: SHA-256 of all files by name, and the method."""
    own = (path for path in folder.iterdir() if path.is_file() and not path.name.startswith("."))
    files = {path.name: path for path in own if path.suffix != ".zip"}  # ZIP files are derived from the others
    files["sample"] = samples.SAMPLES[SAMPLE].path
    hashes = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}
    return hashes | {"method": METHOD}


def pack(view: FirstView, made_of: Mapping[str, Any]) -> bytes:
    """Serialise a first view with its fingerprint."""
    model, explanation = view.checkpoint, view.explanation
    facts = {
        "checkpoint": model._asdict() | {"config": model.config._asdict(), "assumed": dict(model.assumed)},
        "record": explanation.record._asdict(),
        "predictions": explanation.predictions,
        "probabilities": explanation.probabilities,
        "logit": explanation.logit,
        "size": view.size,
        "error": view.error,
        "target": view.target,
        "weights": view.weights,
    }
    parts: dict[str, bytes] = {
        "made_of.json": json.dumps(made_of).encode(),
        "view.json": json.dumps(facts, ensure_ascii=False).encode(),
        "payload": explanation.payload,
        "seen.png": explanation.png,
    }
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in parts.items():
            # ZipInfo's fixed date makes the file reproducible.
            archive.writestr(zipfile.ZipInfo(name), part, zipfile.ZIP_DEFLATED)
    return out.getvalue()


def _unpack_view(members: Mapping[str, bytes]) -> FirstView:
    facts = parse_json(members["view.json"])
    model, record = facts["checkpoint"], facts["record"]
    model["config"] = Config(**{name: _as_tuples(value) for name, value in model["config"].items()})
    return FirstView(
        checkpoint=Model(**model | {"labels": tuple(model["labels"])}),
        explanation=Explanation(
            Record(**{name: _as_tuples(value) for name, value in record.items()}),
            tuple(Prediction(*one) for one in facts["predictions"]),
            tuple(facts["probabilities"]),
            facts["logit"],
            members["payload"],
            members["seen.png"],
        ),
        size=tuple(facts["size"]),
        error=facts["error"],
        target=facts["target"],
        weights=facts["weights"],
    )


def _as_tuples(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def main() -> None:
    """Write the first view of the shipped checkpoint."""
    path = write(PROJECT / "checkpoints" / CHECKPOINT)
    print(f"{path}: {path.stat().st_size / 1e3:,.0f} kB")


if __name__ == "__main__":
    main()
