"""Remote checkpoints: repositories of the Hugging Face Hub (timm's are there, too) and torchvision's weights.

    google/vit-base-patch16-224              a repository at its main branch
    google/vit-base-patch16-224@REVISION     at a branch, a tag or a commit
    timm/vit_base_patch16_224.augreg2_in21k_ft_in1k
    torchvision/vit_b_16                     its default weights
    torchvision/vit_b_16.IMAGENET1K_SWAG_E2E_V1

Files of the Hub are in huggingface_hub's own cache, which other programs share, so they are downloaded once. A folder
in `downloads/`, named after the commit, records what was asked for here; torchvision's weights are in such a folder.
Only the files listed in this module are requested. Nothing is downloaded unless the user asks for it.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
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
from vit.paths import downloads_folder, hub_cache, hub_snapshot, name_of_folder
from vit.untrusted import Unreadable, brief, brief_list, is_number, read_object
from vit.web_files import download_file

if TYPE_CHECKING:
    from vit.checkpoints.hub.download import Progress

KEEP_FREE = 2 << 30  # disk space that a download leaves [bytes]

_SOURCE = "source.json"  # records where the files come from, and which revisions resolved to them
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
    """List all checkpoints that were fetched and are still there, sorted by name."""
    try:
        records = [entry for entry in downloads_folder().iterdir() if entry.is_dir() and not entry.is_symlink()]
    except OSError:
        return []
    fetched = []
    for record in sorted(records):
        if name := _name_of_folder(record.name):
            with suppress(OSError):  # removed meanwhile
                fetched.append(_read(record, name))
    return fetched


def find(name: str | Name) -> DownloadedCheckpoint | None:
    """Return the fetched checkpoint that a name means, without any request; safe for untrusted names.

    A branch, or no revision, means the commit that it resolved to when it was last fetched.
    """
    parsed = parse(str(name))
    if parsed is None:
        return None
    copies = [one for one in cached() if one.name.repository == parsed.repository]
    exact = [one for one in copies if one.name == parsed]
    candidates = [one for one in copies if parsed.revision in one.requested]
    return next(iter(exact), None) or max(candidates, key=lambda one: one.requested[parsed.revision], default=None)


def pinned_name(folder: Path) -> Name | None:
    """Return the pinned name of the folder of a fetched checkpoint; None for any other folder."""
    folder = folder.resolve()
    here = folder.parent == downloads_folder().resolve() or hub_cache().resolve() in folder.parents
    return _name_of_folder(name_of_folder(folder)) if here else None


def remove(name: str | Name) -> None:
    """Delete a fetched checkpoint, for the other programs that share the Hub's cache, too.

    Args:
        name: pinned, as in `cached`.

    Raises:
        Unavailable: it is not here, or cannot be deleted.
    """
    fetched = next((one for one in cached() if str(one.name) == str(name)), None)
    if fetched is None:
        raise Unavailable(f"{brief(str(name))} is not among what was fetched. {_fetched_names()}")
    try:
        if fetched.folder.parent.name == "snapshots":
            from huggingface_hub import scan_cache_dir  # noqa: PLC0415 # imports the network's libraries

            scan_cache_dir(hub_cache()).delete_revisions(fetched.name.revision).execute()
            if fetched.folder.exists():
                raise PermissionError(0, "the Hub's cache cannot be written to")
        remove_folder(downloads_folder() / fetched.name.folder)
    except OSError as error:
        raise Unavailable(f"{brief(str(name))} was not deleted: {error.strerror}.") from error


def _name_of_folder(folder: str) -> Name | None:
    name = parse(folder.replace("--", "/", 1))
    return name if name and name.pinned and name.folder == folder else None


def _read(record: Path, name: Name) -> DownloadedCheckpoint:
    """Read the record of a fetched checkpoint, whose files are beside it or in the Hub's cache.

    Raises:
        OSError: its files are gone.
    """
    requested: dict[str, float] = {}
    with suppress(FileNotFoundError, Unreadable):
        source = read_object(record / _SOURCE)
        times = source.get("revisions", source.get("asked"))  # the key of earlier versions
        requested = {key: when for key, when in times.items() if is_number(when)} if isinstance(times, dict) else {}
    beside = any(path.name != _SOURCE and path.suffix != ".partial" for path in record.iterdir())
    folder = record if beside else hub_snapshot(name.repository, name.revision)
    size = sum(path.stat().st_size for path in folder.iterdir() if path.is_file())
    return DownloadedCheckpoint(name, folder, size, requested)


def _record(name: Name, requested: str) -> DownloadedCheckpoint:
    """Record that a checkpoint was fetched, and the revision that resolved to it."""
    record = downloads_folder() / name.folder
    record.mkdir(parents=True, exist_ok=True)
    source = "https://download.pytorch.org" if name.torchvision else download.endpoint()
    with (record.parent / ".lock").open("w") as lock:
        wait_for_lock(lock.fileno())
        times = {**_read(record, name).requested, requested: time.time()}
        with replaced(record / _SOURCE) as file:
            file.write(json.dumps({"name": str(name), "from": source, "revisions": times}, indent=2).encode())
    return _read(record, name)


def _fetched_names() -> str:
    names = [str(one.name) for one in cached()]
    return f"On this disk: {brief_list(names, most=3)}." if names else "Nothing was fetched before."


# --- Fetching -----------------------------------------------------------------------------------------------


def fetch(name: str | Name, progress: Progress | None = None, keep_free: int = KEEP_FREE) -> DownloadedCheckpoint:
    """Download a checkpoint unless it is cached; a branch is resolved to its current commit.

    Args:
        progress: called with (bytes done, total bytes or None) for the weights, first before any of them is requested;
            any exception aborts the download.
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
    report = progress or (lambda done, total: None)
    try:
        return (_from_torchvision if parsed.torchvision else _from_hub)(parsed, report, keep_free)
    except OSError as error:
        if fetched := _from_cache(parsed):
            return fetched
        why = error.strerror or " ".join(str(error).split())
        raise Unavailable(f"{parsed} could not be fetched: {why}. {_fetched_names()}") from error


