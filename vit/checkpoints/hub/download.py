"""Requests to the Hugging Face Hub, whose files come into huggingface_hub's cache, with limits and errors for users.

All requests go through huggingface_hub, which handles addresses, tokens, redirects, retries, offline mode and locks.
It bounds neither a file's size nor compares its hash, so `download` does. An interrupted file begins again.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import httpx2
from huggingface_hub import HfApi, constants, errors, get_token, hf_hub_download, try_to_load_from_cache

from vit.errors import Unavailable
from vit.paths import hub_cache, hub_snapshot
from vit.untrusted import brief

Progress = Callable[[int, int | None], None]  # (bytes done, total bytes or None)


class Remote(NamedTuple):
    """A file on the Hub.

    Attributes:
        size: [bytes].
        sha256: "" if the Hub states none, as for small files.
    """

    size: int
    sha256: str = ""


def endpoint() -> str:
    """Return the Hub's URL, or that of the environment variable HF_ENDPOINT."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def has_token() -> bool:
    """Whether a token of the Hub is configured, in HF_TOKEN or by `hf auth login`."""
    return bool(get_token())


def list_files(repository: str, revision: str = "") -> tuple[str, Mapping[str, Remote]]:
    """Return a repository's commit on the Hub, and its files by name.

    Args:
        revision: a branch, a tag or a commit, "" for the main branch.

    Raises:
        Unavailable: no such repository or revision, no access, or another server than the Hub.
        OSError: no response; the message gives the reason.
    """
    settings = hub_constants()
    with errors_for_users(repository, revision):
        try:
            answer = HfApi(endpoint()).model_info(
                repository, revision=revision or None, files_metadata=True, timeout=settings.HF_HUB_ETAG_TIMEOUT
            )
            files = {
                str(file.rfilename): Remote(int(file.size or 0), str(file.lfs.sha256) if file.lfs else "")
                for file in answer.siblings or ()
            }
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise Unavailable(f"{host_of(endpoint())} does not answer as the Hugging Face Hub does.") from error
    if not re.fullmatch("[0-9a-f]{40}", str(answer.sha)):
        raise Unavailable(f"{host_of(endpoint())} does not answer as the Hugging Face Hub does: it names no commit.")
    return str(answer.sha), files


def download(
    repository: str, commit: str, name: str, remote: Remote, most: int, report: Callable[[int], object] | None = None
) -> Path:
    """Download a file of a repository's top folder into the Hub's cache unless it is there, and return its path.

    Args:
        most: maximum size [bytes].
        report: called with the bytes done; any exception that it raises aborts the download.

    Raises:
        Unavailable: no access, or another server than the Hub.
        OSError: the download failed; the message is a reason, to follow "because".
    """
    if remote.size > most:
        raise OSError(f"{name} has {_mb(remote.size)} MB; at most {_mb(most)} MB are taken")
    hub_constants()
    meter: Any = _Meter(remote.size, report)
    with errors_for_users(repository):
        path = Path(
            hf_hub_download(
                repository, name, revision=commit, cache_dir=hub_cache(), endpoint=endpoint(), tqdm_class=meter
            )
        )
    if path.parent != hub_snapshot(repository, commit):
        raise Unavailable(
            f"{host_of(endpoint())} does not answer as the Hugging Face Hub does: it names another commit."
        )
    if meter.done:  # otherwise it was there
        with path.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        if path.stat().st_size != remote.size or remote.sha256 not in ("", digest):
            path.resolve().unlink()
            path.unlink(missing_ok=True)
            raise OSError("what was sent is not the file that was published: its hash or size differs")
    return path


def commit_in_cache(repository: str, revision: str) -> str:
    """Return the commit that a branch, a tag or a commit means in the Hub's cache; "" if nothing of it is there."""
    path = try_to_load_from_cache(repository, "config.json", cache_dir=hub_cache(), revision=revision or "main")
    return Path(path).parent.name if isinstance(path, str) else ""


def check_room(name: str, folder: Path, needed: int, keep_free: int) -> None:
    """Check that the disk has enough space for a download [bytes].

    Raises:
        Unavailable: it has not.
    """
    if (free := shutil.disk_usage(folder).free) - needed < keep_free:
        raise Unavailable(
            f"{name} needs {_mb(needed)} MB and the disk has {_mb(free)} MB, of which {_mb(keep_free)} MB stay free. "
            "Delete something first."
        )


class _Meter:
    """Takes the place of huggingface_hub's progress bar: it counts, limits and reports the bytes of one file."""

    def __init__(self, size: int, report: Callable[[int], object] | None):
        self.done, self._size, self._report = 0, size, report

    def __call__(self, **_: object) -> Self:
        return self

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def update(self, count: int) -> None:
        """Count bytes that have arrived; a negative number when a file begins again."""
        self.done += count
        if self.done > self._size:
            raise OSError(f"it has more bytes than the {self._size:,} that were announced")
        if self._report:
            self._report(self.done)


# --- huggingface_hub --------------------------------------------------------------------------------------------------


def hub_constants() -> Any:
    """Return the constants of huggingface_hub, adjusted; call this before any request."""
    settings: Any = constants
    settings.HF_HUB_DISABLE_TELEMETRY = True
    settings.HF_HUB_DISABLE_XET = True  # hf_xet cannot be stopped, and reports no progress of an upload
    settings.DOWNLOAD_CHUNK_SIZE = None  # as bytes arrive: by default, stopping waits for 10 MB
    return settings


@contextmanager
def errors_for_users(
    repository: str, revision: str = "", refusal: Callable[[Any], Exception] | None = None
) -> Iterator[None]:
    """Raise errors of huggingface_hub and httpx again, with messages for users.

    Args:
        refusal: returns the exception for an error response of the Hub.

    Raises:
        Unavailable: refused by the Hub.
        OSError: no answer, or an error; the message is a reason, to follow "because".
    """
    raised: Exception
    cause: Any
    try:
        yield
        return
    except (errors.HfHubHTTPError, errors.OfflineModeIsEnabled, httpx2.HTTPError, httpx2.InvalidURL) as error:
        raised = cause = error
    except (errors.LocalEntryNotFoundError, errors.FileMetadataError, RuntimeError) as error:
        raised, cause = error, error.__cause__ or error  # huggingface_hub wraps errors in these
    except ValueError as error:
        raise OSError(" ".join(str(error).split())[:120].rstrip(".")) from error
    if isinstance(cause, errors.OfflineModeIsEnabled):
        raise OSError("HF_HUB_OFFLINE is set") from raised
    if not isinstance(cause, errors.HfHubHTTPError):
        raise OSError(f"{host_of(endpoint())} cannot be reached ({brief(str(cause)) or 'no answer'})") from raised
    if (host := host_of(str(cause.response.url))) != host_of(endpoint()):
        raise OSError(f"{host} answered {cause.response.status_code}") from raised
    raise (refusal(cause) if refusal else _refusal(repository, revision, cause)) from raised


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


def _mb(size: int) -> str:
    return f"{size / 1e6:,.{0 if size >= 1e8 else 1}f}"
