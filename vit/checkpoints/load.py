"""Open and list checkpoints; files are treated as untrusted."""

import hashlib
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from vit.checkpoints import recognition
from vit.checkpoints.catalog import find_checkpoint, list_folders
from vit.checkpoints.checkpoint import (
    CARD,
    CONFIG,
    OPEN_CLIP,
    OURS,
    PREPROCESS,
    PROCESSOR,
    Checkpoint,
    CheckpointInfo,
    check_preprocess,
    hollow,
    is_finite,
    old_folder,
    with_weights,
)
from vit.checkpoints.families import clip, torchvision
from vit.checkpoints.families.tensor_shapes import Tensors
from vit.checkpoints.families.timm_preprocess import with_arguments
from vit.checkpoints.fingerprint import check_fingerprint
from vit.checkpoints.folder import CheckpointFiles, open_files
from vit.checkpoints.formats.file_entries import MAX_NAME, MAX_NAMES
from vit.checkpoints.formats.json_documents import read_json
from vit.checkpoints.formats.weight_files import Header, Weights, read_header, read_tensors
from vit.checkpoints.hub import models as hub
from vit.checkpoints.label_files import holds_labels, labels_of
from vit.checkpoints.recognition import ParsedCheckpoint
from vit.devices import memory
from vit.errors import InvalidCheckpoint, UnknownHeads, UserError
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer
from vit.out_of_memory import describe_failure, is_out_of_memory
from vit.paths import split_part
from vit.untrusted import brief

LARGE_MODEL_BYTES = 1 << 30  # [bytes] in float32; larger models stay in half precision if their file is
MAX_LABEL = 500  # [characters]
IMAGENET_CLASSES = 1000
_log = logging.getLogger(__name__)
_BEST_OF_RUN = Path("checkpoints", "best")  # in the folder of a training run


# --- Finding ------------------------------------------------------------------------------------------------


def list_checkpoints(root: str | Path | None = None) -> list[CheckpointInfo]:
    """List every checkpoint in a folder, sorted by name."""
    return [summarise(folder) for folder in list_folders(root)]


def summarise(path: Path) -> CheckpointInfo:
    """Summarise the checkpoint in a folder without loading its weights; raises no error, whatever the folder holds."""
    params, size, labels, facts, family = 0, 0, 0, {}, ""
    file, part = split_part(path)
    others: tuple[str, ...] = ()
    try:
        with _last_resort(path.name), open_files(file, part) as source:
            size = source.size
            _, whole = _read_all_headers(source)
            document, _ = _read_documents(source, whole)
            facts = _stated_facts(document)
            ours = OURS in whole.metadata
            others = () if source.part or ours else tuple(recognition.parts_of(whole.tensors)[1:])
            reading = recognition.read(whole.tensors, document, ours, name=_names_of(source), part=source.part)
            params = sum(tensor.numel() for tensor in reading.tensors.values())
            labels, family = len(read_labels(document, reading, whole.beside)[0]), reading.family.name
            labels = 0 if reading.config.regression else labels
    except UnknownHeads as error:
        problem, choices = str(error), error.choices
        return CheckpointInfo(path.name, path, params, size, labels, facts, problem, choices=choices, others=others)
    except UserError as error:
        return CheckpointInfo(path.name, path, params, size, labels, facts, str(error))
    return CheckpointInfo(path.name, path, params, size, labels, facts, family=family, others=others)