def cached_or_download(name: Name) -> DownloadedCheckpoint:
    """Return a checkpoint that is here, also by another program, or download it with a progress bar in a terminal."""
    if fetched := find(name) or _from_cache(name):
        return fetched
    with bars.tqdm(desc=str(name), unit="B", unit_scale=True, leave=False, disable=None) as bar:

        def show(done: int, total: int | None) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return fetch(name, show)


def _from_hub(name: Name, progress: Progress, keep_free: int) -> DownloadedCheckpoint:
    """Download the files that tell whether a checkpoint can be opened, then the others, into the Hub's cache."""
    repository = name.repository
    commit, files = download.list_files(repository, name.revision)
    pinned = Name(repository, commit)
    if CONFIG not in files:
        raise InvalidCheckpoint(
            f"{name} has no config.json, so it cannot be checked before all of it is downloaded. "
            "Download its weights by hand, and open the file."
        )

    def text(file: str, most: int = MAX_TEXT) -> bytes:
        return download.download(repository, commit, file, files[file], most).read_bytes()

    try:
        document = read_json(text(CONFIG), CONFIG)
        recognition.check_config(document)
        weights = _weights_among(files, text)
    except InvalidCheckpoint as error:
        raise InvalidCheckpoint(f"{repository} cannot be opened. {error}") from error
    if (whole := sum(files[file].size for file in weights)) > MAX_WEIGHTS:
        raise Unavailable(
            f"The weights of {repository} have {whole / 1e6:,.0f} MB; at most {MAX_WEIGHTS / 1e6:,.0f} MB are opened."
        )
    for file in (PREPROCESS, PROCESSOR, CARD, *(TOKENIZER if reads_text(document) else ())):
        if file in files:
            text(file, _MAX_TOKENIZER if file in TOKENIZER else MAX_TEXT)
    folder, done = hub_snapshot(repository, commit), 0
    missing = sum(files[file].size for file in weights if not (folder / file).exists())
    download.check_room(repository, folder, missing, keep_free)
    progress(done, whole)
    for file in weights:

        def report(count: int, before: int = done) -> None:
            progress(before + count, whole)

        download.download(repository, commit, file, files[file], MAX_WEIGHTS, report)
        done += files[file].size
        progress(done, whole)
    return _record(pinned, name.revision)


def _from_cache(name: Name) -> DownloadedCheckpoint | None:
    """Take a checkpoint that another program has fetched to the Hub's cache, without any request.

    None if it is no supported Vision Transformer, or if weights or preprocessing are missing, which a download adds.
    """
    commit = "" if name.torchvision else download.commit_in_cache(name.repository, name.revision)
    if not commit:
        return None
    folder = hub_snapshot(name.repository, commit)
    try:
        document = read_json((folder / CONFIG).read_bytes(), CONFIG)
        recognition.check_config(document)
        present = {path.name for path in folder.iterdir() if path.is_file()}  # no links to nowhere
        needed = {*_weights_among(present, lambda index: (folder / index).read_bytes())}
    except (OSError, InvalidCheckpoint):
        return None
    stated = "architecture" in document or present & {PREPROCESS, PROCESSOR}  # timm's config.json has it all
    if not stated or not needed <= present or (reads_text(document) and not present & {*TOKENIZER}):
        return None
    return _record(Name(name.repository, commit), name.revision)


def _weights_among(files: Iterable[str], read: Callable[[str], bytes]) -> list[str]:
    """Return the weights files of a repository: one, or those that the index lists.

    Args:
        read: returns the content of the index.

    Raises:
        InvalidCheckpoint: there are none, or not all.
    """
    present = {*files}
    first = next((file for file in WEIGHT_NAMES if file in present), "")
    if not first:
        what = " nor ".join(file for file in WEIGHT_NAMES if file not in INDEXES)
        raise InvalidCheckpoint(f"It holds neither {what}, and no other weights are read.")
    named = sorted(set(read_index(read(first), first).values())) if first in INDEXES else [first]
    if missing := [file for file in named if file not in present]:
        raise InvalidCheckpoint(f"It lacks {missing[0]}, one of the files that {first} names.")
    return named


def _torchvision_weights(name: Name) -> Any:
    """Return torchvision's enum member of published weights, the default ones for no revision.

    Raises:
        Unavailable: there are none of this name.
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
    return published[name.revision or "DEFAULT"]


def _from_torchvision(name: Name, progress: Progress, keep_free: int) -> DownloadedCheckpoint:
    """Download the one file of a model into its own folder; the file's name ends in the first digits of its hash."""
    weights = _torchvision_weights(name)
    pinned, home = Name(name.repository, weights.name), downloads_folder()
    file = urlsplit(weights.url).path.rpartition("/")[2]
    digits = re.fullmatch(r"\w+-([0-9a-f]{8,64})\.pth", file, re.ASCII)
    assert digits, "torchvision's files are named model-hash.pth"

    def report(done: int, whole: int | None) -> None:
        if not done:
            download.check_room(str(name), home, whole or 0, keep_free)
        progress(done, whole)

    folder = home / pinned.folder
    folder.mkdir(parents=True, exist_ok=True)
    with (home / ".torchvision.lock").open("w") as lock:
        wait_for_lock(lock.fileno())  # another process may download it
        if not (folder / file).is_file():
            download_file([weights.url], folder / file, "sha256", digits[1], report)
    return _record(pinned, name.revision)
