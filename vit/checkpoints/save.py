"""Save a checkpoint atomically."""

import json
import math
import os
import shutil
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from vit.checkpoints.card import write_card
from vit.checkpoints.checkpoint import (
    CARD,
    CONFIG,
    OURS,
    PREPROCESS,
    WEIGHTS,
    Checkpoint,
    check_preprocess,
    hollow,
    is_finite,
    old_folder,
    reason_of,
    with_weights,
)
from vit.checkpoints.families import huggingface
from vit.checkpoints.families.family import build_config
from vit.checkpoints.families.tensor_shapes import Tensors
from vit.checkpoints.fingerprint import fingerprint
from vit.checkpoints.formats.json_documents import dump_json, read_json
from vit.checkpoints.load import summarise
from vit.errors import InvalidCheckpoint, UserError
from vit.files import check_locks, wait_for_lock
from vit.images.preprocess import Preprocess
from vit.model.transformer import VisionTransformer
from vit.untrusted import brief

# --- Saving -------------------------------------------------------------------------------------------------


def save_checkpoint(
    folder: str | Path,
    model: VisionTransformer,
    labels: Sequence[str],
    preprocess: Preprocess,
    facts: Mapping[str, Any] | None = None,
    card: str | None = None,
    half: bool = False,
) -> Path:
    """Save a checkpoint atomically; the same model gives the same bytes.

    A reader, or a restart after a kill at any moment, finds either the complete old checkpoint or the complete new one.
    All files are written to a hidden folder beside the old one and synced to disk. Then the old folder is renamed away
    and the new one renamed to its place. Between the two renames only the old one exists, under a hidden name: readers
    fall back to that name, and the next save restores it. Replacing single files would mix weights, config and the
    card's accuracy of different trainings.

    Args:
        facts: about the training, see `write_card`; must be JSON. `params` is added.
        card: text of README.md; None to write it from `facts`.
        half: round the weights to float16, for half the file size.

    Raises:
        InvalidCheckpoint: the weights are not finite or too large for float16, or the preprocessing does not fit the
            model.
        UserError: the folder contains other files, or the disk is full or read-only.
        ValueError: the number of labels is wrong.
    """
    folder = Path(os.path.abspath(folder))
    config = build_config(model.config.to_dict())
    labels, facts = list(labels), dict(facts or {})
    if len(labels) != config.num_classes:
        raise ValueError(f"{len(labels)} labels for {config.num_classes} classes.")
    check_preprocess(preprocess, config)

    # Compute the fingerprint on what a reader will build from the file: on the CPU, in float32.
    state = {name.replace("_orig_mod.", ""): tensor for name, tensor in model.state_dict().items()}
    stored = torch.float16 if half else torch.float32
    tensors = {name: tensor.detach().to("cpu", stored).float() for name, tensor in state.items()}
    answer = fingerprint(with_weights(hollow(config), tensors))
    if not all(map(is_finite, tensors.values())) or not all(map(math.isfinite, answer)):
        raise InvalidCheckpoint("The weights hold NaN or infinite numbers, so they were not saved.")

    facts.setdefault("params", sum(tensor.numel() for tensor in tensors.values()))
    vit = config.to_dict()
    own = {"vit": vit, "vit_probe": answer, "training": facts}
    preprocess_document = preprocess.to_config()
    metadata = {
        "format": "pt",
        OURS: dump_json(vit),
        "vit.probe": dump_json(answer),
        "labels": dump_json(labels),
        "preprocess": dump_json(preprocess_document),
    }
    if card is None:
        card = write_card(folder.name, config, labels, facts)
    contents: dict[str, Sequence[bytes | memoryview]] = {
        CONFIG: [dump_json(huggingface.write_config(config, labels) | own, indent=2).encode()],
        PREPROCESS: [dump_json(preprocess_document, indent=2).encode()],
        CARD: [card.encode()],
        WEIGHTS: list(safetensors_pieces(huggingface.write_tensors(config, tensors), metadata, stored)),
    }
    try:
        replace_folder(folder, contents)
    except OSError as error:
        raise UserError(f"The checkpoint {folder.name!r} was not saved: {reason_of(error)}.") from error
    return folder


