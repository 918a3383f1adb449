"""Attention snapshots and best checkpoint of a model that a foreign training loop trains.

The loop waits only while the weights are copied; a thread converts, explains and saves them. For a model that cannot be
converted, the loop waits for a forward pass that returns its attention.
"""

import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from PIL import Image
from torch import Tensor, nn

from vit.checkpoints.checkpoint import check_preprocess
from vit.checkpoints.families.tensor_shapes import Tensors
from vit.checkpoints.modules import live_module
from vit.checkpoints.modules.live_module import LiveModule
from vit.checkpoints.save import save_checkpoint
from vit.errors import InvalidConfig, UserError
from vit.explain.attention_tensors import record_of_attention
from vit.explain.record import AttentionRecord
from vit.images.preprocess import Normalise, Preprocess
from vit.model.cpu import without_onednn
from vit.training.loop.snapshot_writer import SnapshotWriter, choose

_PICTURES = 6  # pictures that are followed
_LEFT_OUT = "Attention and checkpoints are left out"

log = logging.getLogger(__name__)

Attention = Callable[[nn.Module, Tensor], Any]
"""Maps a model and normalised pictures (n, channels, height, width) to the attention of its L blocks, (n, H, N, N)
each; or to an output with these as `attentions` and optionally `logits` (n, C), like transformers' models."""


class FollowedPictures(NamedTuple):
    """Pictures to follow, PIL or uint8 (channels, height, width) each, with their labels, if known."""

    pictures: list[Image.Image | Tensor]
    labels: list[int]


def follow(
    pictures: Sequence[Image.Image] | Tensor | None, labels: Sequence[int] | Tensor | None, classes: Sequence[str]
) -> FollowedPictures:
    """Choose a few of the pictures, from all classes.

    Raises:
        InvalidConfig: an unsupported type of pictures, or labels that do not match them.
    """
    count = 0 if pictures is None else len(pictures)
    numbers = [] if labels is None else [int(label) for label in labels]
    if labels is not None and len(numbers) != count:
        raise InvalidConfig(f"labels: there are {len(numbers)} for {count} pictures.")
    wrong = [label for label in numbers if label < 0 or (classes and label >= len(classes))]
    if wrong:
        raise InvalidConfig(f"labels: {wrong[0]} is no class; {len(classes)} are named.")
    places = choose(torch.tensor(numbers), _PICTURES) if numbers else list(range(min(count, _PICTURES)))
    chosen = [pictures[place] for place in places] if pictures is not None else []
    for picture in chosen:
        if not isinstance(picture, Image.Image) and not (isinstance(picture, Tensor) and picture.dtype is torch.uint8):
            raise InvalidConfig("pictures must be PIL pictures, or a tensor of uint8: before they are normalised.")
    return FollowedPictures(chosen, [numbers[place] for place in places] if numbers else [])


