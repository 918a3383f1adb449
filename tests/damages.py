"""Ways to damage a file that the app wrote: torn, emptied, random, something else in its place, another version."""

import io
import json
import os
import random
import shutil
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ODD: list[Any] = [
    None, True, 0, -1, 1, 2.5, 1e30, -1e18, 1e308, 10**17, 10**400, float("nan"), float("inf"), "", "x", "\ud800", "\0",
    "x" * 5000, "cpu", "-1", "<b>", [], {}, [[]], [1, "a", None], {"a": 1}, {"": [0]}, ["cpu"] * 1000,
]  # fmt: skip
UNKNOWN = "a_key_of_another_version"
Damage = tuple[str, Callable[[Path], object]]


def scrambled(value: Any, dice: random.Random, depth: int = 0) -> Any:
    """Return a JSON value like this one with one random change."""
    if depth > 4 or dice.random() < 0.15:
        return dice.choice(ODD)
    if isinstance(value, dict) and value:
        name = dice.choice(list(value))
        return value | {name: scrambled(value[name], dice, depth + 1)}
    if isinstance(value, list) and value:
        place = dice.randrange(len(value))
        return [*value[:place], scrambled(value[place], dice, depth + 1), *value[place + 1 :]]
    return dice.choice(ODD)


def empty_place(path: Path) -> None:
    """Remove what is at a path."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _in_place(path: Path, make: Callable[[Path], object]) -> None:
    empty_place(path)
    make(path)


def _link(target: str) -> Callable[[Path], object]:
    return lambda path: _in_place(path, lambda place: place.symlink_to(target))


def _filled_folder(path: Path) -> None:
    path.mkdir()
    (path / "inside").write_text("x")


def damages(path: Path, dice: random.Random, several: int = 4) -> Iterator[Damage]:
    """Yield damages of an existing file with their names; each replaces what is at the path.

    /proc/self/mem is a regular file whose reading fails, as that of another user's file does: root may read those.
    """
    content = path.read_bytes()
    yield "missing", empty_place
    yield "empty", lambda place: _in_place(place, Path.touch)
    yield "a folder", lambda place: _in_place(place, Path.mkdir)
    yield "a folder with a file", lambda place: _in_place(place, _filled_folder)
    yield "a pipe", lambda place: _in_place(place, os.mkfifo)
    yield "a link to itself", _link(path.name)
    yield "a dangling link", _link("/nowhere/at/all")
    yield "a file that cannot be read", _link("/proc/self/mem")
    for written in [
        *(dice.randbytes(size) for size in (1, 200, 5000)),
        *(magic + dice.randbytes(300) for magic in (b"PK\x03\x04", b"\x93NUMPY\x01\x00", b"{", b"[", b"\x80\x02")),
        b"[" * 100_000,
        *(content[: dice.randrange(len(content))] for _ in range(several if content else 0)),
        *(_flipped(content, dice) for _ in range(several if content else 0)),
    ]:
        yield f"the bytes {written[:20]!r}… ({len(written)})", _writes(written)
    for changed in _other_versions(content, dice, several):
        yield f"another version, {changed[:300]!r}… ({len(changed)})", _writes(changed)


def _writes(content: bytes) -> Callable[[Path], object]:
    return lambda place: _in_place(place, lambda path: path.write_bytes(content))


def _flipped(content: bytes, dice: random.Random) -> bytes:
    changed = bytearray(content)
    for _ in range(dice.choice((1, 3, 20))):
        changed[dice.randrange(len(changed))] = dice.randrange(256)
    return bytes(changed)


def _other_versions(content: bytes, dice: random.Random, several: int) -> Iterator[bytes]:
    """Yield content of the same format with keys removed and added, and with values of other types."""
    if content[:2] == b"PK":
        yield from _other_archives(content, dice, several)
        return
    try:
        lines = [json.loads(line) for line in content.splitlines()] if b"\n{" in content.strip() else []
        document = json.loads(content) if not lines else None
    except ValueError:
        lines, document = [], None
    for number, line in enumerate(lines):
        for _ in range(several):
            changed = [*lines[:number], scrambled(line, dice), *lines[number + 1 :]]
            yield "".join(json.dumps(one) + "\n" for one in changed).encode()
        yield "".join(json.dumps(one) + "\n" for one in lines[:number] + lines[number + 1 :]).encode()
    if isinstance(document, dict):
        for name in document:
            yield json.dumps({key: value for key, value in document.items() if key != name}).encode()
            for odd in ODD:
                yield json.dumps(document | {name: odd}).encode()
        yield json.dumps(document | {UNKNOWN: [1]}).encode()
    if document is not None:
        for _ in range(10 * several):
            yield json.dumps(scrambled(document, dice)).encode()
        for odd in ODD:
            yield json.dumps(odd).encode()


def _other_archives(content: bytes, dice: random.Random, several: int) -> Iterator[bytes]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    yield zipped({})
    for name, member in members.items():
        yield zipped({other: part for other, part in members.items() if other != name})
        yield zipped(members | {name: b""})
        yield zipped(members | {name: member[: dice.randrange(len(member) + 1)]})
        for changed in [*(_flipped(member, dice) for _ in range(several if member else 0)), *_other_arrays(member)]:
            yield zipped(members | {name: changed})
        for changed in _other_versions(member, dice, several) if member[:1] in b"{[" else ():
            yield zipped(members | {name: changed})


def zipped(members: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, part in members.items():
            archive.writestr(name, part)
    return out.getvalue()


def _other_arrays(member: bytes) -> Iterator[bytes]:
    """Yield arrays of other types and shapes, and one that claims to be huge."""
    if not member.startswith(b"\x93NUMPY"):
        return
    array = np.load(io.BytesIO(member))
    others: list[np.ndarray] = [
        array[:0], array[:1], array.ravel(), array[None], np.float32(1), np.array("x"), np.array([b"\xff"]),
        np.array(["\ud800"]), np.zeros(array.shape, "U0"), np.zeros(array.shape, complex),
        np.zeros(array.shape, [("a", "i4")]), np.full(array.shape, -1, np.int64), np.full(array.shape, np.nan),
        np.full(array.shape, np.inf, np.float32), np.zeros(array.shape, "M8[s]"), np.full(array.shape, 2**62),
    ]  # fmt: skip
    for other in others:
        out = io.BytesIO()
        np.save(out, other)
        yield out.getvalue()
    yield huge("<f4") + bytes(100)
    yield huge("|V0")


def huge(kind: str) -> bytes:
    """Return an NPY file whose header claims 10^11 elements, and that holds none."""
    out = io.BytesIO()
    np.lib.format.write_array_header_1_0(out, {"descr": kind, "fortran_order": False, "shape": (10**7, 10**4)})
    return out.getvalue()
