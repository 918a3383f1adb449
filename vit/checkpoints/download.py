"""Files from the network: whole and right, or absent; what broke off goes on where it was."""

import hashlib
import os
import re
import shutil
import time
import urllib.request as web
from collections.abc import Callable, Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any, BinaryIO
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

Progress = Callable[[int, int | None], None]  # (bytes done, bytes in all or None)

_CHUNK = 1 << 18
_PATIENCE = 30  # [s] without a byte
_PAUSES = (0.5, 1.0, 2.0)  # [s] before trying again, when the last try brought nothing
# What `urlopen` has, without its handlers for file:, ftp: and data:, so that no server can lead there.
_HANDLERS = (
    web.ProxyHandler,
    web.HTTPHandler,
    web.HTTPSHandler,
    web.HTTPRedirectHandler,
    web.HTTPDefaultErrorHandler,
    web.HTTPErrorProcessor,
    web.UnknownHandler,
)
_KEPT = "what came is kept, so try again"


class _Broken(OSError):
    """The connection ended early; trying again may help."""


def download(
    url: str,
    file: Path,
    most: int,
    size: int | None = None,
    sha256: str = "",
    headers: Mapping[str, str] | None = None,
    keep_free: int = 0,
    progress: Progress | None = None,
) -> None:
    """Fetch a file, unless it is there; it gets its name when it is whole, and until then ends in `.partial`.

    What arrived stays when the connection breaks or the process dies, and the next call goes on from there.

    Args:
        most: what is taken at most [bytes].
        size: what it must have, if that is known [bytes].
        sha256: how its hash begins, in hexadecimal digits; "" if it is not known.
        headers: for this address only, never for one that it redirects to.
        keep_free: disk space to leave [bytes].
        progress: whatever it raises ends the download.

    Raises:
        OSError: it could not be fetched; says why, in words that follow "because".
    """
    if file.exists():
        return
    unfinished = file.with_name(file.name + ".partial")
    with unfinished.open("ab") as target:
        reached, failures = False, 0
        while True:
            before = target.tell()
            try:
                _receive(url, target, most, size, headers or {}, keep_free, progress)
                break
            except _Broken:
                moved = target.tell() > before
                reached, failures = reached or moved, 0 if moved else failures + 1
                if not reached or failures > len(_PAUSES):
                    raise
                time.sleep(_PAUSES[failures - 1] if failures else 0)
        target.flush()
        os.fsync(target.fileno())
    if sha256:
        with unfinished.open("rb") as content:
            found = hashlib.file_digest(content, "sha256").hexdigest()
        if not found.startswith(sha256):
            unfinished.unlink()
            raise OSError("what was sent is not the file that was published: its hash differs")
    unfinished.replace(file)


def _receive(
    url: str,
    target: BinaryIO,
    most: int,
    size: int | None,
    headers: Mapping[str, str],
    keep_free: int,
    progress: Progress | None,
) -> None:
    """Append to `target` what it lacks."""
    if target.tell() == size:
        return
    with _asked(url, target.tell(), headers) as answer:
        done, total = _span(answer)
        if total is not None and size is not None and total != size:
            raise OSError(f"it has {total:,} bytes and not the {size:,} that were announced")
        if total is not None and total > most:
            raise OSError(f"it has {total / 1e6:,.0f} MB; at most {most / 1e6:,.0f} MB are taken")
        if done > target.tell():
            raise _Broken("the server sent another part of the file than it was asked for")
        target.truncate(done)
        target.seek(done)
        _check_room(target, (total or done) - done, keep_free)
        while chunk := _read(answer):
            done += len(chunk)
            if done > (most if total is None else total):
                raise OSError("it goes on beyond its end")
            if total is None:
                _check_room(target, len(chunk), keep_free)
            target.write(chunk)
            if progress:
                progress(done, total)
    if total is not None and done < total:
        raise _Broken(f"the connection broke off after {done / 1e6:,.1f} of {total / 1e6:,.1f} MB; {_KEPT}")


def _asked(url: str, start: int, headers: Mapping[str, str]) -> Any:
    """The server's answer, from this byte on if it can do that."""
    opener = web.OpenerDirector()
    for handler in _HANDLERS:
        opener.add_handler(handler())
    try:
        request = web.Request(url, headers={"User-Agent": "vit"})  # noqa: S310  the opener knows http and https only
        if start:
            request.add_header("Range", f"bytes={start}-")
        for name, value in headers.items():
            request.add_unredirected_header(name, value)
        return opener.open(request, timeout=_PATIENCE)
    except HTTPError as error:
        if error.code == 416 and start:
            return error
        error.close()  # it is an answer, too, with a connection of its own
        kind = _Broken if error.code >= 500 else OSError
        raise kind(f"the server answered {error.code} {error.reason}") from error
    except (OSError, HTTPException, ValueError) as error:
        raise _Broken(f"{_host(url)} cannot be reached ({_reason(error)})") from error


def _span(answer: Any) -> tuple[int, int | None]:
    """(byte that the answer begins with, bytes of the whole file if the server says so)."""
    if answer.status == 200:
        length = answer.headers.get("Content-Length", "")
        return 0, int(length) if length.isdecimal() else None
    span = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", answer.headers.get("Content-Range", ""))
    if not span:
        raise OSError(f"the server answered {answer.status} without saying what it sends")
    total = int(span[2]) if span[2] != "*" else None
    return int(span[1]) if span[1] else total or 0, total


def _read(answer: Any) -> bytes:
    if answer.status == 416:  # there is nothing behind what is here
        return b""
    try:
        chunk: bytes = answer.read1(_CHUNK)
        return chunk
    except (OSError, HTTPException) as error:
        raise _Broken(f"the connection broke off ({_reason(error)}); {_KEPT}") from error


def _host(url: str) -> str:
    try:
        return urlsplit(url).hostname or "the server"
    except ValueError:
        return "the server"


def _reason(error: Exception) -> str:
    inner = error.reason if isinstance(error, URLError) else error
    return getattr(inner, "strerror", None) or str(inner) or type(inner).__name__


def _check_room(target: BinaryIO, wanted: int, keep_free: int) -> None:
    free = shutil.disk_usage(Path(target.name).parent).free
    if free - wanted < keep_free:
        raise OSError(
            f"it needs {wanted / 1e6:,.0f} MB and the disk has {free / 1e6:,.0f} MB, "
            f"of which {keep_free / 1e6:,.0f} MB stay free"
        )