class LiveSnapshots:
    """Records the attention and the best weights of a model that a foreign loop trains.

    Args:
        run: the run's folder.
        followed: the pictures to explain.
        classes: one name per class; empty for the model's own.
        preprocess: None for the usual one of the model's library.
        attention: returns the attention of a model that cannot be converted.
        say: called with a topic and a sentence about a problem or an assumption; also from the thread.
    """

    def __init__(
        self,
        run: Path,
        followed: FollowedPictures,
        classes: Sequence[str],
        preprocess: Preprocess | None,
        attention: Attention | None,
        say: Callable[[str, str], None],
    ):
        if attention and not preprocess:
            raise InvalidConfig("attention: give preprocess as well; of a model that is not converted it is not known.")
        self.run, self.followed, self.classes, self.say = run, followed, list(classes), say
        self.preprocess, self.attention = preprocess, attention
        self._live: LiveModule | None = None
        self._searched: Callable[[], object] = lambda: None  # weak reference to the module of `_live`
        self._writer: SnapshotWriter | None = None
        self._usable, self._compared = True, False
        self._thread = ThreadPoolExecutor(1, "vit-live-snapshots")
        self._job: Future[None] | None = None

    def take(self, epoch: int, model: nn.Module, facts: Mapping[str, Any] | None) -> str:
        """Copy the model's weights; a thread explains the copy and optionally saves it.

        Args:
            facts: metadata of the checkpoint to save; None to save none.

        Returns:
            the name of the model's device; "" if nothing was copied.
        """
        self.wait()
        if self._usable:
            try:
                live = self._find(model)
                writer = self._writer = self._writer or self._snapshot_writer(live)
            except UserError as error:
                self._give_up_conversion(str(error))
        if not self._usable:
            return self._record_attention(epoch, model) if self.attention else ""
        own_logits = None if self._compared else self._own_logits(live, writer)
        job = (epoch, live, live_module.copied(live.module), writer, own_logits, facts)
        self._job = self._thread.submit(self._explain_and_save, *job)
        return _device_of(live.module)

    def _record_attention(self, epoch: int, model: nn.Module) -> str:
        """Record the attention that the model itself returns."""
        assert self.attention and self.preprocess
        parameter = next(model.parameters())
        writer = self._writer = self._writer or self._writer_of(self.preprocess, self.classes)
        if not len(writer.images):
            return ""
        pixels = Normalise(self.preprocess, parameter.device)(writer.images.to(parameter.device)).to(parameter.dtype)
        try:
            with live_module.evaluating(model), torch.no_grad():
                records = _records_of(self.attention(model, pixels), len(pixels), self.preprocess.size)
        except Exception as error:  # a foreign module may raise anything
            self.attention = None
            self.say("attention", f"Attention is left out: {error}")
            return ""
        if any(record.logits.shape[1] not in (0, len(writer.classes)) for record in records):
            writer.classes = [f"class {number}" for number in range(records[0].logits.shape[1])]
        self._job = self._thread.submit(self._store_records, epoch, writer, records)
        return _device_of(model)

    def _give_up_conversion(self, why: str) -> None:
        """Report why the model cannot be converted, and stop trying."""
        self._usable, self._writer = False, None
        left_out = "Checkpoints are left out, and attention is what the model gives" if self.attention else _LEFT_OUT
        self.say("model", f"{left_out}: {why}")

    def wait(self) -> None:
        """Wait until the previous epoch is written, so that at most one copy is in memory."""
        if self._job is not None:
            self._job.result()
            self._job = None

    def close(self) -> None:
        """Write what is pending, and end the thread."""
        self.wait()
        self._thread.shutdown()

    # --- In the training loop's thread --------------------------------------------------------------------------

    def _find(self, model: nn.Module) -> LiveModule:
        """Return the Vision Transformer in the module; the search is done once per module."""
        if self._live is None or self._searched() is not model:
            live = live_module.find_vit(model)
            if self._live is None:
                for field, why in live.assumed.items():
                    self.say(field, why)
            self._live, self._searched = live, weakref.ref(model)
        return self._live

    def _snapshot_writer(self, live: LiveModule) -> SnapshotWriter:
        """Create the snapshot writer, once the model's input is known."""
        preprocess, why = (self.preprocess, "") if self.preprocess else live.preprocess()
        check_preprocess(preprocess, live.config)
        if why:
            self.say("preprocess", why)
        return self._writer_of(preprocess, self._class_names(live) or self.classes)

    def _writer_of(self, preprocess: Preprocess, names: list[str]) -> SnapshotWriter:
        expected = (preprocess.channels, *preprocess.size)
        images = []
        for picture in self.followed.pictures:
            images.append(picture if isinstance(picture, Tensor) else _pixels(preprocess.input_image(picture)))
            if tuple(images[-1].shape) != expected:
                raise InvalidConfig(f"pictures: one is {tuple(images[-1].shape)}, and the model's input is {expected}.")
        labels = self.followed.labels
        if any(label >= len(names) for label in labels):
            self.say("labels", f"labels: {max(labels)} is no class; there are {len(names)}, so labels are left out.")
            labels = []
        stacked = torch.stack(images) if images else torch.zeros(0, *expected, dtype=torch.uint8)
        return SnapshotWriter(self.run / "probes", stacked, labels, names, preprocess)

    def _class_names(self, live: LiveModule) -> list[str]:
        """Return one name per class of the model."""
        count = live.config.num_classes
        if self.classes and count and len(self.classes) != count:
            self.say("classes", f"classes: {len(self.classes)} are named and the model has {count}: they are numbered.")
        return self.classes if len(self.classes) == count else list(live.labels)

    def _own_logits(self, live: LiveModule, writer: SnapshotWriter) -> Tensor | None:
        """Return the module's own logits of the pictures, once, to check the converted model."""
        self._compared = True
        if not len(writer.images):
            return None
        try:
            return live_module.own_logits(live, Normalise(writer.preprocess, torch.device("cpu"))(writer.images))
        except Exception as error:  # a foreign module may raise anything
            self.say("compared", f"The converted model was not compared with the module, whose pass failed: {error}")
            return None

    # --- In the background thread -------------------------------------------------------------------------------

    def _explain_and_save(
        self,
        epoch: int,
        live: LiveModule,
        tensors: Tensors,
        writer: SnapshotWriter,
        own_logits: Tensor | None,
        facts: Mapping[str, Any] | None,
    ) -> None:
        try:
            with without_onednn():
                model = live_module.convert(live, tensors)
                pixels = Normalise(writer.preprocess, torch.device("cpu"))(writer.images)
                if own_logits is not None and not live_module.matches_module(model, pixels, own_logits):
                    return self._give_up_conversion("the outputs of the converted model differ from the module's.")
                if len(writer.images):
                    writer.store(epoch, model)
                if facts is not None:
                    names, folder = self._class_names(live), self.run / "checkpoints" / "best"
                    save_checkpoint(folder, model, names, writer.preprocess, facts)
        except Exception as error:  # an exception in the thread would go unnoticed
            log.debug("Epoch %d", epoch, exc_info=True)
            self.say("kept", f"Epoch {epoch} was not kept: {error}")

    def _store_records(self, epoch: int, writer: SnapshotWriter, records: Sequence[AttentionRecord]) -> None:
        try:
            with without_onednn():
                writer.store_records(epoch, records)
        except Exception as error:
            log.debug("Epoch %d", epoch, exc_info=True)
            self.say("kept", f"Epoch {epoch} was not kept: {error}")


