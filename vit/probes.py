"""Attention while it learns: a few validation pictures, explained after every epoch and kept small.

A run's folder `probes/` holds one file per epoch, `epoch-00001.zip`, whole or absent. It is a ZIP file of

    facts.json      for each picture its label, what the model made of it, and how spread its attention is
    0.vit, 1.vit    one payload of `vit.viewer` per picture

Reading needs no torch, so that a page that watches a run stays light.
"""

from __future__ import annotations

import json
import logging
import re
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from vit.border import Unreadable, is_number, is_text, open_file, parse_json
from vit.errors import InvalidRun
from vit.files import replaced

if TYPE_CHECKING:
    from torch import Tensor

    from vit.images.preprocess import Preprocess
    from vit.model.config import ViTConfig
    from vit.model.transformer import VisionTransformer

FOLDER_BYTES = 200 << 20  # of all epochs; then every other one goes
EPOCH_BYTES = 8 << 20  # of one epoch, unless a single picture takes more
TOP = 5  # predictions kept

_FILE = re.compile(r"epoch-([0-9]{5,9})\.zip")

log = logging.getLogger(__name__)


class Probe(NamedTuple):
    """One picture after one epoch.

    Attributes:
        label: the true class.
        probability: that the model gives to it, 0 to 1.
        predictions: the most probable classes with their probability, best first.
        entropy: (L, H), spread of a row of attention, mean over all tokens: 0 for one key, 1 for uniform.
    """

    label: str
    probability: float
    predictions: tuple[tuple[str, float], ...]
    entropy: tuple[tuple[float, ...], ...]


