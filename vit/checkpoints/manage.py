"""Manage the folder of checkpoints: add uploaded files, rename, delete, export as one file."""

import errno
import io
import os
import re
import secrets
import shutil
import tempfile
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from vit.checkpoints import convert, recognition
from vit.checkpoints.card import renamed
from vit.checkpoints.catalog import find_checkpoint, list_folders
from vit.checkpoints.checkpoint import (
    CARD,
    CONFIG,
    INDEXES,
    MAX_WEIGHTS,
    OPEN_CLIP,
    PREPROCESS,
    PROCESSOR,
    PYTORCH_WEIGHTS,
    WEIGHTS,
    Checkpoint,
    reason_of,
)
from vit.checkpoints.formats.json_documents import read_json
from vit.checkpoints.formats.weight_files import MAX_TEXT, SAVE, SUFFIXES, weights_among
from vit.checkpoints.label_files import holds_labels
from vit.checkpoints.load import summarise
from vit.checkpoints.save import save_checkpoint
from vit.confidence import figure
from vit.errors import InvalidCheckpoint, UserError
from vit.files import remove_folder, replaced
from vit.paths import checkpoints_folder, is_hub_link
from vit.untrusted import brief

if TYPE_CHECKING:
    from vit.checkpoints.convert import To

NAME = re.compile(r"[a-z0-9_][a-z0-9_.-]{0,63}")
NAME_HELP = "Small letters, digits, dots, dashes and underscores."
_UNUSUAL = re.compile(r"[^A-Za-z0-9_.+=@-]+")
_BESIDE = (CONFIG, PREPROCESS, PROCESSOR, CARD, OPEN_CLIP, *INDEXES)
TEXTS = (".json", ".md", ".txt", ".pkl")  # accepted beside weights, as transformers' Trainer writes them
_CHUNK_BYTES = 1 << 20


def add(files: Mapping[str, BinaryIO], name: str, root: Path | None = None, keep_free: int = 0) -> Path:
    """Check uploaded files and add them as a checkpoint, completely or not at all.

    The weights keep their file name, because the names of published files identify the model.

    Args:
        files: by name: one weights file, or an index and the files that it lists, and the files beside them. Others,
            such as optimizer states, are discarded.
        name: of the new checkpoint.
        keep_free: disk space to leave [bytes].

    Returns:
        The checkpoint's folder. The number of heads may still be missing: see `CheckpointInfo.choices`.

    Raises:
        InvalidCheckpoint: not exactly one weights file, unsupported family, name taken, or not enough disk space.
    """
    weights = weights_of(files)
    if "adapter_config.json" in files:
        raise InvalidCheckpoint(recognition.ADAPTER)
    if files and not weights:
        raise InvalidCheckpoint(no_weights_message(files))
    if len(weights) != 1 and not (weights and any(index in files for index in INDEXES)):
        raise InvalidCheckpoint(
            f"Upload exactly one file of weights ({', '.join(SUFFIXES)}), not {len(weights)}. Remove the others."
        )
    others = [file for file in files if file not in weights and file not in _BESIDE and not holds_labels(file)]
    if strange := [file for file in others if not file.endswith((*SUFFIXES, *TEXTS))]:
        raise InvalidCheckpoint(
            f"{brief(strange[0])} is not part of a checkpoint. Beside weights: labels.txt, {', '.join(_BESIDE)}."
        )
    files = {file: files[file] for file in files if file not in others}
    with _new_folder(name, root) as folder:
        for file, content in files.items():
            most = MAX_WEIGHTS if file in weights else MAX_TEXT
            _write_limited(content, folder / _plain_name(file), most, keep_free)
        info = summarise(folder)
        if info.problem and not info.choices:
            raise InvalidCheckpoint(info.problem)
    return folder_of(name, root)


def no_weights_message(names: Iterable[str]) -> str:
    """Return the error message for files without weights among them."""
    names = sorted(names, key=lambda name: name.endswith(TEXTS))  # first the file most likely meant as weights
    return (
        f"{brief(names[0])} is no file of weights that is read here ({', '.join(SUFFIXES)}). Unpack archives first. "
        f"Save a model in Python with {SAVE}."
    )


def weights_of(files: Iterable[str]) -> list[str]:
    """Return the weights files among uploaded ones: those with the standard names, or else all candidates."""
    if any(index in files for index in INDEXES):
        return [file for file in files if file.endswith(SUFFIXES)]
    usual = [file for file in (WEIGHTS, PYTORCH_WEIGHTS) if file in files]
    return usual[:1] or weights_among(files)


