"""Read and validate untrusted files, which anybody may have written or damaged.

JSON may contain values that break later code: infinite or huge numbers, lone surrogates, deep nesting. The functions
here return only values that are safe to compute with and display, and raise readable errors for the rest.
"""

import json
import math
import os
import stat
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeGuard

from vit.errors import UserError

DOCUMENT_BYTES = 16 << 20  # maximum size of a JSON file; that of a model with 20,000 classes takes 2 MB
_LIST_CHARACTERS = 80  # of a list in a message, which has one sentence of at most 250
_MAX_DEPTH = 20  # nested lists and objects
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)  # Windows has neither O_NONBLOCK nor named pipes in its file system
_MAX_DIGITS = 18  # of an integer; 18 digits always fit into int64

_REPLACED = {0: "\ufffd", **dict.fromkeys(range(0xD800, 0xE000), "\ufffd")}  # null bytes and lone surrogates


class Unreadable(UserError):
    """A file cannot be read. The message names the file and the reason."""


class TooMuchWork(UserError):
    """Reading a file takes more time than any honest file needs. The message says so in one sentence."""


_REPORT_INTERVAL = 0.3  # [s]


class _Limit:
    """A running `limit_work`."""

    def __init__(self, name: str, seconds: float, report: Callable[[], None]):
        self.name, self.seconds, self.report = name, seconds, report
        self.ends = time.thread_time() + seconds
        self.reported = time.monotonic()


class _Limits(threading.local):
    """The innermost `limit_work` of each thread; None outside, as a class attribute, which is fast to read."""

    limit: _Limit | None = None


_limits = _Limits()


@contextmanager
def limit_work(name: str, seconds: float, report: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Limit the processor time of the reading in the body, whose loops call `spend`.

    Processor time, not the clock: a busy machine or a slow disk must not refuse an honest file.

    Args:
        name: of what is read, for the message.
        seconds: [s of this thread's processor time]
        report: called a few times a second; it may show progress, and an exception that it raises stops the reading.
    """
    outer = _limits.limit
    _limits.limit = _Limit(name, seconds, report)
    try:
        yield
    finally:
        _limits.limit = outer


def spend() -> None:
    """Call this in every loop whose length a file decides, at least every few milliseconds.

    Raises:
        TooMuchWork: the limit of `limit_work` is exceeded. Callers must not take it for damage of the file.
    """
    limit = _limits.limit
    if limit is None:
        return
    if time.thread_time() > limit.ends:
        raise TooMuchWork(f"Reading {brief(limit.name)} takes more than {limit.seconds:.0f} s, so it was stopped.")
    if (now := time.monotonic()) > limit.reported + _REPORT_INTERVAL:
        limit.reported = now
        limit.report()


@contextmanager
def open_file(path: Path) -> Iterator[BinaryIO]:
    """Open a regular file for reading. Never blocks, even if the path is a named pipe.

    Raises:
        OSError: as `open`.
        Unreadable: the path is not a regular file.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NO_WAIT)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise Unreadable(f"{path.name} cannot be read: it is not a regular file.")
        yield file


def read_bytes(path: Path, most: int = DOCUMENT_BYTES, offset: int = 0) -> bytes:
    """Return a file's content from an offset to its end.

    Raises:
        FileNotFoundError: the file does not exist.
        Unreadable: it is a folder or a pipe, it is not permitted, or there are more than `most` bytes.
    """
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size - offset > most:
                limit = f"the limit of {most / 1e6:,.0f} MB"
                raise Unreadable(f"{path.name} cannot be read: {size / 1e6:,.0f} MB exceed {limit}.")
            file.seek(offset)
            return file.read(most)
    except FileNotFoundError:
        raise
    except IsADirectoryError as error:
        raise Unreadable(f"{path.name} cannot be read: it is a folder.") from error
    except OSError as error:
        raise Unreadable(f"{path.name} cannot be read: {error.strerror}.") from error


def read_tail(path: Path, most: int) -> bytes:
    """Return the last bytes of a log, at most `most`; b"" if it cannot be read."""
    try:
        with open_file(path) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - most))
            return file.read(most)
    except (OSError, Unreadable):
        return b""


