"""Push a checkpoint to the Hugging Face Hub, where `transformers` and this app can open it by name.

Only the files that transformers reads are uploaded, with a card for the Hub, and nothing else from the folder or the
machine. `plan_push` describes the push without changing anything; `push` then executes the plan as one commit on top of
the commit that the plan was based on.

huggingface_hub manages the token, from HF_TOKEN or `hf auth login`; this module does not read it.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from huggingface_hub import CommitOperationAdd, HfApi, errors
from huggingface_hub.utils import are_progress_bars_disabled, disable_progress_bars, enable_progress_bars

from vit.checkpoints.checkpoint import CARD, CONFIG, PREPROCESS, WEIGHTS
from vit.checkpoints.formats.json_documents import dump_json, read_json
from vit.checkpoints.formats.weight_files import SUFFIXES
from vit.checkpoints.hub import download
from vit.checkpoints.hub import models as hub
from vit.checkpoints.hub.hub_card import public_facts, write_hub_card
from vit.checkpoints.load import load_checkpoint, summarise
from vit.errors import InvalidCheckpoint, Unavailable
from vit.untrusted import brief

if TYPE_CHECKING:
    from vit.checkpoints.hub.download import Progress

MESSAGE = "Push a Vision Transformer"  # default commit message
LICENSE = re.compile(r"[a-z0-9][a-z0-9.+-]{0,39}|")  # as in the Hub's list of licences
_COMMIT = re.compile(r"[0-9a-f]{40}")
_CHANGED = "{0} was changed by somebody else in the meantime. Look at what is there, and push again."


@dataclass(frozen=True)
class Plan:
    """A planned push.

    Attributes:
        repository: "owner/name".
        private: whether the repository is hidden from people without access; the requested setting if it is new.
        parent: the commit that the push builds on, "" if the repository does not exist yet.
        weights: local path.
        signature: of the weights at planning time.
        texts: the other files, by name.
        replaced: uploaded files that exist in the repository; its history keeps the old versions.
    """

    repository: str
    private: bool
    parent: str
    weights: Path
    signature: tuple[int, ...]
    texts: dict[str, bytes]
    replaced: tuple[str, ...]

    @property
    def sizes(self) -> dict[str, int]:
        """Size of every uploaded file [bytes]."""
        return {WEIGHTS: self.signature[1]} | {name: len(text) for name, text in self.texts.items()}


class PushResult(NamedTuple):
    """Result of a push.

    Attributes:
        name: pinned to the commit, as `load_checkpoint` and `vit classify --checkpoint` accept it.
        url: of the commit's page.
    """

    name: hub.Name
    url: str


def plan_push(folder: Path, repository: str, *, private: bool = False, license: str = "") -> Plan:
    """Check a checkpoint and its target repository, and plan the push.

    Args:
        folder: of the checkpoint.
        repository: "owner/name", which need not exist yet.
        private: for a repository that does not exist yet.
        license: as the Hub spells it, such as apache-2.0; "" for the one on the card, if any.

    Raises:
        InvalidCheckpoint: it cannot be opened, or was not saved by this app.
        Unavailable: no token, no connection to the Hub, an invalid name, or an unsuitable repository.
    """
    name = hub.parse(repository)
    if name is None or name.torchvision or name.repository != repository:
        raise Unavailable(f"{brief(repository)!r} is not the name of a repository. Write owner/name.")
    if not LICENSE.fullmatch(license):
        raise Unavailable(f"{brief(license)!r} is not a licence as the Hub writes them, such as apache-2.0 or mit.")
    weights = folder / WEIGHTS
    info = summarise(folder)
    if info.problem:
        raise InvalidCheckpoint(info.problem)
    if info.family != "saved":
        raise InvalidCheckpoint(
            f"{brief(folder.name)!r} was not saved by this app. Convert it first, which says where it comes from."
        )
    signature = _signature(weights)
    texts = _texts(folder, repository, license)
    _require_token()
    parent, here = "", tuple[str, ...]()
    with _translate_errors(repository):
        try:
            there = _api().model_info(repository)
        except errors.RepositoryNotFoundError as error:
            if isinstance(error, errors.GatedRepoError):
                raise
            there = None
    if there is not None:
        parent, here = str(there.sha), tuple(file.rfilename for file in there.siblings or ())
        if private and not there.private:
            raise Unavailable(f"{repository} exists and is public. Push it as such, or choose another name.")
        if others := [file for file in here if file.endswith(SUFFIXES) and file != WEIGHTS]:
            raise Unavailable(f"{repository} holds other weights ({brief(others[0])}). Choose another name.")
        private = bool(there.private)
    replaced = tuple(file for file in (WEIGHTS, *texts) if file in here)
    return Plan(repository, private, parent, weights, signature, texts, replaced)


def push(plan: Plan, message: str = MESSAGE, progress: Progress | None = None) -> PushResult:
    """Upload the planned files in one commit.

    Args:
        message: of the commit.
        progress: called with (bytes done, total bytes) for the weights; any exception aborts the upload and leaves the
            repository unchanged.

    Raises:
        InvalidCheckpoint: the checkpoint has changed since it was planned.
        Unavailable: no token, no write access, no connection to the Hub, the name is taken, or the repository has
            changed since.
    """
    _require_token()
    if _signature(plan.weights) != plan.signature:
        raise InvalidCheckpoint(f"{brief(plan.weights.parent.name)!r} has changed since it was looked at. Push again.")
    api, repository = _api(), plan.repository
    with _translate_errors(repository), _no_bars(), _ProgressReader(plan.weights, progress) as weights:
        parent = plan.parent
        if not parent:
            api.create_repo(repository, repo_type="model", private=plan.private)
            parent = str(api.model_info(repository).sha)
        operations = [CommitOperationAdd(WEIGHTS, weights)]
        operations += [CommitOperationAdd(name, text) for name, text in plan.texts.items()]
        weights.counts = True
        done = api.create_commit(repository, operations, commit_message=message or MESSAGE, parent_commit=parent)
    if not _COMMIT.fullmatch(done.oid):
        raise Unavailable(f"{download.endpoint()} does not answer as the Hugging Face Hub does: it names no commit.")
    return PushResult(hub.Name(repository, done.oid), f"{download.endpoint()}/{repository}/commit/{done.oid}")


def _texts(folder: Path, repository: str, license: str) -> dict[str, bytes]:
    """Return the files beside the weights, without local paths."""
    checkpoint = load_checkpoint(folder)  # checks the files and the fingerprint
    config = read_json((folder / CONFIG).read_bytes(), CONFIG)
    facts = public_facts(checkpoint.facts) | ({"license": license} if license else {})
    return {
        CONFIG: dump_json(config | {"training": facts}, indent=2).encode(),
        PREPROCESS: (folder / PREPROCESS).read_bytes(),
        CARD: write_hub_card(checkpoint, repository, license).encode(),
    }


def _signature(file: Path) -> tuple[int, ...]:
    """Return (inode, size [bytes], modification time [ns]), to detect changes; zeros if the file is missing."""
    try:
        facts = file.stat()
    except OSError:  # deleted
        return 0, 0, 0
    return facts.st_ino, facts.st_size, facts.st_mtime_ns


class _ProgressReader(io.BufferedReader):
    """A file that reports the read position, if `counts` is set."""

    def __init__(self, path: Path, progress: Progress | None):
        super().__init__(io.FileIO(path))
        self.counts, self._progress, self._size = False, progress, path.stat().st_size

    def read(self, size: int | None = -1, /) -> bytes:
        chunk = super().read(size)
        if self.counts and self._progress:
            self._progress(self.tell(), self._size)
        return chunk


@contextmanager
def _no_bars() -> Iterator[None]:
    """Disable the progress bars of huggingface_hub, in favour of ours."""
    if are_progress_bars_disabled():
        yield
        return
    disable_progress_bars()
    try:
        yield
    finally:
        enable_progress_bars()


# --- The Hub ----------------------------------------------------------------------------------------------------------


def _api() -> HfApi:
    download.hub_constants()
    return HfApi(download.endpoint())


def _require_token() -> None:
    if not download.has_token():
        raise Unavailable(
            "To push, set HF_TOKEN to a token of the Hugging Face Hub that may write, or sign in with `hf auth login`."
        )


@contextmanager
def _translate_errors(repository: str) -> Iterator[None]:
    """Translate the Hub's errors into one sentence each."""
    try:
        with download.errors_for_users(repository, refusal=lambda error: Unavailable(_refusal(repository, error))):
            yield
    except OSError as error:
        raise Unavailable(f"{repository} was not pushed: {error}.") from error


def _refusal(repository: str, error: Any) -> str:
    status, owner, host = (
        error.response.status_code,
        repository.partition("/")[0],
        download.host_of(download.endpoint()),
    )
    if status == 401 and not isinstance(error, errors.RepositoryNotFoundError):
        return f"{host} does not accept the token. Set HF_TOKEN to a valid one."
    if status in (401, 403, 404):
        return f"The token may not write to {repository}. Use one that may, with the right of {owner} to write."
    if status == 409 and error.response.request.url.path.endswith("/repos/create"):
        return f"{repository} exists and is not a model repository. Choose another name."
    if status in (409, 412):
        return _CHANGED.format(repository)
    if status in (402, 413):
        return f"{repository} was not pushed: {owner} has no room for it on the Hub."
    return f"{repository} was not pushed: {download.host_of(str(error.response.url))} answered {status}."
