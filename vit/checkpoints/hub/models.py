"""Remote checkpoints: repositories of the Hugging Face Hub (timm's are there, too) and torchvision's weights.

    google/vit-base-patch16-224              a repository at its main branch
    google/vit-base-patch16-224@REVISION     at a branch, a tag or a commit
    timm/vit_base_patch16_224.augreg2_in21k_ft_in1k
    torchvision/vit_b_16                     its default weights
    torchvision/vit_b_16.IMAGENET1K_SWAG_E2E_V1

Each is downloaded once, into a folder that opens like any other checkpoint and is named after the exact commit:
`downloads/google--vit-base-patch16-224@3f49326eb077187dfe1c2a2bb15fbd74e6ab91e3/`. Only the files listed in this module
are requested. Nothing in a response becomes part of a path, except the forty digits of the commit. Nothing is
downloaded unless the user asks for it.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from vit import progress as bars
from vit.checkpoints import recognition
from vit.checkpoints.checkpoint import (
    CARD,
    CONFIG,
    INDEXES,
    MAX_WEIGHTS,
    PREPROCESS,
    PROCESSOR,
    TOKENIZER,
    WEIGHT_NAMES,
    reads_text,
)
from vit.checkpoints.formats.json_documents import read_json
from vit.checkpoints.formats.weight_files import MAX_TEXT, SUFFIXES, read_index
from vit.checkpoints.hub import download
from vit.errors import InvalidCheckpoint, Unavailable
from vit.files import remove_folder, replaced, wait_for_lock
from vit.paths import downloads_folder
from vit.untrusted import Unreadable, brief, brief_list, is_number, read_object

if TYPE_CHECKING:
    from vit.checkpoints.hub.download import Progress, Remote

KEEP_FREE = 2 << 30  # disk space that a download leaves [bytes]

_SOURCE = "source.json"  # records where the files come from, and which revisions resolved to them
_BESIDE = (CONFIG, PREPROCESS, PROCESSOR, CARD, *INDEXES, *TOKENIZER)
_MAX_TOKENIZER = 64 << 20  # [bytes]; the 256,000 words of SigLIP 2 take 34 MB
_COMMIT = re.compile(r"[0-9a-f]{40}")
_WORD = r"\w(?:[\w.-]{0,94}\w)?"
_HUB = re.compile(rf"(?P<repository>{_WORD}/{_WORD})(?:@(?P<revision>\w(?:[\w./-]{{0,126}}\w)?))?", re.ASCII)
_TORCHVISION = re.compile(r"(?P<repository>torchvision/\w{1,96})(?:\.(?P<revision>\w{1,96}))?", re.ASCII)


@dataclass(frozen=True)
class Name:
    """The name of a remote checkpoint; `str` is the inverse of `parse`.

    Attributes:
        repository: "owner/name"; for torchvision, "torchvision/model".
        revision: branch, tag or commit, "" for the main branch; for torchvision the weights, "" for the default.
    """

    repository: str
    revision: str = ""

    def __str__(self) -> str:
        mark = "." if self.torchvision else "@"
        return f"{self.repository}{mark}{self.revision}" if self.revision else self.repository

    @property
    def torchvision(self) -> bool:
        """Whether torchvision publishes it, rather than the Hub."""
        return self.repository.startswith("torchvision/")

    @property
    def pinned(self) -> bool:
        """Whether the name always means the same files."""
        return bool(self.revision) if self.torchvision else bool(_COMMIT.fullmatch(self.revision))

    @property
    def folder(self) -> str:
        """Name of its download folder, if the name is pinned."""
        return str(self).replace("/", "--", 1)


@dataclass(frozen=True)
class DownloadedCheckpoint:
    """A downloaded checkpoint.

    Attributes:
        name: pinned, so that it means the same files on every machine.
        size: of its files [bytes].
        requested: requested revision, "" for none -> when it last resolved to this one [s since 1970].
    """

    name: Name
    folder: Path
    size: int
    requested: Mapping[str, float]


# --- Names and what is here ---------------------------------------------------------------------------------


def parse(text: str) -> Name | None:
    """Parse a name; None if it is not the name of a remote checkpoint.

    >>> parse("google/vit-base-patch16-224@v1")
    Name(repository='google/vit-base-patch16-224', revision='v1')
    >>> str(parse("torchvision/vit_b_16.DEFAULT"))
    'torchvision/vit_b_16'
    >>> [parse(path) for path in ("cifar10", "../vit/base", "/etc/passwd", "models/deit.pth")]
    [None, None, None, None]
    """
    match = (_TORCHVISION if text.startswith("torchvision/") else _HUB).fullmatch(text)
    if not match:
        return None
    repository, revision = match["repository"], match["revision"] or ""
    if repository.endswith((".git", *SUFFIXES)) or "--" in repository or ".." in text or "//" in revision:
        return None
    if len(repository) > 96:  # the Hub's limit
        return None
    return Name(repository, "" if revision in ("main", "DEFAULT") else revision)


def shortened(name: str) -> str:
    """Return a checkpoint's name with its commit shortened to seven digits.

    >>> shortened("google/vit-base-patch16-224@3f49326eb077187dfe1c2a2bb15fbd74e6ab91e3")
    'google/vit-base-patch16-224@3f49326'
    """
    name, mark, commit = name.partition("@")
    return name + mark + commit[:7]


def cached() -> list[DownloadedCheckpoint]:
    """List all downloaded checkpoints, sorted by name."""
    try:
        with os.scandir(downloads_folder()) as entries:
            folders = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    fetched = []
    for folder in sorted(folders):
        if name := _name_of_folder(folder.name):
            with suppress(OSError):  # removed meanwhile
                fetched.append(_read_folder(folder, name))
    return fetched


def find(name: str | Name) -> DownloadedCheckpoint | None:
    """Return the downloaded checkpoint that a name means, without any request; safe for untrusted names.

    A branch, or no revision, means the commit that it resolved to at the last download.
    """
    parsed = parse(str(name))
    if parsed is None:
        return None
    copies = [one for one in cached() if one.name.repository == parsed.repository]
    exact = [one for one in copies if one.name == parsed]
    candidates = [one for one in copies if parsed.revision in one.requested]
    return next(iter(exact), None) or max(candidates, key=lambda one: one.requested[parsed.revision], default=None)


def pinned_name(folder: Path) -> Name | None:
    """Return the pinned name of a download folder; None for any other folder."""
    folder = folder.resolve()
    return _name_of_folder(folder.name) if folder.parent == downloads_folder().resolve() else None


def remove(name: str | Name) -> None:
    """Delete a downloaded checkpoint.

    Args:
        name: pinned, as in `cached`.

    Raises:
        Unavailable: it is not downloaded, or cannot be deleted.
    """
    fetched = next((one for one in cached() if str(one.name) == str(name)), None)
    if fetched is None:
        raise Unavailable(f"{brief(str(name))} is not among what was fetched. {_fetched_names()}")
    try:
        remove_folder(fetched.folder)
    except OSError as error:
        raise Unavailable(f"{brief(str(name))} was not deleted: {error.strerror}.") from error


def _name_of_folder(folder: str) -> Name | None:
    name = parse(folder.replace("--", "/", 1))
    return name if name and name.pinned and name.folder == folder else None


def _read_folder(folder: Path, name: Name) -> DownloadedCheckpoint:
    requested: dict[str, float] = {}
    with suppress(FileNotFoundError, Unreadable):
        asked = read_object(folder / _SOURCE).get("asked")
        requested = {key: when for key, when in asked.items() if is_number(when)} if isinstance(asked, dict) else {}
    with os.scandir(folder) as files:
        size = sum(file.stat(follow_symlinks=False).st_size for file in files)
    return DownloadedCheckpoint(name, folder, size, requested)


def _fetched_names() -> str:
    names = [str(one.name) for one in cached()]
    return f"On this disk: {brief_list(names, most=3)}." if names else "Nothing was fetched before."


# --- Fetching -----------------------------------------------------------------------------------------------


def fetch(name: str | Name, progress: Progress | None = None, keep_free: int = KEEP_FREE) -> DownloadedCheckpoint:
    """Download a checkpoint unless it is cached; a branch is resolved to its current commit.

    The folder appears when it is complete. Partial downloads are kept, and the next call resumes them.

    Args:
        progress: called with (bytes done, total bytes or None) for the weights; any exception aborts the download.
        keep_free: disk space to leave [bytes].

    Raises:
        InvalidCheckpoint: not a supported Vision Transformer; checked before the weights are downloaded.
        Unavailable: unknown name, no connection, no access, too large, or not enough disk space.
    """
    parsed = parse(str(name))
    if parsed is None:
        raise Unavailable(
            f"{brief(str(name))!r} is not the name of a checkpoint. Write owner/name as on the Hugging Face Hub, "
            "owner/name@revision, or torchvision/vit_b_16."
        )
    if parsed.pinned and (fetched := find(parsed)):
        return fetched
    home = downloads_folder()
    try:
        pinned, files = _torchvision_weights(parsed) if parsed.torchvision else _hub_files(parsed)
        folder = home / pinned.folder
        home.mkdir(parents=True, exist_ok=True)
        with _download_lock(home / f".{pinned.repository.replace('/', '--')}.lock"):
            if not folder.is_dir():
                with _unfinished_folder(folder) as unfinished:
                    if not parsed.torchvision:
                        files = _fetch_texts(parsed.repository, files, unfinished, keep_free)
                    _fetch_weights(parsed.repository, files, unfinished, progress, keep_free)
            _write_source(folder, pinned, parsed.revision)
            return _read_folder(folder, pinned)
    except OSError as error:
        why = error.strerror or " ".join(str(error).split())
        raise Unavailable(f"{parsed} could not be fetched: {why}. {_fetched_names()}") from error


def cached_or_download(name: Name) -> DownloadedCheckpoint:
    """Return a cached checkpoint or download it, with a progress bar in a terminal."""
    if fetched := find(name):
        return fetched
    with bars.tqdm(desc=str(name), unit="B", unit_scale=True, leave=False, disable=None) as bar:

        def show(done: int, total: int | None) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return fetch(name, show)


@contextmanager
def _download_lock(lock: Path) -> Iterator[None]:
    """Lock a repository's downloads; other callers wait and then find the checkpoint in the cache."""
    with lock.open("w") as file:
        wait_for_lock(file.fileno())
        yield


