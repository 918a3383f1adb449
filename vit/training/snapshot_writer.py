"""Attention while it learns: a few validation pictures, explained after every epoch and kept small.

`vit.view.attention_snapshots` says what the files hold.
"""

from __future__ import annotations

import json
import logging
import zipfile
from collections.abc import Sequence
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

EPOCH_BYTES = 8 << 20  # of one epoch, unless a single picture takes more
TOP_PREDICTIONS = 5  # predictions kept

log = logging.getLogger(__name__)


def choose(labels: Tensor, count: int = 6) -> list[int]:
    """Pick pictures to follow: the first of each class in turn, the same for the same labels.

    Args:
        labels: (n,)
        count: how many; fewer where there are fewer pictures.

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
    if len(turn) > count:  # of many classes, some from all over
        return [turn[i * len(turn) // count][2] for i in range(count)]
    return [index for _, _, index in chosen[:count]]


class SnapshotWriter:
    """Explains a few pictures whenever it is asked to.

    Args:
        folder: made when the first epoch is stored.
        images: uint8 (n, channels, height, width) of the model's input size.
        labels: the true class of each; none where it is not known.
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
            facts, payloads = self._explain_pictures(model)
        except (RuntimeError, ValueError) as error:
            log.warning("The pictures of epoch %d were not explained: %s", epoch, error)
            return
        finally:
            model.train(training)
        self.folder.mkdir(exist_ok=True)
        with replaced(epoch_file(self.folder, epoch)) as file, zipfile.ZipFile(file, "w") as archive:
            _add_member(archive, "facts.json", json.dumps(facts).encode())
            for i, payload in enumerate(payloads):
                _add_member(archive, f"{i}.vit", payload)
        _thin_out(self.folder, epoch)

    def _explain_pictures(self, model: VisionTransformer) -> tuple[list[dict[str, object]], list[bytes]]:

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
            best = probabilities[i].topk(min(TOP_PREDICTIONS, model.config.num_classes))
            known = bool(self.labels) and model.config.num_classes > 0
            facts.append(
                {
                    "label": self.classes[self.labels[i]] if self.labels else "",
                    "probability": round(probabilities[i, self.labels[i]].item(), 5) if known else None,
                    "predictions": [
                        [self.classes[label], round(p, 5)]
                        for p, label in zip(best.values.tolist(), best.indices.tolist(), strict=True)
                    ],
                    "entropy": [[round(value, 4) for value in heads] for heads in spread.tolist()],
                }
            )
        return facts, payloads


def _add_member(archive: zipfile.ZipFile, name: str, content: bytes) -> None:
    archive.writestr(zipfile.ZipInfo(name), content)  # stored as it is, at no time: the same run gives the same bytes


def _thin_out(folder: Path, newest: int) -> None:
    """Keep the folder small: the first epoch, every so many after it, and the newest.

    How many is told by the first two files that are there, so a resumed run goes on where a killed one was.
    """
    for epoch in list_epochs(folder):
        if epoch > newest:
            epoch_file(folder, epoch).unlink()
    epochs = list_epochs(folder)
    first = epochs[0]
    stride = epochs[1] - first if len(epochs) > 2 else 1
    while True:
        for epoch in [epoch for epoch in epochs if (epoch - first) % stride and epoch != newest]:
            epoch_file(folder, epoch).unlink()  # the oldest first: it tells the stride if we are killed here
        epochs = list_epochs(folder)
        if len(epochs) <= 2 or sum(epoch_file(folder, epoch).stat().st_size for epoch in epochs) <= FOLDER_BYTES:
            return
        stride *= 2


def _payload_bytes(config: ViTConfig) -> int:
    """About what one picture takes; see `vit.view.payload`."""
    rows, cols = config.grid
    prefix, patches = len(config.prefix), rows * cols
    tokens = prefix + patches
    row = patches + 2 * prefix + 4 if tokens <= MAPS_UP_TO else 4 * config.dim // config.heads + 4
    return config.depth * config.heads * tokens * row + 3 * patches * config.patch_size**2