def check_card(checkpoint: Checkpoint) -> None:
    """Check that this app saved the checkpoint, so that facts may be added to its card.

    Raises:
        UserError: another library saved it, whose card must not be changed.
    """
    if not checkpoint.path.is_dir() or summarise(checkpoint.path).family != "saved":
        raise UserError(f"{checkpoint.name} was not saved by this app, so its card cannot be changed. Omit --card.")


def record_facts(checkpoint: Checkpoint, facts: Mapping[str, Any]) -> None:
    """Add facts to a checkpoint that this app saved and update its card; all other files stay byte-identical.

    Raises:
        UserError: another library saved it, or its folder cannot be written.
    """
    check_card(checkpoint)
    folder, merged = Path(os.path.abspath(checkpoint.path)), {**checkpoint.facts, **facts}
    try:
        contents: dict[str, Sequence[bytes | memoryview]] = {
            file.name: [file.read_bytes()] for file in folder.iterdir() if file.is_file()
        }
        config = read_json(b"".join(contents[CONFIG]), CONFIG) | {"training": merged}
        card = write_card(folder.name, checkpoint.config, checkpoint.labels, merged)
        replace_folder(folder, contents | {CONFIG: [dump_json(config, indent=2).encode()], CARD: [card.encode()]})
    except OSError as error:
        raise UserError(f"The checkpoint {folder.name!r} was not saved: {reason_of(error)}.") from error


_REPLACEABLE = ("first_view.zip", "classes.csv")  # they belong to the weights and classes that are replaced


def safetensors_pieces(
    tensors: Tensors, metadata: dict[str, str], stored: torch.dtype = torch.float32
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a safetensors file in pieces, without copying contiguous weights.

    Names are sorted and the order of the metadata is kept, because the library's order differs between processes.

    Args:
        tensors: float32, on the CPU.
        stored: type of the numbers in the file, float32 or float16.

    Source of the format: safetensors' README, section Format.
    """
    header: dict[str, Any] = {"__metadata__": metadata}
    end = 0
    for name, tensor in sorted(tensors.items()):
        begin, end = end, end + stored.itemsize * tensor.numel()
        header[name] = {"dtype": f"F{8 * stored.itemsize}", "shape": list(tensor.shape), "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # align tensors to 8 bytes
    yield struct.pack("<Q", len(text)) + text
    for _, tensor in sorted(tensors.items()):
        yield tensor.to(stored).contiguous().numpy().data


def replace_folder(folder: Path, contents: Mapping[str, Sequence[bytes | memoryview]]) -> None:
    """Replace a folder atomically by one with these files, as `save_checkpoint` describes."""
    check_locks()
    new, old = folder.parent / f".{folder.name}.new", old_folder(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        wait_for_lock(parent)  # serialises saves into this parent folder
        if old.exists() and not folder.exists():
            os.rename(old, folder)  # a save was killed between its two renames
        shutil.rmtree(old, ignore_errors=True)
        shutil.rmtree(new, ignore_errors=True)
        _check_replaceable(folder, contents)
        new.mkdir()
        try:
            for name, pieces in contents.items():
                with open(new / name, "xb") as file:
                    file.writelines(pieces)
                    file.flush()
                    os.fsync(file.fileno())
            _sync(new)
        except OSError:
            shutil.rmtree(new, ignore_errors=True)
            raise
        if folder.exists():
            os.rename(folder, old)
        os.rename(new, folder)
        os.fsync(parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        os.close(parent)


def _check_replaceable(folder: Path, contents: Mapping[str, object]) -> None:
    """Raise an error if the folder contains files that are neither a checkpoint's nor belong to one."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UserError(f"{folder.name!r} is not a folder. Choose a new name for the checkpoint.")
    others = sorted(set(os.listdir(folder)) - {*contents, *_REPLACEABLE}) if folder.exists() else []
    if others:
        raise UserError(f"The folder {folder.name!r} holds other files ({brief(others[0])}). Choose a new one.")


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