@contextmanager
def _unfinished_folder(folder: Path) -> Iterator[Path]:
    """Yield a hidden folder that is renamed to `folder` on success; partial weights are kept for the next attempt."""
    unfinished = folder.with_name(f".{folder.name}.partial")
    for other in folder.parent.glob(f".{folder.name.partition('@')[0]}@*.partial"):
        if other != unfinished:  # started at a commit that the branch no longer points to
            shutil.rmtree(other, ignore_errors=True)
    unfinished.mkdir(exist_ok=True)
    try:
        yield unfinished
        descriptor = os.open(unfinished, os.O_RDONLY | os.O_DIRECTORY)
        os.fsync(descriptor)
        os.close(descriptor)
        os.rename(unfinished, folder)
    finally:
        if not any(file.stat().st_size for file in unfinished.glob("*") if not file.name.startswith(_BESIDE)):
            shutil.rmtree(unfinished, ignore_errors=True)


def _write_source(folder: Path, name: Name, requested: str) -> None:
    """Record the origin of the files, and the revision that resolved to them."""
    times = {**_read_folder(folder, name).requested, requested: time.time()}
    source = "https://download.pytorch.org" if name.torchvision else download.endpoint()
    with replaced(folder / _SOURCE) as file:
        file.write(json.dumps({"name": str(name), "from": source, "asked": times}, indent=2).encode())


