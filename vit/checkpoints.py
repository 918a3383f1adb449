"""Open, save and list checkpoints: untrusted files in, one Vision Transformer and all that belongs to it out.

A checkpoint that we save is a folder in the layout of transformers:

    config.json               what transformers opens; "vit": our config, "vit_probe": see below, "training": facts
    model.safetensors         weights, and in its metadata all that a lone file needs to describe itself
    preprocessor_config.json  from picture to input, as transformers' AutoImageProcessor reads it
    README.md                 the card: data, recipe, cost, accuracy, limits

The probe is what the model answered to a fixed picture when it was saved. Some mistakes, a wrong number of heads
above all, load without any error; the probe is what notices them.
"""

import errno
import fcntl
import hashlib
import json
import math
import os
import re
import shutil
import stat
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from io import BufferedReader
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vit import families
from vit.card import write_card
from vit.devices import memory
from vit.errors import InvalidCheckpoint, UnknownHeads, UserError
from vit.families import Reading, clip, huggingface, torchvision
from vit.families.family import MAX_PATCHES, Tensors, build_config, shown
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer
from vit.paths import checkpoints_folder
from vit.weight_files import MAX_TEXT, SUFFIXES, Weights, dump_json, look, read_index, read_json, read_tensors

WEIGHTS = "model.safetensors"
PYTORCH_WEIGHTS = "pytorch_model.bin"
INDEXES = tuple(f"{weights}.index.json" for weights in (WEIGHTS, PYTORCH_WEIGHTS))  # of weights in several files
CONFIG = "config.json"
PREPROCESS = "preprocessor_config.json"
CARD = "README.md"

MAX_WEIGHTS = 12 << 30  # [bytes]; DINOv2-g in float32 has 4.5 GB, CLIP-G with its text tower 10
LARGE = 1 << 30  # [bytes] in float32; models from this size on stay in half precision if their file is
MAX_LABEL = 500  # characters
IMAGENET_CLASSES = 1000
PROBE_LOGITS = 100
PROBE_TOLERANCE = 1e-3  # of the largest logit; machines differ by 1e-5, a wrong number of heads by 0.3

_NAME = re.compile(r"[a-z0-9_.-]{1,64}")
_WEIGHT_NAMES = (WEIGHTS, INDEXES[0], PYTORCH_WEIGHTS, INDEXES[1])  # the first that is there