def parse_json(text: bytes) -> Any:
    """Parse JSON and limit its values.

    Lone surrogates and null bytes, which neither pages nor paths can contain, become replacement characters.

    Raises:
        ValueError: not JSON, nested deeper than 20 levels, or a number that is infinite or has more than 18 digits.

    >>> parse_json(b'{"a": [1, 2.5, "\\\\ud800"]}')
    {'a': [1, 2.5, '\ufffd']}
    """
    try:
        value = _decode(text.decode())
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if b"\\u" in text or text.count(b"[") + text.count(b"{") > _MAX_DEPTH:
        return _check_depth(value, 0)
    return value


def read_object(path: Path, most: int = DOCUMENT_BYTES) -> dict[str, Any]:
    """Read a file that contains a JSON object.

    Raises:
        FileNotFoundError: the file does not exist.
        Unreadable: it cannot be read, or does not contain a JSON object.
    """
    try:
        value = parse_json(read_bytes(path, most))
    except Unreadable:
        raise
    except ValueError as error:
        raise Unreadable(f"{path.name} cannot be read: it is damaged ({_parse_error(error)}).") from error
    if not isinstance(value, dict):
        raise Unreadable(f"{path.name} cannot be read: it holds no JSON object.")
    return value


def is_number(value: object, least: float = -math.inf, most: float = math.inf) -> TypeGuard[float]:
    """Whether a value is a finite number within bounds. Booleans are not numbers."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and (least <= value <= most)
    )


def is_whole(value: object, least: int = 0, most: int = 10**12) -> TypeGuard[int]:
    """Whether a value is an integer within bounds. Booleans are not integers."""
    return isinstance(value, int) and not isinstance(value, bool) and least <= value <= most


def is_text(value: object) -> TypeGuard[str]:
    """Whether a value is a string."""
    return isinstance(value, str)


def brief(value: object) -> str:
    """Return a short printable form of an untrusted value, at most 60 characters."""
    text = value if isinstance(value, str) else repr(value) if not isinstance(value, int) else _digits(value)
    text = "".join(c if c.isprintable() else "?" for c in text[:60])
    return text.replace("`", "'")


def brief_list(texts: Iterable[str], most: int = 6) -> str:
    """Join texts for a message: at most `most` of them and 80 characters, and the number of the others.

    >>> brief_list(["cat", "dog"]), brief_list("abcd", most=2)
    ('cat, dog', 'a, b and 2 more')
    """
    every = list(texts)
    while most > 1 and len(", ".join(every[:most])) > _LIST_CHARACTERS:
        most -= 1
    return ", ".join(every[:most]) + (f" and {len(every) - most:,} more" if len(every) > most else "")


def counted(number: float, one: str, more: str = "") -> str:
    """Return a number with its noun; `more` is a plural that does not only add an s.

    >>> counted(1.0, "epoch"), counted(2.5, "epoch"), counted(0, "epoch"), counted(1200, "process", "processes")
    ('1 epoch', '2.5 epochs', '0 epochs', '1,200 processes')
    """
    return f"{number:,.15g} {one if number == 1 else more or f'{one}s'}"


def _digits(value: int) -> str:
    """Format an integer; huge ones are described instead, since they may have a million digits."""
    return str(value) if abs(value) < 1 << 63 else "a number beyond 64 bits"


def _parse_whole(digits: str) -> int:
    if len(digits) > _MAX_DIGITS:
        raise ValueError(f"a number has {len(digits)} digits")
    return int(digits)


def _parse_real(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise ValueError("a number is too large")
    return value


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no number")


_decode = json.JSONDecoder(parse_int=_parse_whole, parse_float=_parse_real, parse_constant=_refuse_constant).decode


def _check_depth(value: Any, depth: int) -> Any:
    if depth > _MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    if isinstance(value, str):
        return value.translate(_REPLACED)
    if isinstance(value, list):
        return [_check_depth(item, depth + 1) for item in value]
    if isinstance(value, dict):
        return {_check_depth(name, depth): _check_depth(item, depth + 1) for name, item in value.items()}
    return value


def _parse_error(error: ValueError) -> str:
    """Return why parsing failed, without quoting the text, which may be long."""
    if isinstance(error, json.JSONDecodeError):
        return f"not JSON at line {error.lineno}"
    return "not UTF-8" if isinstance(error, UnicodeError) else str(error)