def choose(labels: Tensor, count: int = 6) -> list[int]:
    """Pick pictures to follow: the first of each class in turn, the same for the same labels.

    Args:
        labels: (n,)
        count: how many; fewer where there are fewer pictures.

    >>> import torch
    >>> choose(torch.tensor([0, 0, 0, 1, 1, 2]), 4)
    [0, 3, 5, 1]
    """
    seen: dict[int, int] = {}
    places = []
    for index, label in enumerate(labels.tolist()):
        seen[label] = seen.get(label, 0) + 1
        places.append((seen[label], label, index))
    chosen = sorted(places)
    turn = [place for place in chosen if place[0] == 1]
    if len(turn) > count:  # of many classes, some from all over
        return [turn[i * len(turn) // count][2] for i in range(count)]
    return [index for _, _, index in chosen[:count]]


class ProbeWriter:
    """Explains the probe pictures whenever it is asked to.

    Args:
        folder: made when the first epoch is stored.
        images: uint8 (n, channels, height, width) of the model's input size.
        labels: the true class of each.
        classes: one name per label.
        preprocess: mean and standard deviation of the model's input.
    """

    def __init__(
        self, folder: Path, images: Tensor, labels: Sequence[int], classes: Sequence[str], preprocess: Preprocess
    ):
        self.folder, self.images, self.preprocess = folder, images.cpu(), preprocess
        self.labels, self.classes = [int(label) for label in labels], list(classes)

    def store(self, epoch: int, model: VisionTransformer) -> None:
        """Keep what the model makes of the pictures after this epoch; later epochs there are forgotten.

        The model stays as it is, its mode included. Other troubles than those of the disk are logged: no run ends
        because its pictures could not be explained.

        Args:
            epoch: from 1.

        Raises:
            OSError: the disk is full, or refuses otherwise.
        """
        training = model.training
        model.eval()
        try:
            facts, payloads = self._explained(model)
        except (RuntimeError, ValueError) as error:
            log.warning("The probe pictures of epoch %d were not explained: %s", epoch, error)
            return
        finally:
            model.train(training)
        self.folder.mkdir(exist_ok=True)
        with replaced(_path(self.folder, epoch)) as file, zipfile.ZipFile(file, "w") as archive:
            _add(archive, "facts.json", json.dumps(facts).encode())
            for i, payload in enumerate(payloads):
                _add(archive, f"{i}.vit", payload)
        _thin_out(self.folder, epoch)

    def _explained(self, model: VisionTransformer) -> tuple[list[dict[str, object]], list[bytes]]:
        import torch
        from PIL import Image

        from vit.attention import AttentionRecord, entropy
        from vit.evaluate import Normalise
        from vit.overlay import COLORMAPS
        from vit.viewer.payload import pack

        device = next(model.parameters()).device
        images = self.images[: max(1, EPOCH_BYTES // _payload_bytes(model.config))]
        patch = model.config.patch_size
        with torch.inference_mode():
            pixels = Normalise(self.preprocess, device)(images.to(device))
            output = model(pixels, output_queries_keys=True)
            probabilities = output.logits.float().softmax(1).cpu()
        facts: list[dict[str, object]] = []
        payloads = []
        for i, image in enumerate(images):
            record = AttentionRecord(
                logits=output.logits[i : i + 1],
                queries=tuple(q[i] for q in output.queries),
                keys=tuple(k[i] for k in output.keys),
                prefix=model.config.prefix,
                grid=(image.shape[1] // patch, image.shape[2] // patch),
                pool_attention=None if output.pool_attention is None else output.pool_attention[i],
            )
            bands = image.permute(1, 2, 0).numpy()  # (height, width, channels)
            picture = Image.fromarray(bands if bands.shape[2] == 3 else bands[..., 0]).convert("RGB")
            with torch.inference_mode():
                payloads.append(pack(record, picture, (0, 0, *picture.size), COLORMAPS))
                spread = torch.stack([entropy(record.full(block)).mean(-1) for block in range(record.blocks)])
            best = probabilities[i].topk(min(TOP, len(self.classes)))
            facts.append(
                {
                    "label": self.classes[self.labels[i]],
                    "probability": round(probabilities[i, self.labels[i]].item(), 5),
                    "predictions": [
                        [self.classes[label], round(p, 5)]
                        for p, label in zip(best.values.tolist(), best.indices.tolist(), strict=True)
                    ],
                    "entropy": [[round(value, 4) for value in heads] for heads in spread.tolist()],
                }
            )
        return facts, payloads


def list_epochs(folder: Path) -> list[int]:
    """The epochs that are kept, in order; none where the folder is not there yet."""
    try:
        names = [path.name for path in folder.iterdir()]
    except OSError:
        return []
    return sorted(int(match[1]) for name in names if (match := _FILE.fullmatch(name)))


def read_probes(folder: Path, epoch: int) -> list[Probe]:
    """What the model made of each picture after an epoch.

    Raises:
        InvalidRun: the epoch is not kept, or its file is damaged.
    """
    try:
        probes = [_probe(fact) for fact in parse_json(_read(folder, epoch, "facts.json"))]
    except (ValueError, KeyError, TypeError) as error:
        raise _damaged(epoch) from error
    if not probes or len({tuple(map(len, probe.entropy)) for probe in probes}) > 1:
        raise _damaged(epoch)
    return probes


def _probe(fact: dict[str, Any]) -> Probe:
    """A picture's facts, none of them a value that it cannot have."""
    predictions = tuple((label, p) for label, p in fact["predictions"])
    entropy = tuple(map(tuple, fact["entropy"]))
    sure = [fact["probability"], *(p for _, p in predictions)]
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
    return Probe(fact["label"], fact["probability"], predictions, entropy)


def read_payload(folder: Path, epoch: int, picture: int) -> bytes:
    """A picture and its attention after an epoch, for `vit.viewer`.

    Raises:
        InvalidRun: the epoch is not kept, has no such picture, or its file is damaged.
    """
    from vit.viewer.payload import unpack

    payload = _read(folder, epoch, f"{picture}.vit")
    try:
        header, sections = unpack(payload)
        if "picture" not in sections or header["blocks"] < 1 or header["heads"] < 1:
            raise _damaged(epoch)
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise _damaged(epoch) from error
    return payload


def _read(folder: Path, epoch: int, member: str) -> bytes:
    try:
        with open_file(_path(folder, epoch)) as file, zipfile.ZipFile(file) as archive:
            if archive.getinfo(member).file_size > FOLDER_BYTES:
                raise _damaged(epoch)
            return archive.read(member)
    except FileNotFoundError as error:
        raise InvalidRun(f"The probe pictures of epoch {epoch} are not kept. Choose another epoch.") from error
    except (OSError, Unreadable, KeyError, ValueError, RuntimeError, zipfile.BadZipFile, zlib.error, EOFError) as error:
        if isinstance(error, InvalidRun):
            raise
        raise _damaged(epoch) from error


def _damaged(epoch: int) -> InvalidRun:
    return InvalidRun(f"The probe pictures of epoch {epoch} are damaged. Choose another epoch.")


def _path(folder: Path, epoch: int) -> Path:
    return folder / f"epoch-{epoch:05}.zip"


def _add(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name), content)  # stored as it is, at no time: the same run gives the same bytes


def _thin_out(folder: Path, newest: int) -> None:
    """Keep the folder small: the first epoch, every so many after it, and the newest.

    How many is told by the first two files that are there, so a resumed run goes on where a killed one was.
    """
    for epoch in list_epochs(folder):
        if epoch > newest:
            _path(folder, epoch).unlink()
    epochs = list_epochs(folder)
    first = epochs[0]
    stride = epochs[1] - first if len(epochs) > 2 else 1
    while True:
        for epoch in [epoch for epoch in epochs if (epoch - first) % stride and epoch != newest]:
            _path(folder, epoch).unlink()  # the oldest first: it tells the stride if we are killed here
        epochs = list_epochs(folder)
        if len(epochs) <= 2 or sum(_path(folder, epoch).stat().st_size for epoch in epochs) <= FOLDER_BYTES:
            return
        stride *= 2


def _payload_bytes(config: ViTConfig) -> int:
    """About what one picture takes; see `vit.viewer.payload`."""
    from vit.viewer.payload import MAPS_UP_TO

    rows, cols = config.grid
    prefix, patches = len(config.prefix), rows * cols
    tokens = prefix + patches
    row = patches + 2 * prefix + 4 if tokens <= MAPS_UP_TO else 4 * config.dim // config.heads + 4
    return config.depth * config.heads * tokens * row + 3 * patches * config.patch_size**2
