"""Checkpoints from elsewhere: repositories of the Hugging Face Hub, where timm's are too, and torchvision's weights.

    google/vit-base-patch16-224              a repository, as its main branch is
    google/vit-base-patch16-224@REVISION     the same at a branch, a tag or a commit
    timm/vit_base_patch16_224.augreg2_in21k_ft_in1k
    torchvision/vit_b_16                     its default weights
    torchvision/vit_b_16.IMAGENET1K_SWAG_E2E_V1

Each is fetched once, into a folder of its own that opens like any other and whose name holds the exact commit:
`downloads/google--vit-base-patch16-224@3f49326eb077187dfe1c2a2bb15fbd74e6ab91e3/`. Only what is named here is asked
for, and nothing that a server says becomes a path, but the forty digits of the commit. Nothing is fetched unasked.
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
from vit.checkpoints import download, families
from vit.checkpoints.checkpoint import (
    CARD,
    CONFIG,
    INDEXES,
    MAX_WEIGHTS,
    PREPROCESS,
    TOKENIZER,
    WEIGHT_NAMES,
    reads_text,
)
from vit.checkpoints.weight_files import MAX_TEXT, SUFFIXES, read_index, read_json
from vit.errors import InvalidCheckpoint, Unavailable
from vit.files import replaced, wait_for_lock
from vit.paths import downloads_folder
from vit.untrusted import brief

if TYPE_CHECKING:
    from vit.checkpoints.download import Progress, Remote

KEEP_FREE = 2 << 30  # disk space that a download leaves [bytes]

_SOURCE = "source.json"  # beside the files: where they come from, and under which revisions they were asked for
_BESIDE = (CONFIG, PREPROCESS, CARD, *INDEXES, *TOKENIZER)
_MAX_TOKENIZER = 64 << 20  # [bytes]; the 256,000 words of SigLIP 2 have 34 MB
_COMMIT = re.compile(r"[0-9a-f]{40}")
_WORD = r"\w(?:[\w.-]{0,94}\w)?"
_HUB = re.compile(rf"(?P<repository>{_WORD}/{_WORD})(?:@(?P<revision>\w(?:[\w./-]{{0,126}}\w)?))?", re.ASCII)
_TORCHVISION = re.compile(r"(?P<repository>torchvision/\w{1,96})(?:\.(?P<revision>\w{1,96}))?", re.ASCII)


@dataclass(frozen=True)
class Name:
    """What a checkpoint from elsewhere is called; `str` writes it as `parse` reads it.

    Attributes:
        repository: "owner/name"; of torchvision, "torchvision/model".
        revision: branch, tag or commit, "" for the main branch; of torchvision the weights, "" for the default.
    """

    repository: str
    revision: str = ""

    def __str__(self) -> str:
        mark = "." if self.torchvision else "@"
        return f"{self.repository}{mark}{self.revision}" if self.revision else self.repository

    @property
    def torchvision(self) -> bool:
        """Whether torchvision publishes it, and not the Hub."""
        return self.repository.startswith("torchvision/")

    @property
    def pinned(self) -> bool:
        """Whether it means the same files for ever."""
        return bool(self.revision) if self.torchvision else bool(_COMMIT.fullmatch(self.revision))

    @property
    def folder(self) -> str:
        """The name of its folder; for a pinned name."""
        return str(self).replace("/", "--", 1)


@dataclass(frozen=True)
class Fetched:
    """A checkpoint from elsewhere that is on this disk.

    Attributes:
        name: pinned, so that it opens this very one, here and on other machines.
        size: of its files [bytes].
        requested: revision that was asked for, "" for none -> when it last meant this one [s since 1970].
    """

    name: Name
    folder: Path
    size: int
    requested: Mapping[str, float]


# --- Names and what is here ---------------------------------------------------------------------------------


def parse(text: str) -> Name | None:
    """Read a name; None if it cannot be one.

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
    """A checkpoint's name with as much of its commit as people need.

    >>> shortened("google/vit-base-patch16-224@3f49326eb077187dfe1c2a2bb15fbd74e6ab91e3")
    'google/vit-base-patch16-224@3f49326'
    """
    name, mark, commit = name.partition("@")
    return name + mark + commit[:7]