@dataclass(frozen=True)
class Checkpoint:
    """A model on disk, opened.

    Attributes:
        name: of its folder or file.
        model: in evaluation mode, on the CPU; it computes in float32. The matrices of a large model stay in half
            precision if they come so.
        labels: one name per class.
        assumed: what no file states -> why it is taken to be so; for people to read.
        card: the text of its README.md, "" without one.
        facts: what is recorded of its training: accuracy, data, recipe, hardware, time, params, ...
        hash: first 16 hexadecimal digits of the SHA-256 of the weights file; of several files, of all in the order
            of their names, one after the other.
    """

    name: str
    path: Path
    model: VisionTransformer
    config: ViTConfig
    labels: tuple[str, ...]
    preprocess: Preprocess
    assumed: Mapping[str, str]
    card: str
    facts: Mapping[str, Any]
    hash: str

    @cached_property
    def params(self) -> int:
        """Numbers that the model learnt."""
        return sum(parameter.numel() for parameter in self.model.parameters())

    @cached_property
    def identity(self) -> str:
        """Tells all that results depend on, weights, config, preprocessing and labels, from every other checkpoint's.

        The weights alone do not: with another number of heads or another mean colour they answer differently.
        """
        parts = self.hash, self.config, self.preprocess, self.labels
        return hashlib.sha256(repr(parts).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class CheckpointInfo:
    """What a list of checkpoints shows, read without loading weights.

    Attributes:
        params: numbers that the model learnt.
        size: of the weights, be they in one file or in several [bytes].
        labels: how many classes.
        problem: why it cannot be opened, "" if nothing is known against it.
        family: whose names its tensors have.
        choices: numbers of attention heads to choose from, if only that is missing.
    """

    name: str
    folder: Path
    params: int
    size: int
    labels: int
    facts: Mapping[str, Any]
    problem: str = ""
    family: str = ""
    choices: tuple[int, ...] = ()


# --- Finding ------------------------------------------------------------------------------------------------


def list_checkpoints(root: str | Path | None = None) -> list[CheckpointInfo]:
    """Every checkpoint in a folder, by name."""
    return [summarise(folder) for folder in list_folders(root)]


def find_checkpoint(name: str, root: str | Path | None = None) -> Path:
    """The folder of a named checkpoint, looked up among those that exist; for names that strangers send.

    Raises:
        InvalidCheckpoint: there is none of that name.
    """
    for folder in list_folders(root):
        if folder.name == name:
            return folder
    names = ", ".join(folder.name for folder in list_folders(root)) or "none yet"
    raise InvalidCheckpoint(f"There is no checkpoint {shown(name)!r}. There are: {names}.")


def list_folders(root: str | Path | None = None) -> list[Path]:
    """The folders of all checkpoints, by name."""
    root = checkpoints_folder() if root is None else Path(root)
    try:
        with os.scandir(root) as entries:
            found = [entry.name for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    # A save that was killed between its two renames leaves ".name.old" alone, which opens as "name".
    names = {name[1:-4] if name.startswith(".") and name.endswith(".old") else name for name in found}
    return [root / name for name in sorted(names) if _NAME.fullmatch(name) and not name.startswith(".")]


def summarise(path: Path) -> CheckpointInfo:
    """What a list shows of the checkpoint in this folder."""
    params, size, labels, facts, family = 0, 0, 0, {}, ""
    try:
        with _opened(path) as source:
            size = source.size
            parts, metadata = _look(source)
            tensors = _together(parts)
            document, _ = _documents(source, metadata)
            facts = _facts(document)
            reading = families.read(tensors, document, OURS in metadata, name=_called(source))
            params = sum(tensor.numel() for tensor in reading.tensors.values())
            labels, family = reading.config.num_classes, reading.family.name
    except UnknownHeads as error:
        return CheckpointInfo(path.name, path, params, size, labels, facts, str(error), choices=error.choices)
    except InvalidCheckpoint as error:
        return CheckpointInfo(path.name, path, params, size, labels, facts, str(error))
    return CheckpointInfo(path.name, path, params, size, labels, facts, family=family)


# --- Opening ------------------------------------------------------------------------------------------------


def load_checkpoint(path_or_name: str | Path, heads: int | None = None) -> Checkpoint:
    """Open a checkpoint and check it: names, shapes, numbers, config, labels, and its answer to the probe.

    Args:
        path_or_name: the name of one in `checkpoints/`, a folder, or a .safetensors, .pt, .pth, .bin or .npz file. Text
            that is none of these may name one from elsewhere, which is fetched unless it was before: "owner/name" or
            "owner/name@revision" on the Hugging Face Hub, "torchvision/vit_b_16".
        heads: the number of attention heads, for a file that does not state it.

    Raises:
        InvalidCheckpoint: whatever is wrong with it, in one sentence; `Unavailable` if it cannot be fetched.
    """
    from vit import hub

    with _opened(_locate(path_or_name)) as source:
        checkpoint = _load(source, heads)
    name = hub.called(checkpoint.path)
    return replace(checkpoint, name=str(name)) if name else checkpoint


def _locate(path_or_name: str | Path) -> Path:
    from vit import hub

    if isinstance(path_or_name, str):
        with suppress(InvalidCheckpoint):
            return find_checkpoint(path_or_name)
    path = Path(path_or_name)
    try:
        exists = os.path.lexists(path) or os.path.lexists(_old(path))
    except (OSError, ValueError):  # a name that no file can have
        exists = False
    if exists:
        return path
    if isinstance(path_or_name, str) and (name := hub.parse(path_or_name)):
        return hub.obtain(name).folder
    return find_checkpoint(str(path_or_name))  # raises, and says which there are


@dataclass(frozen=True)
class _Source:
    """All that a checkpoint consists of, taken at one moment: the weights open, the rest read.

    Attributes:
        path: of the folder, or of a lone file.
        weights: name of the weights file, or of the index of several.
        files: the weights, by name and in the order of names; one, or those that the index names.
        index: tensor -> its file; empty without an index.
        texts: content of the other files that are there; none for a lone file, whose neighbours are not its own.
    """

    path: Path
    name: str
    weights: str
    files: Mapping[str, BufferedReader]
    index: Mapping[str, str]
    texts: Mapping[str, bytes]

    @property
    def size(self) -> int:
        """Of the weights [bytes]."""
        return sum(os.fstat(file.fileno()).st_size for file in self.files.values())


@contextmanager
def _opened(path: Path) -> Iterator[_Source]:
    """Open a checkpoint at a moment when nobody replaces it.

    All is opened through one descriptor of the folder. If the path leads to another folder afterwards, some files
    may have been gone already, so it is done again; what is open stays whole whatever happens later.
    """
    for _ in range(100):
        with ExitStack() as stack:
            try:
                source = _taken(path, stack)
            except OSError as error:
                raise InvalidCheckpoint(f"{shown(path.name)!r} cannot be opened: {_reason(error)}.") from error
            if source:
                yield source
                return
    raise InvalidCheckpoint("The checkpoint is replaced again and again while it is opened. Try again in a moment.")


def _taken(path: Path, stack: ExitStack) -> _Source | None:
    """Take what is there, None if it was replaced meanwhile; `stack` closes it."""
    lone = os.path.lexists(path) and not path.is_dir()
    folder = path.parent if lone else path
    descriptor = _open_folder(folder)
    stack.callback(os.close, descriptor)
    try:
        source = _source(descriptor, path, lone, stack)
    except InvalidCheckpoint:
        if _leads_to(folder, descriptor):
            raise
        return None
    return source if _leads_to(folder, descriptor) else None


def _open_folder(path: Path) -> int:
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    for candidate in (path, _old(path), path):  # between the two renames of a save only the old one is there
        try:
            return os.open(candidate, flags)
        except FileNotFoundError:
            continue
        except ValueError as error:  # a NUL, or half a surrogate pair
            raise InvalidCheckpoint(f"{shown(path.name)!r} cannot be opened: {_reason(error)}.") from error
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _leads_to(path: Path, descriptor: int) -> bool:
    """Whether the path still leads to the folder that is open here."""
    for candidate in (path, _old(path)):
        with suppress(FileNotFoundError):
            return os.path.samestat(os.stat(candidate), os.fstat(descriptor))
    return False


def _source(folder: int, path: Path, lone: bool, stack: ExitStack) -> _Source:
    """Take what is in an open folder; `stack` closes the weights."""
    names = sorted(os.listdir(folder))
    weights = path.name if lone else _only_weights(names, path)
    split = weights in INDEXES
    alone = lone and not split and not (weights in _WEIGHT_NAMES and CONFIG in names)  # else it stands for its folder
    texts = {}
    for name in () if alone else (CONFIG, PREPROCESS, CARD):
        if name in names:
            with _open_file(folder, name, MAX_TEXT) as file:
                texts[name] = file.read(MAX_TEXT)
    home = path if alone or not lone else path.parent
    name = path.stem if alone else home.resolve().name
    index = {}
    if split:
        with _open_file(folder, weights, MAX_TEXT) as file:
            index = read_index(file.read(MAX_TEXT), weights)
    files = {}
    for shard in sorted(set(index.values())) if split else [weights]:
        if split and shard not in names:
            raise InvalidCheckpoint(f"{shown(shard)} is missing, one of the files that {weights} names.")
        files[shard] = stack.enter_context(_open_file(folder, shard, MAX_WEIGHTS))
    source = _Source(home, name, weights, files, index, texts)
    if source.size > MAX_WEIGHTS:
        size, most = source.size / 1e6, MAX_WEIGHTS / 1e6
        raise InvalidCheckpoint(f"The weights have {size:,.0f} MB in all; at most {most:,.0f} MB are opened.")
    return source


def _only_weights(names: list[str], path: Path) -> str:
    for name in _WEIGHT_NAMES:
        if name in names:
            return name
    if any(name.endswith(".index.json") for name in names):
        raise InvalidCheckpoint(
            f"The weights are split over several files, and their index is not called {' or '.join(INDEXES)}."
        )
    found = [name for name in names if name.endswith(SUFFIXES)]
    if len(found) != 1:
        what = f"{len(found)} files of weights; keep one" if found else "no weights; it needs a model.safetensors"
        raise InvalidCheckpoint(f"The folder {shown(path.name)!r} holds {what}.")
    return found[0]


def _open_file(folder: int, name: str, limit: int) -> BufferedReader:
    """Open a regular file of at most `limit` bytes, never through a link."""
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(name, flags, dir_fd=folder)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ELOOP:
            raise InvalidCheckpoint(f"{shown(name)} is a link. Copy the file itself there.") from error
        raise InvalidCheckpoint(f"{shown(name)} cannot be read: {_reason(error)}.") from error
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size <= limit:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise InvalidCheckpoint(f"{shown(name)} is not a regular file.")
    size, most = status.st_size / 1e6, limit / 1e6
    raise InvalidCheckpoint(f"{shown(name)} has {size:,.0f} MB; at most {most:,.0f} MB are opened.")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or "the name cannot be"


def _look(source: _Source) -> tuple[dict[str, Tensors], dict[str, str]]:
    """What each file of weights promises, and the metadata of all."""
    parts, metadata = {}, dict[str, str]()
    for name, file in source.files.items():
        parts[name], own = look(file, name)
        metadata |= own
        told = {tensor for tensor, shard in source.index.items() if shard == name}
        if source.index and (others := told ^ parts[name].keys()):
            raise InvalidCheckpoint(
                f"{shown(name)} does not hold what {source.weights} says, such as `{shown(min(others))}`. "
                "Download both again."
            )
    return parts, metadata


def _together(parts: Mapping[str, Tensors]) -> Tensors:
    return {name: tensor for part in parts.values() for name, tensor in part.items()}


def _read(source: _Source, parts: Mapping[str, Tensors], wanted: set[str], half: bool) -> Weights:
    """Read the tensors of all files, and hash these as if they were one."""
    tensors, digest = Tensors(), hashlib.sha256()
    for name, file in source.files.items():
        tensors |= read_tensors(file, name, parts[name], wanted & parts[name].keys(), half, digest).tensors
    return Weights(tensors, digest.hexdigest())


def _load(source: _Source, heads: int | None) -> Checkpoint:
    parts, metadata = _look(source)
    shapes = _together(parts)
    document, preprocess_document = _documents(source, metadata)
    ours = OURS in metadata
    called = _called(source)
    promised = families.read(dict(shapes), document, ours, heads, called)
    empty = _empty_model(promised)
    labels, why_labels = _labels(document, promised)
    preprocess, why_preprocess = _preprocess(preprocess_document, document, promised, called)
    half = _keeps_half(promised)
    tensors, digest = _read(source, parts, families.used(shapes, ours), half)  # nothing large before
    tensors = shapes | tensors  # what plays no part has a name, by which families are told apart

    reading = families.read(tensors, document, ours, heads, called, consume=True)
    for name, tensor in reading.tensors.items():
        if not _finite(tensor):
            raise InvalidCheckpoint(f"The weights hold NaN or infinite numbers (`{shown(name)}`).")
    model = _filled(empty, reading.tensors)
    if ours:
        _check_probe(model, (document or {}).get("vit_probe"))
    extra = {"labels": why_labels, "preprocess": why_preprocess}
    return Checkpoint(
        name=source.name,
        path=source.path,
        model=model,
        config=reading.config,
        labels=labels,
        preprocess=preprocess,
        assumed=reading.assumed | {name: why for name, why in extra.items() if why},
        card=source.texts.get(CARD, b"").decode("utf-8", "replace"),
        facts=_facts(document),
        hash=digest[:16],
    )


def _keeps_half(reading: Reading) -> bool:
    """Whether numbers in half precision stay so in memory; and refuse what has no room there, before it is read.

    Half of the memory costs some time in each pass, which only large models are worth.
    """
    size = 4 * sum(tensor.numel() for tensor in reading.tensors.values())
    half = size >= LARGE
    kept = sum(t.numel() * (2 if half and t.itemsize == 2 else 4) for t in reading.tensors.values())
    _, free = memory()
    if kept >= LARGE and 0 < free < kept:
        raise InvalidCheckpoint(
            f"The weights take {kept / 1e9:.1f} GB of memory and {free / 1e9:.1f} GB are free. Close other programs."
        )
    return half


def _called(source: _Source) -> str:
    """The names of folder and file, which for published models say what they are."""
    return f"{source.name}/{source.weights}"


OURS = "vit.config"  # the key of the weights' metadata that tells our files from those of others


def _documents(source: _Source, metadata: Mapping[str, str]) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """config.json and preprocessor_config.json, or what a lone file says of itself."""
    config, preprocess = source.texts.get(CONFIG), source.texts.get(PREPROCESS)
    document = read_json(config, CONFIG) if config is not None else None
    if document is None and OURS in metadata:
        labels = read_json(metadata.get("labels", "[]"), "labels", list)
        document = {
            "vit": read_json(metadata[OURS], OURS),
            "vit_probe": read_json(metadata["vit.probe"], "vit.probe", list) if "vit.probe" in metadata else None,
            "id2label": {str(i): label for i, label in enumerate(labels)},
        }
    if preprocess is not None:
        return document, read_json(preprocess, PREPROCESS)
    if "preprocess" in metadata:
        return document, read_json(metadata["preprocess"], "preprocess")
    return document, None


def _facts(document: Mapping[str, Any] | None) -> dict[str, Any]:
    facts = (document or {}).get("training")
    return facts if isinstance(facts, dict) else {}


def _labels(document: Mapping[str, Any] | None, reading: Reading) -> tuple[tuple[str, ...], str]:
    """One name per class, and where they come from if no file states them; none if the outputs are no classes."""
    config = reading.config
    count = config.num_classes
    stated = reading.family.stated_labels(document or {})
    if stated and not isinstance(stated, dict):
        raise InvalidCheckpoint("Config field id2label must map numbers to class names.")
    if stated and stated != {str(i): f"LABEL_{i}" for i in range(len(stated))}:
        projects = reading.family in (clip.FAMILY, clip.OPENAI) and config.pool == "cls"  # to a space shared with texts
        if not count or (projects and len(stated) != count):
            names = "1 class" if len(stated) == 1 else f"{len(stated)} classes"
            return (), f"config.json names {names}, but the weights hold no head for them, so they are left out."
        if set(stated) != {str(i) for i in range(len(stated))} or len(stated) != count:
            raise InvalidCheckpoint(
                f"The checkpoint names {len(stated)} classes and its head has {count}: "
                f"they must be numbered 0 to {count - 1}."
            )
        labels = tuple(stated[str(i)] for i in range(count))
        if not all(isinstance(label, str) and len(label) <= MAX_LABEL for label in labels):
            raise InvalidCheckpoint(f"Class names must be text of at most {MAX_LABEL} characters.")
        return labels, ""
    if not count:
        return (), ""
    if config.norm_pre and config.pool == "cls" and count != IMAGENET_CLASSES:
        return (), "The head is CLIP's projection to the space that pictures share with texts: it names no classes."
    if count == IMAGENET_CLASSES:
        why = "The file names no classes; there are 1000, so ImageNet-1k's names are used, in their usual order."
        return torchvision.imagenet_labels(), why
    return tuple(f"class {i}" for i in range(count)), "The file names no classes, so they are numbered."


def _preprocess(
    document: Mapping[str, Any] | None, config: Mapping[str, Any] | None, reading: Reading, name: str
) -> tuple[Preprocess, str]:
    """How pictures become input, and where that comes from if no file states it."""
    stated = Preprocess.from_config(document) if document is not None else None
    stated = stated or reading.family.stated_preprocess(config or {})
    preprocess, why = (stated, "") if stated else reading.family.preprocess(reading.config, name)
    _check_preprocess(preprocess, reading.config)
    return preprocess, why


def _check_preprocess(preprocess: Preprocess, config: ViTConfig) -> None:
    if preprocess.channels != config.channels:
        raise InvalidCheckpoint(
            f"The preprocessing gives {preprocess.channels} channels and the model takes {config.channels}."
        )
    if any(side % config.patch_size for side in preprocess.size):
        height, width = preprocess.size
        raise InvalidCheckpoint(
            f"The preprocessing gives {height} x {width} px, which patches of {config.patch_size} px do not fill."
        )
    if math.prod(preprocess.size) > MAX_PATCHES * config.patch_size**2:
        raise InvalidCheckpoint(f"The preprocessing gives more than {MAX_PATCHES} patches.")


def _empty_model(reading: Reading) -> VisionTransformer:
    """The model without memory for its weights, after its names and shapes have been found to be those of the file."""
    with torch.device("meta"):
        model = VisionTransformer(reading.config)
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items()}
    found = {name: tensor.shape for name, tensor in reading.tensors.items()}
    problems = (
        ("missing", [name for name in wanted if name not in found]),
        ("too many", [name for name in found if name not in wanted]),
        ("of another shape", [name for name in wanted if name in found and found[name] != wanted[name]]),
    )
    for what, names in problems:
        if names:
            count = "1 tensor" if len(names) == 1 else f"{len(names)} tensors"
            raise InvalidCheckpoint(f"The weights do not fit the config: {count} {what}, such as `{shown(names[0])}`.")
    return model


def _finite(tensor: Tensor) -> bool:
    ends = tensor.aminmax() if tensor.numel() else ()  # a NaN is both; takes no memory, as isfinite() would
    return all(math.isfinite(end) for end in ends)


def _filled(model: VisionTransformer, tensors: Tensors) -> VisionTransformer:
    model.load_state_dict({name: tensor.contiguous() for name, tensor in tensors.items()}, assign=True)
    return model.eval()


# --- The probe ----------------------------------------------------------------------------------------------


def probe(model: VisionTransformer) -> list[float]:
    """The model's answer to a fixed picture: its first logits, or features of a model without a head."""
    with torch.inference_mode():
        logits = model(_probe_picture(model.config)).logits
    return [float(f"{value:.7g}") for value in logits[0, :PROBE_LOGITS].tolist()]


def _probe_picture(config: ViTConfig) -> Tensor:
    """Noise from -1 to 1 out of whole-number arithmetic, so that every machine and version makes the same."""
    mask = (1 << 32) - 1
    shape = (1, config.channels, *config.image_size)
    x = torch.arange(1, math.prod(shape) + 1)
    for factor, shift in ((2654435761, 15), (2246822519, 13)):
        x = (x * factor) & mask
        x = x ^ (x >> shift)
    return (x.double() / 2**31 - 1).float().reshape(shape)


def _check_probe(model: VisionTransformer, stored: object) -> None:
    found = torch.tensor(probe(model))
    if not torch.isfinite(found).all():
        raise InvalidCheckpoint("The model gives NaN or infinite results; its weights are damaged.")
    if stored is None:
        return
    numbers = isinstance(stored, list) and all(type(value) in (int, float) and abs(value) < 1e30 for value in stored)
    fits = numbers and len(stored) == len(found)  # type: ignore[arg-type]
    wanted = torch.tensor(stored if fits else [], dtype=torch.float32)
    if not fits or (found - wanted).abs().max() > PROBE_TOLERANCE * wanted.abs().max() + 1e-6:
        raise InvalidCheckpoint(
            "The checkpoint gives other results than when it was saved: its weights or its config were changed since. "
            "Save or download it again."
        )


# --- Saving -------------------------------------------------------------------------------------------------


def save_checkpoint(
    folder: str | Path,
    model: VisionTransformer,
    labels: Sequence[str],
    preprocess: Preprocess,
    facts: Mapping[str, Any] | None = None,
    card: str | None = None,
    files: Mapping[str, bytes] | None = None,
) -> Path:
    """Save a model with all that belongs to it; the same model gives the same bytes.

    A reader meets the old checkpoint or the new one, whole, and so does a restart after a kill at any moment.
    All files are written to a hidden folder beside the old one and forced to disk. Then the old folder is renamed
    away and the new one in. Between these two renames only the old one exists, under the hidden name that readers
    turn to, and that the next save puts back. Replacing file by file was the alternative: it cannot keep weights,
    config and the accuracy in the card from different trainings apart.

    Args:
        facts: of the training, see `write_card`; `params` is added. Must be JSON.
        card: the text of README.md; left out, it is written from `facts`.
        files: further files to keep in the folder, such as the state of an optimiser.

    Raises:
        InvalidCheckpoint: the weights are not finite, or the preprocessing does not fit the model.
        UserError: the folder holds other things, or the disk refuses.
        ValueError: labels do not fit the model, or `files` would replace one of its own.
    """
    folder = Path(os.path.abspath(folder))
    config = build_config(model.config.to_dict())
    labels, facts, files = list(labels), dict(facts or {}), dict(files or {})
    if len(labels) != config.num_classes:
        raise ValueError(f"{len(labels)} labels for {config.num_classes} classes.")
    _check_preprocess(preprocess, config)
    if clash := [name for name in files if name in _OURS or not _NAME.fullmatch(name) or name.startswith(".")]:
        raise ValueError(f"A checkpoint cannot keep a file named {clash[0]!r}.")

    # What a reader will build from the file is what is probed, on the CPU, in float32.
    state = {name.replace("_orig_mod.", ""): tensor for name, tensor in model.state_dict().items()}
    tensors = {name: tensor.detach().to("cpu", torch.float32) for name, tensor in state.items()}
    with torch.device("meta"):
        twin = VisionTransformer(config)
    answer = probe(_filled(twin, tensors))
    if not all(map(_finite, tensors.values())) or not all(map(math.isfinite, answer)):
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
    contents: dict[str, Sequence[bytes | memoryview]] = {name: [content] for name, content in files.items()}
    contents |= {
        CONFIG: [dump_json(huggingface.write_config(config, labels) | own, indent=2).encode()],
        PREPROCESS: [dump_json(preprocess_document, indent=2).encode()],
        CARD: [card.encode()],
        WEIGHTS: _safetensors(huggingface.write_tensors(config, tensors), metadata),
    }
    try:
        _swapped(folder, contents)
    except OSError as error:
        raise UserError(f"The checkpoint {folder.name!r} was not saved: {_reason(error)}.") from error
    return folder


def record_facts(checkpoint: Checkpoint, facts: Mapping[str, Any]) -> None:
    """Add to what a checkpoint that this app saved, and its card, tell of it.

    Raises:
        UserError: it is another library's, whose card is not ours to write.
    """
    if not checkpoint.path.is_dir() or summarise(checkpoint.path).family != "saved":
        raise UserError(
            f"{checkpoint.name} was not saved by this app, so its card is left as it is. Go without --card."
        )
    told = {**checkpoint.facts, **facts}
    save_checkpoint(checkpoint.path, checkpoint.model, checkpoint.labels, checkpoint.preprocess, told)


_OURS = (WEIGHTS, CONFIG, PREPROCESS, CARD)
_DERIVED = ("first_view.zip", "known.zip")  # made from these, see `vit.first_view` and `vit.ood`: not saved anew


def _safetensors(tensors: Tensors, metadata: dict[str, str]) -> list[bytes | memoryview]:
    """The pieces of a file, without a copy of the weights. Source of the format: safetensors' README, section Format.

    Names and metadata are in order: the library's own order of metadata differs from process to process.
    """
    header: dict[str, Any] = {"__metadata__": metadata}
    end, pieces = 0, []
    for name, tensor in sorted(tensors.items()):
        begin, end = end, end + 4 * tensor.numel()
        header[name] = {"dtype": "F32", "shape": list(tensor.shape), "data_offsets": [begin, end]}
        pieces.append(tensor.contiguous().numpy().data)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors start on a multiple of 8
    return [struct.pack("<Q", len(text)), text, *pieces]


def _old(path: Path) -> Path:
    return path.parent / f".{path.name}.old"


def _swapped(folder: Path, contents: Mapping[str, Sequence[bytes | memoryview]]) -> None:
    """Put a folder with these files in place of the one that is there, as `save_checkpoint` says."""
    new, old = folder.parent / f".{folder.name}.new", _old(folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    parent = os.open(folder.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(parent, fcntl.LOCK_EX)  # one save at a time beside each other; the kernel lets go when we die
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
    """Never delete what is not a checkpoint, or was made from one and can be made again."""
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UserError(f"{folder.name!r} is not a folder. Choose a new name for the checkpoint.")
    others = sorted(set(os.listdir(folder)) - {*contents, *_DERIVED}) if folder.exists() else []
    if others:
        raise UserError(f"The folder {folder.name!r} holds other files ({shown(others[0])}). Choose a new one.")


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
