"""Download files from the Hugging Face Hub and other servers; interrupted downloads resume, complete ones are verified.

All requests go through huggingface_hub, which handles addresses, tokens, redirects, retries, offline mode and errors.
This module uses the lower-level `http_get`, because `hf_hub_download` deletes a partial file when the connection closes
early, accepts a file of any size, and does not compare its hash.
"""

import hashlib
import io
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import HfApi, constants, errors, get_hf_file_metadata, get_token, hf_hub_url
from huggingface_hub.file_download import http_get
from huggingface_hub.utils import build_hf_headers
from huggingface_hub.utils.tqdm import silent_tqdm

from vit.errors import Unavailable
from vit.untrusted import brief

Progress = Callable[[int, int | None], None]  # (bytes done, total bytes or None)


class Remote(NamedTuple):
    """Location of a remote file.

    Attributes:
        size: [bytes], if the server states it.
        sha256: first hexadecimal digits of its hash; "" if unknown.
        repository: on the Hub, requests for which carry the token; "" for a file from elsewhere.
    """

    url: str
    size: int | None = None
    sha256: str = ""
    repository: str = ""


class Listing(NamedTuple):
    """The files of a repository at one commit, by name."""

    commit: str
    files: Mapping[str, Remote]


def endpoint() -> str:
    """Return the Hub's URL, or that of the environment variable HF_ENDPOINT."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def has_token() -> bool:
    """Whether a token of the Hub is configured, in HF_TOKEN or by `hf auth login`."""
    return bool(get_token())


def list_files(repository: str, revision: str = "") -> Listing:
    """List the files of a repository on the Hub.

    Args:
        revision: a branch, a tag or a commit, "" for the main branch.

    Raises:
        Unavailable: no such repository or revision, or no access.
        OSError: no response; the message gives the reason.
    """
    settings = hub_constants()
    with _errors_for_users(endpoint(), repository, revision):
        try:
            answer = HfApi(endpoint()).model_info(
                repository, revision=revision or None, files_metadata=True, timeout=settings.HF_HUB_ETAG_TIMEOUT
            )
            commit, files = str(answer.sha), {}
            for file in answer.siblings or ():
                url = hf_hub_url(repository, file.rfilename, revision=commit, endpoint=endpoint())
                size, sha256 = file.size, str(file.lfs.sha256) if file.lfs else ""
                files[file.rfilename] = Remote(
                    url,
                    size if isinstance(size, int) else None,
                    sha256 if re.fullmatch("[0-9a-f]{64}", sha256) else "",
                    repository,
                )
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise Unavailable(f"{host_of(endpoint())} does not answer as the Hugging Face Hub does.") from error
    return Listing(commit, files)


def look_up(remote: Remote) -> Remote:
    """Request the size of a file from a server that is not the Hub.

    Raises:
        OSError: no response; the message gives the reason.
    """
    hub_constants()
    with _errors_for_users(remote.url):
        return remote._replace(size=get_hf_file_metadata(remote.url, token=False).size)


def download(remote: Remote, file: Path, most: int, keep_free: int = 0, progress: Progress | None = None) -> None:
    """Download a file unless it exists; until it is complete, its name ends in `.partial`.

    Received bytes are kept if the connection or the process dies, and the next call resumes from there.

    Args:
        most: maximum size [bytes].
        keep_free: disk space to leave [bytes].
        progress: callback; any exception that it raises aborts the download.

    Raises:
        Unavailable: no access.
        OSError: the download failed; the message is a reason, to follow "because".
    """
    if file.exists():
        return
    if (remote.size or 0) > most:
        raise OSError(f"{file.name} has {_mb(remote.size)} MB; at most {_mb(most)} MB are taken")
    unfinished = file.with_name(file.name + ".partial")
    with _Limited(unfinished, remote.size, most, keep_free, progress) as target:
        if target.tell() > (remote.size or 0):  # or the size is unknown, so a partial file cannot be resumed
            target.truncate(0)
        if target.tell() != remote.size:
            _receive(remote, target)
        target.flush()
        os.fsync(target.fileno())
    try:
        _check_whole(unfinished, remote)
    except OSError:
        unfinished.unlink()
        raise
    unfinished.replace(file)


def check_room(folder: Path, needed: int, keep_free: int) -> None:
    """Check that the disk has enough space.

    Raises:
        OSError: it has not.
    """
    free = shutil.disk_usage(folder).free
    if free - needed < keep_free:
        raise OSError(
            f"it needs {_mb(needed)} MB and the disk has {_mb(free)} MB, of which {_mb(keep_free)} MB stay free"
        )


class _Limited(io.BufferedWriter):
    """An append-only file with limits on size and disk space, which reports progress after each write."""

    def __init__(self, path: Path, size: int | None, most: int, keep_free: int, progress: Progress | None):
        super().__init__(io.FileIO(path, "ab"))
        self._path, self._size, self._most, self._keep_free, self._progress = path, size, most, keep_free, progress

    def write(self, chunk: Any) -> int:
        done = self.tell() + len(chunk)
        if self._size is not None and done > self._size:
            raise OSError(f"it has more bytes than the {self._size:,} that were announced")
        if done > self._most:
            raise OSError(f"it has more than {_mb(self._most)} MB, which are the most that are taken")
        check_room(self._path.parent, len(chunk), self._keep_free)
        super().write(chunk)
        if self._progress:
            self._progress(done, self._size)
        return len(chunk)


def _receive(remote: Remote, target: _Limited) -> None:
    """Append the missing bytes."""
    hub_constants()
    headers = build_hf_headers(token=None if remote.repository else False, headers={"Accept-Encoding": "identity"})
    with _errors_for_users(remote.url, remote.repository):
        try:
            silent: Any = silent_tqdm
            http_get(remote.url, target, resume_size=target.tell(), headers=headers, tqdm_class=silent)
        except httpx2.TransportError as error:
            if done := target.tell():
                whole = f" of {_mb(remote.size)}" if remote.size else ""
                message = f"the connection broke off after {_mb(done)}{whole} MB; what came is kept, so try again"
                raise OSError(message) from error
            raise


def _check_whole(file: Path, remote: Remote) -> None:
    """Check the size and the hash of a downloaded file."""
    if remote.size not in (None, size := file.stat().st_size):
        raise OSError(f"it has {size:,} bytes and not the {remote.size:,} that were announced")
    if remote.sha256:
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        if not digest.startswith(remote.sha256):
            raise OSError("what was sent is not the file that was published: its hash differs")


# --- huggingface_hub --------------------------------------------------------------------------------------------------


def hub_constants() -> Any:
    """Return the constants of huggingface_hub, adjusted; call this before any request."""
    settings: Any = constants
    settings.HF_HUB_DISABLE_TELEMETRY = True
    # Write bytes as they arrive. The default buffers 10 MB first: they are lost when the connection breaks, and
    # cancelling on a slow line waits for them.
    settings.DOWNLOAD_CHUNK_SIZE = None
    return settings


@contextmanager
def _errors_for_users(url: str, repository: str = "", revision: str = "") -> Iterator[None]:
    """Raise errors of huggingface_hub and httpx again, with messages for users."""
    try:
        yield
    except errors.OfflineModeIsEnabled as error:
        raise OSError("HF_HUB_OFFLINE is set") from error
    except errors.HfHubHTTPError as error:
        if (host := host_of(str(error.response.url))) == host_of(endpoint()):
            raise _refusal(repository, revision, error) from error
        raise OSError(f"{host} answered {error.response.status_code}") from error
    except (httpx2.HTTPError, httpx2.InvalidURL) as error:
        raise OSError(f"{host_of(url)} cannot be reached ({brief(str(error)) or 'no answer'})") from error


def _refusal(repository: str, revision: str, error: Any) -> OSError | Unavailable:
    """Return the exception for an error response of the Hub, with what to do."""
    status, host = error.response.status_code, host_of(endpoint())
    token = "authorization" in error.response.request.headers
    if isinstance(error, errors.RevisionNotFoundError):
        what = f"{repository} has no revision {brief(revision or 'main')!r}. Name a branch, tag or whole commit."
        return Unavailable(what)
    if isinstance(error, errors.GatedRepoError):
        what = "with the account of HF_TOKEN" if token else "and set HF_TOKEN to a token of the account that did"
        return Unavailable(f"{repository} has terms of use. Accept them at {endpoint()}/{repository}, {what}.")
    missing = isinstance(error, errors.RepositoryNotFoundError)
    if status == 401 and token and not missing:
        return Unavailable(f"{host} does not accept the token in HF_TOKEN. Set a valid one, or none.")
    if missing or status in (401, 404):
        private = "it is closed to the token in HF_TOKEN" if token else "it is private: then set HF_TOKEN"
        return Unavailable(f"{host} has no repository {repository!r}, or {private}.")
    if status == 429:
        return OSError(f"{host} was asked too often; wait some minutes, or set HF_TOKEN")
    return OSError(f"{host} answered {status}")


def host_of(url: str) -> str:
    """Return the host and port of a URL."""
    return urlsplit(url).netloc


def _mb(size: int | None) -> str:
    size = size or 0
    return f"{size / 1e6:,.{0 if size >= 1e8 else 1}f}"