def cached() -> list[Fetched]:
    """All that was fetched and is still here, by name."""
    try:
        with os.scandir(downloads_folder()) as entries:
            folders = [Path(entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []
    fetched = []
    for folder in sorted(folders):
        if name := _name_of_folder(folder.name):
            with suppress(OSError):  # removed at this moment
                fetched.append(_read_folder(folder, name))
    return fetched


def find(name: str | Name) -> Fetched | None:
    """What a name means of that which is here, without asking any server; for names that strangers send.

    A branch, or no revision, means what it meant when it was last fetched.
    """
    parsed = parse(str(name))
    if parsed is None:
        return None
    copies = [one for one in cached() if one.name.repository == parsed.repository]
    exact = [one for one in copies if one.name == parsed]
    candidates = [one for one in copies if parsed.revision in one.requested]
    return next(iter(exact), None) or max(candidates, key=lambda one: one.requested[parsed.revision], default=None)


def called(folder: Path) -> Name | None:
    """The pinned name of what was fetched into this folder; None for every other folder."""
    folder = folder.resolve()
    return _name_of_folder(folder.name) if folder.parent == downloads_folder().resolve() else None


def remove(name: str | Name) -> None:
    """Delete one that is here, for good.

    Args:
        name: pinned, as `cached` lists it.

    Raises:
        Unavailable: it is not here, or the disk refuses.
    """
    fetched = next((one for one in cached() if str(one.name) == str(name)), None)
    if fetched is None:
        raise Unavailable(f"{brief(str(name))} is not among what was fetched. {_fetched_names()}")
    gone = fetched.folder.with_name(f".{fetched.folder.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    try:
        fetched.folder.rename(gone)  # listings skip it from here on, while its files are deleted
    except OSError as error:
        raise Unavailable(f"{brief(str(name))} was not deleted: {error.strerror}.") from error
    shutil.rmtree(gone, ignore_errors=True)


def _name_of_folder(folder: str) -> Name | None:
    name = parse(folder.replace("--", "/", 1))
    return name if name and name.pinned and name.folder == folder else None


def _read_folder(folder: Path, name: Name) -> Fetched:
    requested: dict[str, float] = {}
    with suppress(OSError, InvalidCheckpoint):
        source = read_json((folder / _SOURCE).read_bytes(), _SOURCE)
        if isinstance(source.get("asked"), dict):
            requested = {revision: when for revision, when in source["asked"].items() if isinstance(when, int | float)}
    with os.scandir(folder) as files:
        size = sum(file.stat(follow_symlinks=False).st_size for file in files)
    return Fetched(name, folder, size, requested)


def _fetched_names() -> str:
    names = [str(one.name) for one in cached()]
    return f"On this disk: {', '.join(names)}." if names else "Nothing was fetched before."


# --- Fetching -----------------------------------------------------------------------------------------------


def fetch(name: str | Name, progress: Progress | None = None, keep_free: int = KEEP_FREE) -> Fetched:
    """Bring a checkpoint here, if it is not; ask the Hub what a branch means now.

    The folder is whole or absent. What breaks off is kept aside, and the next call goes on from there.

    Args:
        progress: told (bytes done, bytes in all or None) of the weights; whatever it raises ends the download.
        keep_free: disk space to leave [bytes].

    Raises:
        InvalidCheckpoint: it is no Vision Transformer that is read, which is found out before its weights are fetched.
        Unavailable: no such name, no way to it, no right to have it, too large, no room.
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
        with _one_at_a_time(home / f".{pinned.repository.replace('/', '--')}.lock"):
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


def obtain(name: Name) -> Fetched:
    """What is here under this name, or else fetched, with a bar if a person watches the terminal."""
    if fetched := find(name):
        return fetched
    with bars.tqdm(desc=str(name), unit="B", unit_scale=True, leave=False, disable=None) as bar:

        def show(done: int, total: int | None) -> None:
            bar.total = total
            bar.update(done - bar.n)

        return fetch(name, show)


@contextmanager
def _one_at_a_time(lock: Path) -> Iterator[None]:
    """One download of a repository at a time; the others wait, and then find it here."""
    with lock.open("w") as file:
        wait_for_lock(file.fileno())
        yield


@contextmanager
def _unfinished_folder(folder: Path) -> Iterator[Path]:
    """A hidden folder that gets its name when nothing went wrong; what came of its weights stays for the next time."""
    unfinished = folder.with_name(f".{folder.name}.partial")
    for other in folder.parent.glob(f".{folder.name.partition('@')[0]}@*.partial"):
        if other != unfinished:  # begun at a commit that the branch has left since
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
    """Write down where it comes from, and that this revision means it."""
    times = {**_read_folder(folder, name).requested, requested: time.time()}
    source = "https://download.pytorch.org" if name.torchvision else download.endpoint()
    with replaced(folder / _SOURCE) as file:
        file.write(json.dumps({"name": str(name), "from": source, "asked": times}, indent=2).encode())


def _fetch_weights(
    repository: str, weights: Mapping[str, Remote], folder: Path, progress: Progress | None, keep_free: int
) -> None:
    """Fetch the files of weights, one after the other, if all together are not too large; progress counts over all."""
    weights = {file: remote if remote.repository else download.look_up(remote) for file, remote in weights.items()}
    if (whole := sum(remote.size or 0 for remote in weights.values())) > MAX_WEIGHTS:
        raise Unavailable(
            f"The weights of {repository} have {whole / 1e6:,.0f} MB; at most {MAX_WEIGHTS / 1e6:,.0f} MB are opened."
        )
    present = sum(file.stat().st_size for file in folder.glob("*") if file.name.removesuffix(".partial") in weights)
    download.check_room(folder, whole - present, keep_free)
    done = 0

    def tell(received: int, _: int | None) -> None:
        if progress:
            progress(done + received, whole or None)

    for file, remote in weights.items():
        download.download(remote, folder / file, MAX_WEIGHTS - done, keep_free, tell)
        done += (folder / file).stat().st_size


# --- The Hub ------------------------------------------------------------------------------------------------


def _hub_files(name: Name) -> tuple[Name, Mapping[str, Remote]]:
    """The commit that the revision means now, and what there is at it."""
    commit, files = download.list_files(name.repository, name.revision)
    if not _COMMIT.fullmatch(commit) or (name.pinned and commit != name.revision):
        raise Unavailable(
            f"{urlsplit(download.endpoint()).netloc} does not answer as the Hugging Face Hub does: it names no commit."
        )
    if CONFIG not in files:
        raise InvalidCheckpoint(
            f"{name} has no config.json, so nobody can say what it is before fetching all of it. "
            "Download its weights by hand, and open the file."
        )
    return Name(name.repository, commit), files


def _fetch_texts(repository: str, files: Mapping[str, Remote], folder: Path, keep_free: int) -> Mapping[str, Remote]:
    """Fetch what says whether a checkpoint can be opened, and what else lies beside its weights.

    Returns:
        the files of weights: one, or those that an index names.
    """

    def fetch_text(file: str, limit: int = MAX_TEXT) -> bytes:
        download.download(files[file], folder / file, limit, keep_free)
        return (folder / file).read_bytes()

    try:
        document = read_json(fetch_text(CONFIG), CONFIG)
        families.check_config(document)
        first = next((file for file in WEIGHT_NAMES if file in files), "")
        named = sorted(set(read_index(fetch_text(first), first).values())) if first in INDEXES else [first]
    except InvalidCheckpoint as error:
        raise InvalidCheckpoint(f"{repository} cannot be opened. {error}") from error
    if not first:
        what = " nor ".join(file for file in WEIGHT_NAMES if file not in INDEXES)
        raise InvalidCheckpoint(f"{repository} holds neither {what}, and no other weights are read.")
    if missing := [file for file in named if file not in files]:
        raise InvalidCheckpoint(f"{repository} lacks {missing[0]}, one of the files that {first} names.")
    for file in (PREPROCESS, CARD):
        if file in files:
            fetch_text(file)
    for file in TOKENIZER if reads_text(document) else ():
        if file in files:
            fetch_text(file, _MAX_TOKENIZER)
    return {file: files[file] for file in named}


# --- torchvision --------------------------------------------------------------------------------------------


def _torchvision_weights(name: Name) -> tuple[Name, Mapping[str, Remote]]:
    """The weights that are meant, by their own name, and the one file that torchvision publishes of them.

    Its name ends in the beginning of its hash.
    """
    from torchvision import models  # noqa: PLC0415 # brings torch's compiler along: 2 s

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
