"""A file in a repository of the Hugging Face Hub: where it lies, or why it cannot be had. Fetches nothing itself.

The token comes from the environment in the way of `huggingface_hub`: HF_TOKEN, or what `hf auth login` left.
"""

import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple
from urllib.parse import urljoin, urlsplit

from vit.checkpoints.families.family import shown
from vit.errors import Unavailable

MAIN = "main"


class Remote(NamedTuple):
    """Where a file lies.

    Attributes:
        commit: at which it was found.
        size: [bytes], if the Hub says so.
        sha256: its hash, "" for small files, of which the Hub does not say it.
        headers: what this address wants to hear: the token, if it is the Hub's own.
    """

    url: str
    commit: str
    size: int | None
    sha256: str
    headers: Mapping[str, str]


def endpoint() -> str:
    """The Hub's address, or where the environment variable HF_ENDPOINT points."""
    return (os.environ.get("HF_ENDPOINT") or "https://huggingface.co").rstrip("/")


def host() -> str:
    """The Hub's name, for people."""
    return urlsplit(endpoint()).netloc


def look_up(repository: str, revision: str, file: str, optional: bool = False) -> Remote | None:
    """Ask the Hub for a file; None if the repository is there and has no such file.

    Args:
        revision: a branch, a tag or a commit, "" for the main branch.
        optional: take every "not found" to be about the file; for a repository that was found before.

    Raises:
        Unavailable: no such repository or revision, or no right to have it.
        OSError: no answer, with the reason.
    """
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    import httpx2
    from huggingface_hub import constants, errors, get_hf_file_metadata, hf_hub_url
    from huggingface_hub.utils import build_hf_headers

    constants.HF_HUB_DISABLE_TELEMETRY = True  # if it was imported before
    url = hf_hub_url(repository, file, revision=revision or MAIN, endpoint=endpoint())
    headers = build_hf_headers()
    try:
        found = get_hf_file_metadata(url, headers=headers, endpoint=endpoint())
    except errors.RemoteEntryNotFoundError:
        return None
    except errors.HfHubHTTPError as error:
        if optional and error.response.status_code == 404:
            return None
        raise _refusal(repository, revision, error, token="authorization" in headers) from error
    except errors.OfflineModeIsEnabled as error:
        raise OSError("HF_HUB_OFFLINE is set") from error
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError, ValueError) as error:
        raise OSError(f"{host()} cannot be reached ({shown(str(error)) or 'no answer'})") from error
    location = urljoin(url, found.location)
    own = urlsplit(location)[:2] == urlsplit(url)[:2]
    etag = found.etag or ""
    return Remote(
        url=location,
        commit=found.commit_hash or "",
        size=found.size,
        sha256=etag if re.fullmatch(r"[0-9a-f]{64}", etag) else "",
        headers={key: value for key, value in headers.items() if own and key == "authorization"},
    )


def _refusal(repository: str, revision: str, error: Any, token: bool) -> OSError | Unavailable:
    """Why the Hub does not give it, and what to do."""
    from huggingface_hub import errors

    status = error.response.status_code
    if isinstance(error, errors.RevisionNotFoundError):
        what = f"{repository} has no revision {shown(revision or MAIN)!r}. Name a branch, tag or whole commit."
        return Unavailable(what)
    if isinstance(error, errors.GatedRepoError):
        what = "with the account of HF_TOKEN" if token else "and set HF_TOKEN to a token of the account that did"
        return Unavailable(f"{repository} has terms of use. Accept them at {endpoint()}/{repository}, {what}.")
    missing = isinstance(error, errors.RepositoryNotFoundError)
    if status == 401 and token and not missing:
        return Unavailable(f"{host()} does not accept the token in HF_TOKEN. Set a valid one, or none.")
    if missing or status in (401, 404):
        private = "it is closed to the token in HF_TOKEN" if token else "it is private: then set HF_TOKEN"
        return Unavailable(f"{host()} has no repository {repository!r}, or {private}.")
    if status == 429:
        return OSError(f"{host()} was asked too often; wait some minutes, or set HF_TOKEN")
    return OSError(f"{host()} answered {status}")