def _fetch_weights(
    repository: str, weights: Mapping[str, Remote], folder: Path, progress: Progress | None, keep_free: int
) -> None:
    """Download the weights files in turn, after checking their total size; progress covers all of them."""
    weights = {file: remote if remote.repository else download.look_up(remote) for file, remote in weights.items()}
    if (whole := sum(remote.size or 0 for remote in weights.values())) > MAX_WEIGHTS:
        raise Unavailable(
            f"The weights of {repository} have {whole / 1e6:,.0f} MB; at most {MAX_WEIGHTS / 1e6:,.0f} MB are opened."
        )
    present = sum(file.stat().st_size for file in folder.glob("*") if file.name.removesuffix(".partial") in weights)
    download.check_room(folder, whole - present, keep_free)
    done = 0

    def report(received: int, _: int | None) -> None:
        if progress:
            progress(done + received, whole or None)

    for file, remote in weights.items():
        download.download(remote, folder / file, MAX_WEIGHTS - done, keep_free, report)
        done += (folder / file).stat().st_size


# --- The Hub ------------------------------------------------------------------------------------------------


def _hub_files(name: Name) -> tuple[Name, Mapping[str, Remote]]:
    """Resolve the revision to a commit, and list the files there."""
    commit, files = download.list_files(name.repository, name.revision)
    if not _COMMIT.fullmatch(commit) or (name.pinned and commit != name.revision):
        raise Unavailable(
            f"{urlsplit(download.endpoint()).netloc} does not answer as the Hugging Face Hub does: it names no commit."
        )
    if CONFIG not in files:
        raise InvalidCheckpoint(
            f"{name} has no config.json, so it cannot be checked before all of it is downloaded. "
            "Download its weights by hand, and open the file."
        )
    return Name(name.repository, commit), files