def _records_of(output: Any, count: int, size: tuple[int, int]) -> list[AttentionRecord]:
    """Build a record per picture from the attention that the model returned.

    Raises:
        UserError: it is not the attention of all blocks and pictures.
    """
    blocks = getattr(output, "attentions", output)
    if not isinstance(blocks, list | tuple) or not blocks or not all(isinstance(block, Tensor) for block in blocks):
        raise UserError("attention must give one tensor (pictures, heads, tokens, tokens) per block.")
    if wrong := [tuple(block.shape) for block in blocks if block.ndim != 4 or len(block) != count]:
        raise UserError(f"attention of a block must be ({count}, heads, tokens, tokens), not {wrong[0]}.")
    grid = _grid_of(blocks[0].shape[-1], size)
    logits = getattr(output, "logits", None)
    answers = torch.zeros(count, 0) if logits is None else logits.detach().float().cpu()
    records = [record_of_attention([block[i] for block in blocks], grid) for i in range(count)]
    return [replace(record, logits=row[None]) for record, row in zip(records, answers, strict=True)]


def _grid_of(tokens: int, size: tuple[int, int]) -> tuple[int, int] | None:
    """Return (rows, cols) for the smallest square patch that yields at most `tokens` patches; None without one."""
    sides = (side for side in range(1, min(size) + 1) if not size[0] % side and not size[1] % side)
    grids = ((size[0] // side, size[1] // side) for side in sides)
    return next((grid for grid in grids if grid[0] * grid[1] <= tokens), None)


def _device_of(module: nn.Module) -> str:
    """Return the name of a module's device."""
    device = next(module.parameters()).device
    return f"cuda:{device.index or 0}" if device.type == "cuda" else device.type


def _pixels(picture: Image.Image) -> Tensor:
    """Convert a picture to uint8 (channels, height, width)."""
    values = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8)
    return values.view(picture.height, picture.width, -1).permute(2, 0, 1).contiguous()
