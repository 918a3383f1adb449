"""Attention snapshots during training: a few validation pictures, explained after every epoch and stored compactly.

`vit.view.attention_snapshots` defines the file format.
"""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import torch
from PIL import Image
from torch import Tensor

from vit.explain.maps import entropy
from vit.explain.record import AttentionRecord
from vit.files import replaced
from vit.images.preprocess import Normalise, Preprocess
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer
from vit.view.attention_snapshots import FOLDER_BYTES, epoch_file, list_epochs
from vit.view.overlay import COLORMAPS
from vit.view.payload import MAPS_UP_TO, pack

EPOCH_BYTES = 8 << 20  # limit per epoch, unless a single picture takes more
TOP_PREDICTIONS = 5  # predictions stored per picture

log = logging.getLogger(__name__)


def choose(labels: Tensor, count: int = 6) -> list[int]:
    """Choose pictures to follow: the first of each class in turn, deterministically.

    Args:
        labels: (n,)
        count: number of pictures, if there are as many.

    >>> import torch
    >>> choose(torch.tensor([0, 0, 0, 1, 1, 2]), 4)
    [0, 3, 5, 1]
    """
    counts: dict[int, int] = {}
    places = []
    for index, label in enumerate(labels.tolist()):
        counts[label] = counts.get(label, 0) + 1
        places.append((counts[label], label, index))
    chosen = sorted(places)
    turn = [entry for entry in chosen if entry[0] == 1]
    if len(turn) > count:  # with more classes than pictures, spread over the range of labels
        return [turn[i * len(turn) // count][2] for i in range(count)]
    return [index for _, _, index in chosen[:count]]


class SnapshotWriter:
    """Explains a few fixed pictures and stores the result.

    Args:
        folder: created with the first epoch.
        images: uint8 (n, channels, height, width) at the model's input size.
        labels: true label of each; empty if unknown.
        classes: one name per label.
        preprocess: mean and standard deviation of the model's input.
    """

    def __init__(
        self, folder: Path, images: Tensor, labels: Sequence[int], classes: Sequence[str], preprocess: Preprocess
    ):
        self.folder, self.images, self.preprocess = folder, images.cpu(), preprocess
        self.labels, self.classes = [int(label) for label in labels], list(classes)

    def store(self, epoch: int, model: VisionTransformer) -> None:
        """Store the model's explanations of the pictures after this epoch; later epochs' files are deleted.

        The model's mode is restored. Errors other than the disk's are logged: a run must not fail because its pictures
        could not be explained.

        Args:
            epoch: from 1.

        Raises:
            OSError: the disk is full or cannot be written.
        """
        training = model.training
        model.eval()
        try:
            explained = self._explain_pictures(model)
        except (RuntimeError, ValueError) as error:
            log.warning("The pictures of epoch %d were not explained: %s", epoch, error)
            return
        finally:
            model.train(training)
        self._store(epoch, explained)

    def store_records(self, epoch: int, records: Sequence[AttentionRecord]) -> None:
        """Store another model's explanations of the pictures after this epoch; later epochs' files are deleted.

        Args:
            epoch: from 1.
            records: one per picture; logits are (1, C) for C classes, or (1, 0).

        Raises:
            OSError: the disk is full or cannot be written.
        """
        sizes = (sum(keys[0].shape[0] * keys[0].shape[1] ** 2 for keys in one.keys) for one in records)
        most = max(1, EPOCH_BYTES // max(sizes))
        # Only the logits are known here. A single output is a binary decision, as in `VisionTransformer`.
        shares = torch.sigmoid if records[0].logits.shape[1] == 1 else partial(torch.softmax, dim=-1)
        self._store(epoch, [self._explain(place, record, shares) for place, record in enumerate(records[:most])])

    def _store(self, epoch: int, explained: Sequence[tuple[dict[str, object], bytes]]) -> None:
        """Write the facts and the payload of each picture."""
        facts, payloads = zip(*explained, strict=True)
        self.folder.mkdir(exist_ok=True)
        with replaced(epoch_file(self.folder, epoch)) as file, zipfile.ZipFile(file, "w") as archive:
            _add_member(archive, "facts.json", json.dumps(facts).encode())
            for i, payload in enumerate(payloads):
                _add_member(archive, f"{i}.vit", payload)
        _thin_out(self.folder, epoch)

    def _explain_pictures(self, model: VisionTransformer) -> list[tuple[dict[str, object], bytes]]:
        device = next(model.parameters()).device
        images = self.images[: max(1, EPOCH_BYTES // _payload_bytes(model.config))]
        patch = model.config.patch_size
        with torch.inference_mode():
            pixels = Normalise(self.preprocess, device)(images.to(device))
            output = model(pixels, output_queries_keys=True)
        records = [
            AttentionRecord(
                logits=output.logits[
                    i : i + 1, : model.config.num_classes * (model.activation != "none")
                ],  # (1, 0) for a model without classes, whose output is features or numbers
                queries=tuple(q[i] for q in output.queries),
                keys=tuple(k[i] for k in output.keys),
                prefix=model.config.prefix,
                grid=(image.shape[1] // patch, image.shape[2] // patch),
                pool_attention=None if output.pool_attention is None else output.pool_attention[i],
            )
            for i, image in enumerate(images)
        ]
        return [self._explain(place, record, model.probabilities) for place, record in enumerate(records)]

    def _explain(
        self, place: int, record: AttentionRecord, shares: Callable[[Tensor], Tensor]
    ) -> tuple[dict[str, object], bytes]:
        """Return the facts about a picture, and its payload.

        Args:
            shares: converts logits (C,) to probabilities (C,).
        """
        label = self.labels[place] if self.labels else None
        bands = self.images[place].permute(1, 2, 0).numpy()  # (height, width, channels)
        picture = Image.fromarray(bands if bands.shape[2] == 3 else bands[..., 0]).convert("RGB")
        with torch.inference_mode():
            payload = pack(record, picture, (0, 0, *picture.size), COLORMAPS)
            spread = torch.stack([entropy(record.full(block)).mean(-1) for block in range(record.blocks)])
            probabilities = shares(record.logits[0].float()).cpu()
        best = probabilities.topk(min(TOP_PREDICTIONS, len(probabilities)))
        facts: dict[str, object] = {
            "label": "" if label is None else self.classes[label],
            "probability": None if label is None or not len(probabilities) else round(probabilities[label].item(), 5),
            "predictions": [
                [self.classes[index], round(p, 5)]
                for p, index in zip(best.values.tolist(), best.indices.tolist(), strict=True)
            ],
            "entropy": [[round(value, 4) for value in heads] for heads in spread.tolist()],
        }
        return facts, payload


def _add_member(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    # Stored uncompressed and with a constant date, so that equal runs write equal bytes.
    archive.writestr(zipfile.ZipInfo(name), content)


def _thin_out(folder: Path, newest: int) -> None:
    """Keep the folder small: delete all but the first epoch, every n-th after it, and the newest.

    n is the distance of the first two files, so a resumed run continues with the n of the killed one.
    """
    for epoch in list_epochs(folder):
        if epoch > newest:
            epoch_file(folder, epoch).unlink()
    epochs = list_epochs(folder)
    first = epochs[0]
    stride = epochs[1] - first if len(epochs) > 2 else 1
    while True:
        for epoch in [epoch for epoch in epochs if (epoch - first) % stride and epoch != newest]:
            epoch_file(
                folder, epoch
            ).unlink()  # oldest first: if killed here, the first two files already show the new stride
        epochs = list_epochs(folder)
        if len(epochs) <= 2 or sum(epoch_file(folder, epoch).stat().st_size for epoch in epochs) <= FOLDER_BYTES:
            return
        stride *= 2


def _payload_bytes(config: ViTConfig) -> int:
    """Estimate the payload size of one picture [bytes]; see `vit.view.payload`."""
    rows, cols = config.grid
    prefix, patches = len(config.prefix), rows * cols
    tokens = prefix + patches
    row = patches + 2 * prefix + 4 if tokens <= MAPS_UP_TO else 4 * config.dim // config.heads + 4
    return config.depth * config.heads * tokens * row + 3 * patches * config.patch_size**2