def _fetch_texts(repository: str, files: Mapping[str, Remote], folder: Path, keep_free: int) -> Mapping[str, Remote]:
    """Download the files that tell whether a checkpoint can be opened, and the others beside its weights.

    Returns:
        The weights files: one, or those that the index lists.
    """

    def fetch_text(file: str, limit: int = MAX_TEXT) -> bytes:
        download.download(files[file], folder / file, limit, keep_free)
        return (folder / file).read_bytes()

    try:
        document = read_json(fetch_text(CONFIG), CONFIG)
        recognition.check_config(document)
        first = next((file for file in WEIGHT_NAMES if file in files), "")
        named = sorted(set(read_index(fetch_text(first), first).values())) if first in INDEXES else [first]
    except InvalidCheckpoint as error:
        raise InvalidCheckpoint(f"{repository} cannot be opened. {error}") from error
    if not first:
        what = " nor ".join(file for file in WEIGHT_NAMES if file not in INDEXES)
        raise InvalidCheckpoint(f"{repository} holds neither {what}, and no other weights are read.")
    if missing := [file for file in named if file not in files]:
        raise InvalidCheckpoint(f"{repository} lacks {missing[0]}, one of the files that {first} names.")
    for file in (PREPROCESS, PROCESSOR, CARD):
        if file in files:
            fetch_text(file)
    for file in TOKENIZER if reads_text(document) else ():
        if file in files:
            fetch_text(file, _MAX_TOKENIZER)
    return {file: files[file] for file in named}


# --- torchvision --------------------------------------------------------------------------------------------


def _torchvision_weights(name: Name) -> tuple[Name, Mapping[str, Remote]]:
    """Return the pinned name of the weights, and the one file that torchvision publishes for them.

    The file name ends in the first digits of its hash.
    """
    from torchvision import models  # noqa: PLC0415 # imports torch's compiler, which takes 2 s

    model = name.repository.removeprefix("torchvision/")
    architectures = [name for name in models.list_models(models) if name.startswith("vit_")]
    if model not in architectures:
        raise Unavailable(
            f"{brief(model)} is no Vision Transformer of torchvision's. There are: {', '.join(architectures)}."
        )
    published: Any = models.get_model_weights(model)
    if name.revision and name.revision not in published.__members__:
        names = ", ".join(member.name for member in published)
        raise Unavailable(f"torchvision has no weights {brief(name.revision)!r} of {model}. There are: {names}.")
    weights = published[name.revision or "DEFAULT"]
    file = urlsplit(weights.url).path.rpartition("/")[2]
    digits = re.fullmatch(r"\w+-([0-9a-f]{8,64})\.pth", file, re.ASCII)
    assert digits, "torchvision's files are named model-hash.pth"
    return Name(name.repository, weights.name), {file: download.Remote(weights.url, sha256=digits[1])}