def suggest(weights: str, config: bytes = b"") -> str:
    """Suggest a free name for an upload.

    The name comes from the weights file, or from the config if the file has a generic name such as "model".

    Args:
        weights: name of the file.
        config: the content of the config.json beside it.
    """
    own = weights.removesuffix(".tar").rpartition(".")[0]
    name = _slug(own)
    if not name or _NAMELESS.fullmatch(name):
        name = _slug(_stated_name(config)) or name or "model"
    taken = (number for number in range(2, 1000) if not folder_of(f"{name}-{number}").exists())
    return f"{name}-{next(taken, 2)}" if folder_of(name).exists() else name


_NAMELESS = re.compile(r"(open_clip_)?(pytorch_)?(model|weights|checkpoint)(-\d+-of-\d+)?")


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9_]+", "-", name.lower())[:60].strip("-")


def _stated_name(config: bytes) -> str:
    """Return the name or type of the model in timm's or transformers' config.json; "" if there is none."""
    try:
        document = read_json(config, CONFIG)
    except InvalidCheckpoint:  # `add` reports it
        return ""
    stated = (document.get(field) for field in ("architecture", "_name_or_path", "model_type"))
    return next((name.rstrip("/").rpartition("/")[2] for name in stated if isinstance(name, str) and name), "")


def copy(source: Path, name: str, root: Path | None = None) -> Path:
    """Copy a checkpoint's folder under a new name.

    Raises:
        InvalidCheckpoint: the name is taken or invalid.
    """
    with _new_folder(name, root) as folder:
        shutil.copytree(source, folder, dirs_exist_ok=True)
        _rename_card(folder, source.name, name)
    return folder_of(name, root)


def save_with_classes(checkpoint: Checkpoint, name: str, root: Path | None = None) -> Path:
    """Save a checkpoint with classes from outside as a new checkpoint, with its own weights.

    Args:
        checkpoint: whose `custom_classes` are linear.

    Returns:
        The new checkpoint's folder; its card says how the classes were made.

    Raises:
        InvalidCheckpoint: the name is taken or invalid, or the classes cannot be stored in a file.
    """
    custom = checkpoint.custom_classes
    if custom is None or not custom.linear:
        raise InvalidCheckpoint("Only classes that are one linear map on a model's features can be kept: a probe.")
    facts: dict[str, Any] = {
        "backbone": f"{checkpoint.name} (weights {checkpoint.hash})",
        "classes": custom.source,
        **{key: value for key, value in checkpoint.facts.items() if key == "license"},
        "data": custom.facts.get("data", ""),
    }
    if custom.accuracy is not None:
        facts["cross_validated_accuracy"] = figure(custom.accuracy, custom.facts.get("pictures"), "pictures")
    with _new_folder(name, root) as folder:
        save_checkpoint(folder, checkpoint.model, checkpoint.labels, checkpoint.preprocess, facts)
        _rename_card(folder, folder.name, name)
    return folder_of(name, root)


def rename(name: str, new: str, root: Path | None = None) -> Path:
    """Rename a checkpoint.

    Raises:
        InvalidCheckpoint: no such checkpoint, the new name is taken or invalid, or the disk is full or read-only.
    """
    folder = find_checkpoint(name, root)
    _check_free(new, root)
    try:
        folder = folder.rename(folder_of(new, root))
    except OSError as error:
        raise _refused(error, f"{name!r} was not renamed", new) from error
    with suppress(OSError):  # a full disk must not undo the rename
        _rename_card(folder, name, new)
    return folder


def _rename_card(folder: Path, name: str, new: str) -> None:
    """Write the new name into a card that this app saved; cards of other authors are left alone."""
    card = folder / CARD
    if summarise(folder).family == "saved" and card.is_file() and not card.is_symlink():
        text = card.read_bytes().decode("utf-8", "surrogateescape")
        with replaced(card) as file:
            file.write(renamed(text, name, new).encode("utf-8", "surrogateescape"))


def delete(name: str, root: Path | None = None) -> None:
    """Delete a checkpoint.

    Raises:
        InvalidCheckpoint: no such checkpoint, or it cannot be deleted.
    """
    folder = find_checkpoint(name, root)
    try:
        remove_folder(folder)
    except OSError as error:
        raise InvalidCheckpoint(f"{name!r} was not deleted: {reason_of(error)}.") from error


def folders(root: Path | None = None) -> list[tuple[Path, int]]:
    """List every checkpoint's folder by name, with the time of the last change of its files [ns]."""
    dated = []
    for folder in list_folders(root):
        with suppress(OSError):
            dated.append((folder, max([folder.stat().st_mtime_ns, *(p.stat().st_mtime_ns for p in folder.iterdir())])))
    return dated