@contextmanager
def _last_resort(name: str) -> Iterator[None]:
    """Turn an error that no reader expects into a sentence, as anybody may have written the file; the log has it."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            words = describe_failure(error, f"Reading {brief(name)}", "Close other programs.")
            raise InvalidCheckpoint(words) from error
        _log.exception("Reading %s", brief(name))
        raise InvalidCheckpoint(
            f"{brief(name)} cannot be read: something in it is unlike all known checkpoints. Save or download it again."
        ) from error


# --- Opening ------------------------------------------------------------------------------------------------


def load_checkpoint(path_or_name: str | Path, heads: int | None = None) -> Checkpoint:
    """Open a checkpoint and check it: names, shapes, values, config, labels, and its output for a fixed picture.

    Args:
        path_or_name: the name of a checkpoint in `checkpoints/`, a folder, the folder of a training run (its best
            checkpoint), or a .safetensors, .pt, .pth, .ckpt, .bin or .npz file. Other text may name a remote
            checkpoint, which is downloaded unless it is cached: "owner/name" or "owner/name@revision" on the Hugging
            Face Hub, "torchvision/vit_b_16". "file.pth#student" selects one of several models in a file.
        heads: the number of attention heads, for a file that does not state it.

    Raises:
        InvalidCheckpoint: the problem, in one sentence; `Unavailable` if it cannot be downloaded.
    """
    path, part = split_part(Path(path_or_name))
    if part:
        path_or_name = str(path) if isinstance(path_or_name, str) else path
    path = _locate(path_or_name)
    with _last_resort(path.name), open_files(path, part) as source:
        checkpoint = _load_source(source, heads)
    name = hub.pinned_name(checkpoint.path)
    return replace(checkpoint, name=str(name)) if name else checkpoint


def _locate(path_or_name: str | Path) -> Path:
    path = Path(path_or_name)
    if isinstance(path_or_name, str):
        with suppress(InvalidCheckpoint):
            return find_checkpoint(path_or_name)
    try:
        exists = os.path.lexists(path) or os.path.lexists(old_folder(path))
    except (OSError, ValueError):  # an impossible file name
        exists = False
    if exists:
        best = path / _BEST_OF_RUN
        return best if best.is_dir() else path
    if isinstance(path_or_name, str) and (name := hub.parse(path_or_name)):
        return hub.cached_or_download(name).folder
    return find_checkpoint(str(path_or_name))  # raises, and lists the existing ones


def _read_all_headers(source: CheckpointFiles) -> tuple[dict[str, Header], Header]:
    """Read the header of each weights file; also return all in one, without spans, with the labels of other files."""
    headers, whole = {}, Header({}, {}, {}, {})
    for name in filter(holds_labels, source.texts):
        whole.beside["classes"] = labels_of(name, source.texts[name])
    named: dict[str, set[str]] = {}
    for tensor, shard in source.index.items():
        named.setdefault(shard, set()).add(tensor)
    for name, file in source.files.items():
        header = headers[name] = read_header(file, name)
        whole.tensors.update(header.tensors)
        whole.metadata.update(header.metadata)
        whole.beside.update(header.beside)
        lengths = [len(tensor) for tensor in header.tensors]
        if max(lengths) > MAX_NAME or sum(lengths) > MAX_NAMES:
            raise InvalidCheckpoint(f"{brief(name)} gives its tensors names that are too long to be those of a model.")
        if source.index and (others := named[name] ^ header.tensors.keys()):
            raise InvalidCheckpoint(
                f"{brief(name)} does not hold what {source.weights} says, such as `{brief(min(others))}`. "
                "Download both again."
            )
    return headers, whole


def _read_weights(source: CheckpointFiles, headers: Mapping[str, Header], keys: set[str], half: bool) -> Weights:
    """Read the selected tensors of all files, and hash the files as if they were concatenated."""
    tensors, digest = Tensors(), hashlib.sha256()
    for name, file in source.files.items():
        tensors |= read_tensors(file, name, headers[name], keys & headers[name].tensors.keys(), half, digest).tensors
    return Weights(tensors, digest.hexdigest())


def _load_source(source: CheckpointFiles, heads: int | None) -> Checkpoint:
    headers, whole = _read_all_headers(source)
    shapes, ours = whole.tensors, OURS in whole.metadata
    document, preprocess_document = _read_documents(source, whole)
    called = _names_of(source)
    promised = recognition.read(dict(shapes), document, ours, heads, called, part=source.part)
    empty = empty_model(promised)
    labels, why_labels = read_labels(document, promised, whole.beside)
    preprocess, why_preprocess = read_preprocess(preprocess_document, document, promised, called)
    half = _keeps_half(promised)
    tensors, digest = _read_weights(
        source, headers, recognition.used(shapes, ours, promised.part, document), half
    )  # nothing large is allocated before this line
    tensors = shapes | tensors  # unused tensors keep their names, because families are recognised by them

    reading = recognition.read(tensors, document, ours, heads, called, consume=True, part=promised.part)
    for name, tensor in reading.tensors.items():
        if not is_finite(tensor):
            raise InvalidCheckpoint(f"The weights hold NaN or infinite numbers (`{brief(name)}`).")
    model = with_weights(empty, reading.tensors)
    if ours:
        check_fingerprint(model, (document or {}).get("vit_probe"))
    preprocess, why_normalisation = with_own_normalisation(preprocess, reading, stated=preprocess_document is not None)
    extra = {"labels": why_labels, "preprocess": why_preprocess, "normalisation": why_normalisation}
    behind = f"#{source.part}" if source.part else ""
    if behind:  # models in the same file need different hashes
        digest = hashlib.sha256(f"{digest}{behind}".encode()).hexdigest()
    return Checkpoint(
        name=source.name + behind,
        path=source.path.with_name(source.path.name + behind),
        model=model,
        config=reading.config,
        labels=labels,
        preprocess=preprocess,
        assumed=promised.assumed | {name: why for name, why in extra.items() if why},
        card=source.texts.get(CARD, b"").decode("utf-8", "replace"),
        facts=_stated_facts(document),
        hash=digest[:16],
    )


def _keeps_half(reading: ParsedCheckpoint) -> bool:
    """Whether half-precision weights stay so in memory; raises if they do not fit into the free memory.

    Half precision saves memory and slows down each forward pass, which pays off for large models only.
    """
    size = 4 * sum(tensor.numel() for tensor in reading.tensors.values())
    half = size >= LARGE_MODEL_BYTES
    needed = sum(t.numel() * (2 if half and t.itemsize == 2 else 4) for t in reading.tensors.values())
    _, free = memory()
    if needed >= LARGE_MODEL_BYTES and 0 < free < needed:
        raise InvalidCheckpoint(
            f"The weights take {needed / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are free. Close other programs."
        )
    return half


def _names_of(source: CheckpointFiles) -> str:
    """Return the names of folder and file, which identify published models."""
    return f"{source.name}/{source.weights}"


def _read_documents(source: CheckpointFiles, whole: Header) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """Read config.json and the file that states the preprocessing, or what the weights file states."""
    metadata, config, preprocess = whole.metadata, source.texts.get(CONFIG), source.texts.get(PREPROCESS)
    document = read_json(config, CONFIG) if config is not None else None
    if OPEN_CLIP in source.texts and (document is None or source.weights.startswith("open_clip")):
        document = clip.from_open_clip(read_json(source.texts[OPEN_CLIP], OPEN_CLIP))
    if document is None:
        document = whole.beside.get("document")
    if document is None and OURS in metadata:
        labels = read_json(metadata.get("labels", "[]"), "labels", list)
        document = {
            "vit": read_json(metadata[OURS], OURS),
            "vit_probe": read_json(metadata["vit.probe"], "vit.probe", list) if "vit.probe" in metadata else None,
            "id2label": {str(i): label for i, label in enumerate(labels)},
        }
    processor = read_json(source.texts[PROCESSOR], PROCESSOR) if PROCESSOR in source.texts else {}
    if isinstance(processor.get("image_processor"), dict):  # it precedes the other file, as in transformers
        return document, processor["image_processor"]
    if preprocess is not None:
        return document, read_json(preprocess, PREPROCESS)
    if "preprocess" in metadata:
        return document, read_json(metadata["preprocess"], "preprocess")
    return document, None


def _stated_facts(document: Mapping[str, Any] | None) -> dict[str, Any]:
    facts = (document or {}).get("training")
    return facts if isinstance(facts, dict) else {}


def read_labels(
    document: Mapping[str, Any] | None, reading: ParsedCheckpoint, beside: Mapping[str, Any] = MappingProxyType({})
) -> tuple[tuple[str, ...], str]:
    """Return one name per class or number, and their origin if no file states them; no names of mere features."""
    config = reading.config
    count = config.num_classes
    stated = reading.family.stated_labels(document or {})
    projects = clip.is_projection(reading.family, config, reading.head, reading.part)
    if stated and not isinstance(stated, dict):
        raise InvalidCheckpoint("Config field id2label must map numbers to class names.")
    if stated and stated != {str(i): f"LABEL_{i}" for i in range(len(stated))}:
        if not count or (projects and len(stated) != count):
            names = "1 class" if len(stated) == 1 else f"{len(stated)} classes"
            return (), f"config.json names {names}, but the weights hold no head for them, so they are left out."
        if set(stated) != {str(i) for i in range(len(stated))} or len(stated) != count:
            raise InvalidCheckpoint(
                f"The checkpoint names {len(stated)} classes and its head has {count}: "
                f"they must be numbered 0 to {count - 1}."
            )
        labels = tuple(stated[str(i)] for i in range(count))
        if not all(isinstance(label, str | int | float) and len(str(label)) <= MAX_LABEL for label in labels):
            raise InvalidCheckpoint(f"Class names must be text or numbers of at most {MAX_LABEL} characters.")
        return tuple(map(str, labels)), ""
    if not count:
        return (), ""
    if projects:
        return (), "The head is CLIP's projection to the space that pictures share with texts, so it has no classes."
    names = beside.get("classes", ())
    if len(names) == count and all(len(name) <= MAX_LABEL for name in names):
        return tuple(names), ""
    if config.regression:
        who = f"By its name `{brief(reading.head)}`" if reading.head else "config.json says that it"
        return numbered(config), f"{who} estimates numbers, not classes."
    unused = f" The {len(names):,} names beside the weights are not used, as the head has {count:,}." if names else ""
    if count == IMAGENET_CLASSES:
        why = "The file names no classes; there are 1000, so ImageNet-1k's names are used, in their usual order."
        return torchvision.imagenet_labels(), why + unused
    return numbered(config), f"The file names no classes, so they are numbered.{unused}"


def numbered(config: ViTConfig) -> tuple[str, ...]:
    """Return names for outputs that nobody has named."""
    return tuple(f"{'output' if config.regression else 'class'} {i}" for i in range(config.num_classes))


def read_preprocess(
    document: Mapping[str, Any] | None, config: Mapping[str, Any] | None, reading: ParsedCheckpoint, name: str
) -> tuple[Preprocess, str]:
    """Return the preprocessing, and its origin if no file states it."""
    stated = Preprocess.from_config(document) if document is not None else None
    stated, why_grey = stated or reading.family.stated_preprocess(config or {}), ""
    if stated and stated.channels == 3 and reading.config.channels == 1:  # timm writes the three of the original model
        stated = replace(stated, mean=(sum(stated.mean) / 3,), std=(sum(stated.std) / 3,))
        why_grey = "The model takes grey pictures and the file states a mean of each colour: their averages are used."
    if stated:
        preprocess, why = stated, why_grey
    else:
        preprocess, why = reading.family.preprocess(reading.config, f"{(config or {}).get('architecture', '')}/{name}")
        preprocess, why = with_arguments(preprocess, why, config or {})
    check_preprocess(preprocess, reading.config)
    return preprocess, why


def with_own_normalisation(
    preprocess: Preprocess, reading: ParsedCheckpoint, stated: bool = False
) -> tuple[Preprocess, str]:
    """Take mean and deviation from the model's own normalisation layer, if it has one; also return a remark.

    Args:
        stated: preprocessor_config.json states mean and deviation, which take precedence.
    """
    if not reading.normalisation:
        return preprocess, ""
    names = " and ".join(f"`{brief(name)}`" for name in reading.normalisation)
    if stated:
        return preprocess, f"Preprocessing is stated, so the normalisation inside the model is left out: {names}."
    numbers = [tensor.flatten().tolist() for tensor in reading.normalisation.values()]
    white = 255 if max(map(max, numbers)) > 1 else 1
    mean, std = (tuple(value / white for value in values) for values in numbers)
    scaled = ", divided by 255 because they are for pixels from 0 to 255" if white == 255 else ""
    why = (
        f"The file holds a normalisation of pictures, {names}: they are the preprocessing's mean and deviation{scaled}."
    )
    return replace(preprocess, mean=mean, std=std), why


def empty_model(reading: ParsedCheckpoint) -> VisionTransformer:
    """Build the model on the meta device, after checking that names and shapes match those of the file."""
    model = hollow(reading.config)
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    stored = {name: tensor.shape for name, tensor in reading.tensors.items()}
    problems = (
        ("missing", [name for name in expected if name not in stored]),
        ("too many", [name for name in stored if name not in expected]),
        ("of another shape", [name for name in expected if name in stored and stored[name] != expected[name]]),
    )
    for what, names in problems:
        if names:
            count = "1 tensor" if len(names) == 1 else f"{len(names)} tensors"
            raise InvalidCheckpoint(f"The weights do not fit the config: {count} {what}, such as `{brief(names[0])}`.")
    return model
