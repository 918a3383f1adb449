"""Downloads of files from addresses that torchvision publishes: complete and verified, or absent."""

import hashlib
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path
from typing import Literal
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

_CHUNK_BYTES = 1 << 18
_PATIENCE_SECONDS = 30  # [s] timeout without a byte


def has_hash(file: Path, kind: Literal["md5", "sha256"], digits: str) -> bool:
    """Whether a file exists, and its hash begins with these hexadecimal digits."""
    if not file.is_file():
        return False
    with file.open("rb") as content:
        digest = hashlib.file_digest(content, lambda: hashlib.new(kind, usedforsecurity=False))
    return digest.hexdigest().startswith(digits)


def download_file(
    urls: list[str],
    file: Path,
    kind: Literal["md5", "sha256"],
    digits: str,
    progress: Callable[[int, int | None], object],
) -> None:
    """Download a file from the first mirror that has it; it is renamed once its hash is verified.

    Args:
        digits: that its hash begins with.
        progress: called with the bytes done, and the size if the server states it, first before any byte has arrived;
            any exception that it raises aborts the download.

    Raises:
        OSError: no mirror sent the file.
    """
    unfinished = file.with_name(file.name + ".partial")
    failure: Exception = OSError("no address")
    for url in urls:
        try:
            request = Request(url, headers={"User-Agent": "vit"})  # noqa: S310  the addresses are torchvision's
            with urlopen(request, timeout=_PATIENCE_SECONDS) as answer, unfinished.open("wb") as target:  # noqa: S310
                progress(0, answer.length)
                size = answer.length
                while chunk := answer.read(_CHUNK_BYTES):
                    target.write(chunk)
                    progress(target.tell(), size)
            if not has_hash(unfinished, kind, digits):
                raise OSError("its hash differs")
            unfinished.replace(file)
            return
        except (OSError, HTTPException) as error:
            failure = error
        finally:
            unfinished.unlink(missing_ok=True)
    reason = failure if isinstance(failure, HTTPError) else getattr(failure, "reason", failure)
    raise OSError(f"{urlsplit(urls[-1]).netloc} did not send it ({reason})") from failure
