"""Open all files of a checkpoint consistently, even if it is replaced meanwhile."""

import errno
import os
import re
import shlex
import stat
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from io import BufferedReader
from pathlib import Path
from typing import NamedTuple

from vit.checkpoints.checkpoint import (
    CARD,
    CONFIG,
    INDEXES,
    MAX_WEIGHTS,
    OPEN_CLIP,
    PREPROCESS,
    PROCESSOR,
    WEIGHT_NAMES,
    old_folder,
    reason_of,
)
from vit.checkpoints.formats.weight_files import MAX_TEXT, is_shard, read_index, weights_among
from vit.checkpoints.label_files import holds_labels
from vit.errors import InvalidCheckpoint
from vit.paths import is_hub_link, name_of_folder
from vit.untrusted import brief, brief_list

# Parts of a model that DeepSpeed splits: with ZeRO 3, or by tensors.
_DEEPSPEED = re.compile(r"(zero_pp_rank_\d+_mp_rank_\d+|mp_rank_0*[1-9]\d*)_model_states\.pt")
# O_NONBLOCK: opening a named pipe would wait for a writer. Windows has O_BINARY only.
_FLAGS = os.O_RDONLY
for _name in ("O_NOFOLLOW", "O_NONBLOCK", "O_CLOEXEC", "O_BINARY"):
    _FLAGS |= getattr(os, _name, 0)
_DESCRIPTORS = os.open in os.supports_dir_fd and os.listdir in os.supports_fd  # not on Windows


@dataclass(frozen=True)
class CheckpointFiles:
    """A consistent snapshot of a checkpoint's files: the weights are open, the content of the others is read.

    Attributes:
        path: the folder, or the file if the checkpoint is a single one.
        weights: name of the weights file, or of the index of several.
        files: the opened weights files by name, in the order of names: one, or those that the index lists.
        index: tensor -> its file; empty without an index.
        texts: content of the other files; empty for a lone file, whose neighbours do not belong to it.
        part: which of several models to use; "" for the default.
    """

    path: Path
    name: str
    weights: str
    files: Mapping[str, BufferedReader]
    index: Mapping[str, str]
    texts: Mapping[str, bytes]
    part: str = ""

    @property
    def size(self) -> int:
        """Total size of the weights files [bytes]."""
        return sum(os.fstat(file.fileno()).st_size for file in self.files.values())


@contextmanager
def open_files(path: Path, part: str = "") -> Iterator[CheckpointFiles]:
    """Open a checkpoint so that all its files belong to the same save.

    All files are opened through one descriptor of the folder. If the path leads to another folder afterwards, some
    files may have been missing, so the attempt is repeated; opened files stay readable even if the folder is then
    replaced.

    Args:
        part: becomes `CheckpointFiles.part`.

    Raises:
        InvalidCheckpoint: it does not exist or cannot be read, it has no weights or several files without an index, a
            file is too large or not a regular file, or it keeps being replaced.
    """
    for _ in range(100):
        with ExitStack() as stack:
            try:
                source = _try_open(path, stack)
            except OSError as error:
                raise InvalidCheckpoint(f"{brief(path.name)!r} cannot be opened: {reason_of(error)}.") from error
            if source:
                yield replace(source, part=part)
                return
    raise InvalidCheckpoint("The checkpoint is replaced again and again while it is opened. Try again in a moment.")


def _try_open(path: Path, stack: ExitStack) -> CheckpointFiles | None:
    """Open the files; None if the folder was replaced meanwhile. `stack` closes them."""
    lone = os.path.lexists(path) and not path.is_dir()
    folder = path.parent if lone else path
    opened = _open_folder(folder, stack)
    try:
        source = _files_in(opened, path, lone, stack)
    except InvalidCheckpoint:
        if _leads_to(folder, opened):
            raise
        return None
    return source if _leads_to(folder, opened) else None


class _Folder(NamedTuple):
    """An opened folder, independent of later renames; identified by its path where folders cannot be opened.

    Attributes:
        status: identifies the folder.
        descriptor: None on Windows, which does not rename a folder while a file in it is open.
    """

    path: Path
    status: os.stat_result
    descriptor: int | None

    def names(self) -> list[str]:
        return sorted(os.listdir(self.path if self.descriptor is None else self.descriptor))

    def open(self, name: str) -> int:
        """Open a file for reading, never through a link but those of the Hub's cache, and return its descriptor."""
        path = self.path / name
        if is_hub_link(path):
            return os.open(path.resolve(), _FLAGS)
        if self.descriptor is None:
            if path.is_symlink():
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
            return os.open(path, _FLAGS)
        return os.open(name, _FLAGS, dir_fd=self.descriptor)


def _open_folder(path: Path, stack: ExitStack) -> _Folder:
    """Open a folder; `stack` closes it."""
    for candidate in (path, old_folder(path), path):  # between the two renames of a save only the old folder exists
        try:
            if not _DESCRIPTORS:
                return _Folder(candidate, os.stat(candidate), None)
            descriptor = os.open(candidate, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            stack.callback(os.close, descriptor)
            return _Folder(candidate, os.fstat(descriptor), descriptor)
        except FileNotFoundError:
            continue
        except ValueError as error:  # a NUL, or half a surrogate pair
            raise InvalidCheckpoint(f"{brief(path.name)!r} cannot be opened: {reason_of(error)}.") from error
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))


def _leads_to(path: Path, folder: _Folder) -> bool:
    """Whether the path still leads to the opened folder."""
    for candidate in (path, old_folder(path)):
        with suppress(FileNotFoundError):
            return os.path.samestat(os.stat(candidate), folder.status)
    return False