def zip_chunks(folder: Path, name: str) -> Iterator[bytes]:
    """Stream a checkpoint as a ZIP file, which unpacks to a folder called `name`.

    Entries are stored, as weights hardly compress. All files are opened first, so the archive is complete even if the
    checkpoint is replaced or deleted meanwhile.

    Raises:
        OSError: a file cannot be read.
    """
    with ExitStack() as stack:
        paths = [
            path for path in sorted(folder.iterdir()) if path.is_file() and (not path.is_symlink() or is_hub_link(path))
        ]
        files = [(zipfile.ZipInfo.from_file(path, f"{name}/{path.name}"), path.open("rb")) for path in paths]
        for _, file in files:
            stack.enter_context(file)
        opened = stack.pop_all()

    def chunks() -> Iterator[bytes]:
        out = _Pipe()
        with opened:
            with zipfile.ZipFile(out, "w") as archive:
                for info, file in files:
                    with archive.open(info, "w") as entry:
                        while chunk := file.read(_CHUNK_BYTES):
                            entry.write(chunk)
                            yield out.drain()
            yield out.drain()

    return chunks()


class _Pipe(io.RawIOBase):
    """A write-only buffer that `drain` empties."""

    def __init__(self) -> None:
        self._written = bytearray()

    def writable(self) -> bool:
        return True

    def write(self, content: Any) -> int:
        self._written += content
        return len(content)

    def drain(self) -> bytes:
        chunk = bytes(self._written)
        self._written.clear()
        return chunk


def converted(checkpoint: Checkpoint, to: "To") -> tuple[str, bytes]:
    """Convert a checkpoint for another library and return one file: its name and its content.

    Raises:
        UserError: the library cannot compute the model, or the disk for temporary files is full.
    """
    called = checkpoint.path.stem if checkpoint.path.is_file() else checkpoint.path.name
    try:
        with tempfile.TemporaryDirectory() as folder:
            path = convert.convert(checkpoint, Path(folder) / (called + convert.SUFFIXES.get(to, ("",))[0]), to)
            return (
                (f"{called}-{to}.zip", b"".join(zip_chunks(path, called)))
                if path.is_dir()
                else (path.name, path.read_bytes())
            )
    except OSError as error:
        raise UserError(f"{called!r} was not converted: {reason_of(error)}.") from error


def folder_of(name: str, root: Path | None = None) -> Path:
    """Return the path of a checkpoint with this name, whether or not it exists."""
    return (checkpoints_folder() if root is None else root) / name


def _check_free(name: str, root: Path | None) -> None:
    if not NAME.fullmatch(name) or name.endswith((".old", ".new")):
        raise InvalidCheckpoint("A checkpoint's name has up to 64 small letters, digits, dots, dashes and underscores.")
    if folder_of(name, root).exists():
        raise _taken(name)


def _taken(name: str) -> InvalidCheckpoint:
    return InvalidCheckpoint(f"There is a checkpoint {name!r} already. Choose another name.")


def _refused(error: OSError, what: str, name: str) -> InvalidCheckpoint:
    """Explain a failed rename: another process may have taken the name at the same moment."""
    taken = error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR)
    return _taken(name) if taken else InvalidCheckpoint(f"{what}: {reason_of(error)}.")


@contextmanager
def _new_folder(name: str, root: Path | None) -> Iterator[Path]:
    """Yield a hidden folder that is renamed on success and deleted on failure."""
    _check_free(name, root)
    target = folder_of(name, root)
    unfinished = target.with_name(f".{name}.{secrets.token_hex(4)}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        unfinished.mkdir()
        yield unfinished
        os.rename(unfinished, target)
    except OSError as error:
        raise _refused(error, "The checkpoint was not saved", name) from error
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)


def _plain_name(file: str) -> str:
    """Return the base name with unusual characters replaced."""
    if file.endswith((".pth.tar", ".pt.tar")):  # PyTorch's examples use this suffix for files that are not archives
        file = file.removesuffix(".tar")
    return _UNUSUAL.sub("_", file.replace("\\", "/").rpartition("/")[2])[-200:].lstrip(".")


def _write_limited(content: BinaryIO, to: Path, most: int, keep_free: int) -> None:
    size = 0
    content.seek(0)  # an earlier attempt may have read it
    with to.open("xb") as file:
        while chunk := content.read(_CHUNK_BYTES):
            size += len(chunk)
            if size > most:
                raise InvalidCheckpoint(f"{brief(to.name)} has more than {most / 1e6:,.0f} MB, which is the most.")
            if shutil.disk_usage(to.parent).free < keep_free + len(chunk):
                raise InvalidCheckpoint("The server is short of disk space. Delete old runs or checkpoints first.")
            file.write(chunk)
