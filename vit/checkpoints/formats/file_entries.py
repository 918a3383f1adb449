"""What the formats of weights files share: positions of tensors, and zip files with one bounded directory."""

import re
import struct
import zipfile
from io import BufferedReader
from typing import NamedTuple

import torch

from vit.errors import InvalidCheckpoint
from vit.untrusted import brief

MAX_TENSORS = 20_000
MAX_NAME = 1000  # [characters] of a tensor, a class, or a key of a dict
MAX_NAMES = 2 << 20  # [characters] of all tensors of a file


class Entry(NamedTuple):
    """A tensor's position in the file [bytes from the start], shape and dtype.

    Attributes:
        columns: column-major (Fortran) order.
        crc: CRC-32 of the bytes before it in its archive entry, and of the whole entry; None if none is stored.
    """

    begin: int
    end: int
    shape: list[int]
    dtype: torch.dtype
    columns: bool = False
    crc: tuple[int, int] | None = None


def unsupported_dtype(dtype: str) -> InvalidCheckpoint:
    """Return the error for a kind of number that is not read."""
    return InvalidCheckpoint(f"The weights are stored as {brief(dtype)}; this app reads 16, 32 and 64-bit floats.")


def rewound(file: BufferedReader) -> BufferedReader:
    """Seek to the start of the file, and return it."""
    file.seek(0)
    return file


def open_zip(file: BufferedReader, size: int) -> zipfile.ZipFile:
    """Open a zip file with exactly one directory of bounded size; raise ValueError for any other."""
    # The end record has 22 bytes, and a comment of up to 64 KiB may follow it. Before it may be that of zip64, 56 bytes
    # and a locator of 20, which precedes.
    file.seek(max(0, size - (1 << 16) - 98))
    tail = file.read()
    if sum(1 for _ in re.finditer(rb"PK\x05\x06", tail)) != 1:  # with several directories, readers may disagree
        raise ValueError("There is no directory, or more than one.")
    at, padded = tail.index(b"PK\x05\x06") + 76, b"\0" * 76 + tail + b"\0" * 22
    large = padded[at - 20 : at - 16] == b"PK\x06\x07" and padded[at - 76 : at - 72] == b"PK\x06\x06"
    (directory,) = struct.unpack_from("<Q", padded, at - 36) if large else struct.unpack_from("<I", padded, at + 12)
    if directory > MAX_TENSORS * 200:
        raise ValueError("The directory is too large.")
    return zipfile.ZipFile(rewound(file))