def _files_in(folder: _Folder, path: Path, lone: bool, stack: ExitStack) -> CheckpointFiles:
    """Open the weights and read the other files of an open folder; `stack` closes the weights."""
    names = folder.names()
    weights = path.name if lone else _only_weights(names, path)
    if lone and (is_shard(weights) or _unjoined([weights], path.parent.name) or weights in ("data.pkl", ".metadata")):
        raise InvalidCheckpoint(f"{brief(weights)} is one of several files of a model. Open their folder.")
    split = weights in INDEXES
    described = (weights in WEIGHT_NAMES and CONFIG in names) or (
        weights.startswith("open_clip") and OPEN_CLIP in names
    )
    alone = lone and not split and not described  # otherwise the file stands for its whole folder
    texts = {}
    for name in () if alone else names:
        if name in (CONFIG, PREPROCESS, PROCESSOR, CARD, OPEN_CLIP) or holds_labels(name):
            with _open_bounded(folder, name, MAX_TEXT) as file:
                texts[name] = file.read(MAX_TEXT)
    home = path if alone or not lone else path.parent
    name = path.stem if alone else name_of_folder(home.resolve())
    index = {}
    if split:
        with _open_bounded(folder, weights, MAX_TEXT) as file:
            index = read_index(file.read(MAX_TEXT), weights)
    files = {}
    for shard in sorted(set(index.values())) if split else [weights]:
        if split and shard not in names:
            raise InvalidCheckpoint(f"{brief(shard)} is missing, one of the files that {weights} names.")
        files[shard] = stack.enter_context(_open_bounded(folder, shard, MAX_WEIGHTS))
    source = CheckpointFiles(home, name, weights, files, index, texts)
    if source.size > MAX_WEIGHTS:
        size, most = source.size / 1e6, MAX_WEIGHTS / 1e6
        raise InvalidCheckpoint(f"The weights have {size:,.0f} MB in total; the limit is {most:,.0f} MB.")
    return source


def _only_weights(names: list[str], path: Path) -> str:
    for name in WEIGHT_NAMES:
        if name in names:
            return name
    if any(name.endswith(".index.json") for name in names):
        raise InvalidCheckpoint(
            f"The weights are split over several files, and their index is not called {' or '.join(INDEXES)}."
        )
    files = weights_among(names)
    if any(map(is_shard, files)):
        raise InvalidCheckpoint(
            f"The weights are split over several files, and their index, such as {INDEXES[0]}, is missing beside them."
        )
    if len(files) != 1 or _unjoined(files, path.name):
        raise InvalidCheckpoint(f"The folder {brief(path.name)!r} holds {_describe_content(files, names, path)}")
    return files[0]


def _describe_content(files: list[str], names: list[str], path: Path) -> str:
    """Describe what a folder without exactly one weights file has instead, and what to do."""
    if parts := _unjoined(files or names, path.name):
        return parts
    if files:
        return f"{len(files)} files of weights: {brief_list(map(brief, files), most=3)}. Keep one."
    inside = {name: _names_in(path / name) for name in names[:1000] if not name.startswith("optim")}
    if parts := next(filter(None, (_unjoined(found, name) for name, found in inside.items())), ""):
        return parts
    if folders := [name for name, found in inside.items() if weights_among(found)]:
        return f"no weights itself, but in: {brief_list(map(brief, folders))}. Open that folder, or one of them."
    found = brief_list(map(brief, names), most=3) or "nothing"
    return f"{found}, but no weights of a model. It needs a model.safetensors or a PyTorch file."


def _unjoined(names: list[str], folder: str) -> str:
    """Return what a folder of files with these names holds, if they are one file's parts, and how to join them."""
    name = shlex.quote(brief(folder)[:40])
    if any(map(_DEEPSPEED.fullmatch, names)):
        return (
            "parts of a model by DeepSpeed. Those of ZeRO 3 are joined, in the folder of zero_to_fp32.py, by: "
            "python zero_to_fp32.py . weights"
        )
    if any(one.endswith(".distcp") for one in names):
        return (
            "parts by torch.distributed.checkpoint. Join them first: "
            f"python -m torch.distributed.checkpoint.format_utils dcp_to_torch {name} weights.pth"
        )
    if {"data.pkl", "version"} <= {*names}:
        return f"an unpacked .pth file. Pack it again, in the folder that holds {name}: zip -0 -r weights.pth {name}"
    return ""


def _names_in(folder: Path) -> list[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:  # usually a file
        return []


def _open_bounded(folder: _Folder, name: str, limit: int) -> BufferedReader:
    """Open a regular file of at most `limit` bytes, never through a symbolic link."""
    try:
        descriptor = folder.open(name)
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno == errno.ELOOP:
            raise InvalidCheckpoint(f"{brief(name)} is a link. Copy the file itself there.") from error
        raise InvalidCheckpoint(f"{brief(name)} cannot be read: {reason_of(error)}.") from error
    status = os.fstat(descriptor)
    if stat.S_ISREG(status.st_mode) and status.st_size <= limit:
        return os.fdopen(descriptor, "rb")
    os.close(descriptor)
    if not stat.S_ISREG(status.st_mode):
        raise InvalidCheckpoint(f"{brief(name)} is not a regular file.")
    size, most = status.st_size / 1e6, limit / 1e6
    raise InvalidCheckpoint(f"{brief(name)} has {size:,.0f} MB; at most {most:,.0f} MB are opened.")
