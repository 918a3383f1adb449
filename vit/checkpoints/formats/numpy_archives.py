"""Archives of numpy.savez as weights files. Source of the format: numpy.lib.format."""

import math
import re
import struct
import zipfile
import zlib
from io import BufferedReader

import torch

from vit.checkpoints.formats.file_entries import MAX_TENSORS, Entry, open_zip, rewound, unsupported_dtype
from vit.errors import InvalidCheckpoint, UserError
from vit.untrusted import brief, spend

_NUMPY_DTYPES = {
    "<f8": torch.float64, "<f4": torch.float32, "<f2": torch.float16,
    "<V2": torch.bfloat16, "|V2": torch.bfloat16,  # numpy has no bfloat16; JAX writes it as two raw bytes
    "<i8": torch.int64, "<i4": torch.int32, "|u1": torch.uint8, "|b1": torch.bool,
}  # fmt: skip
_NUMPY_HEADER = re.compile(
    r"\{'descr': '([<>|=]\w{1,20})', 'fortran_order': (True|False), "
    r"'shape': \(((?:\d{1,12}(?:, |,|(?=\))))*)\), \} *\n",
    re.ASCII,
)


def first_entry(file: BufferedReader) -> str:
    """Return the name of a zip file's first entry, which ends in .npy for numpy.savez; "" for other files."""
    start = rewound(file).read(1 << 10).ljust(30)
    (length,) = struct.unpack_from("<H", start, 26)
    return start[30 : 30 + length].decode("latin-1") if start.startswith(b"PK\x03\x04") else ""


def read_archive(file: BufferedReader, name: str, size: int) -> dict[str, Entry]:
    """Read the entries of an uncompressed zip of .npy files."""
    entries: dict[str, Entry] = {}
    try:
        with open_zip(file, size) as archive:
            members = sorted(archive.infolist(), key=lambda member: member.header_offset)
            if any(member.compress_type != zipfile.ZIP_STORED for member in members):
                raise InvalidCheckpoint(f"{brief(name)} is compressed. Write it again with numpy.savez.")
            if members[0].header_offset or len(members) > MAX_TENSORS:
                raise ValueError("Something lies before the first entry, or there are too many.")
            at = 0
            for member in members:
                spend()
                with archive.open(member) as content:  # checks that directory and entry agree
                    start = content.read(1 << 10)
                # As in `pickles.read_zip`: lengths of name and extra field.
                file.seek(member.header_offset + 26)
                begin = member.header_offset + 30 + sum(struct.unpack("<2H", file.read(4)))
                entry = _read_array(start, begin, begin + member.file_size, member.CRC)
                key = member.filename.removesuffix(".npy")
                if member.header_offset < at or entry.end > size or key in entries or key == member.filename:
                    raise ValueError("Two entries overlap, have one name, or one is no array.")
                entries[key], at = entry, entry.end
    except UserError:
        raise
    except Exception as error:  # as in `read_tensors`
        raise InvalidCheckpoint(
            f"{brief(name)} is damaged or not an archive of arrays. Download it again, or write it with numpy.savez."
        ) from error
    return entries


def _read_array(start: bytes, begin: int, end: int, crc: int) -> Entry:
    """Parse the header of an .npy file by a strict pattern, as numpy writes it; nothing is evaluated."""
    width = 2 if start[6:7] == b"\x01" else 4  # bytes of the header's length, which depend on the version
    length = 8 + width + int.from_bytes(start[8 : 8 + width], "little")
    match = _NUMPY_HEADER.fullmatch(start[8 + width : length].decode("latin-1"))
    if not start.startswith(b"\x93NUMPY") or match is None:
        raise ValueError("This is no array of plain numbers.")
    kind = _NUMPY_DTYPES.get(match[1])
    if kind is None:
        raise unsupported_dtype(match[1])
    shape = [int(side) for side in re.findall(r"\d+", match[3])]
    if len(shape) > 8 or 0 in shape or end - begin - length != math.prod(shape) * kind.itemsize:
        raise ValueError("The array has another size than it says.")
    return Entry(begin + length, end, shape, kind, match[2] == "True", (zlib.crc32(start[:length]), crc))
