"""Repair truncated JPEG files, which Pillow refuses and browsers display, if nearly all of the picture is there.

A decoder fills missing parts from whatever bytes follow. The picture is complete if nearly all pixels stay the same
with different bytes appended, and if a progressive file lacks no scan of the coefficients.
"""

import re
from collections.abc import Iterator
from io import BytesIO
from itertools import islice

import numpy as np
from PIL import Image

from vit.errors import InvalidImage
from vit.untrusted import spend

START, END = b"\xff\xd8", b"\xff\xd9"
END_KIND, SCAN, _PROGRESSIVE = 0xD9, 0xDA, 0xC2
_COEFFICIENTS = 64  # per block
_OTHER_BYTES = b"\x55\x2a\x93\x6c" * 400
_MISSING = 0.01  # share of the pixels: a decoder fills the last few blocks with the colour before them
_MOST = 1000  # segments; `file_checks` refuses files with more beforehand
_MOST_FILL = 1 << 16  # [bytes] before a segment of the header, which Pillow skips one by one

# Inside a JPEG scan 0xff is followed by 0 or by a restart marker, d0 to d7; neither begins a segment.
_MARKER = re.compile(rb"\xff[\x02-\xcf\xd9-\xfe]")


def segments(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield type and content of each segment of a JPEG up to its end marker, which a video may follow.

    Raises:
        InvalidImage: there are other bytes between the segments of the header.
    """
    position, in_scan = 2, False
    while marker := _MARKER.search(data, position, len(data) if in_scan else position + _MOST_FILL):
        spend()
        position = marker.end()
        kind, length = data[position - 1], int.from_bytes(data[position : position + 2], "big")
        yield kind, data[position + 2 : position + length] if kind != END_KIND else b""
        if kind == END_KIND:
            return
        position, in_scan = position + length, in_scan or kind == SCAN
    if len(data) - position > _MOST_FILL and not in_scan:
        raise InvalidImage("This JPEG is damaged: its header holds no picture. Copy the file again.")


def with_end_marker(data: bytes) -> bytes:
    """Append the end marker to a JPEG; return `data` itself if it has one.

    Args:
        data: a file whose size in pixels has been checked, as it may be decoded twice.

    Raises:
        InvalidImage: more than a hundredth of the picture is missing.
    """
    if data.endswith(END):
        return data
    every = list(islice(segments(data), _MOST))
    if not every or every[-1][0] == END_KIND:
        return data
    body = data.rstrip(b"\xff")
    if _lacks_passes(every) or _difference(body + END, body + _OTHER_BYTES + END) > _MISSING:
        raise InvalidImage("This JPEG is damaged: it ends before its picture does. Copy the file again.")
    return body + END


def _difference(one: bytes, other: bytes) -> float:
    """Return the share of pixels that differ."""
    first, second = (Image.open(BytesIO(data), formats=("JPEG",)) for data in (one, other))
    width, height = first.size
    strips = [(0, top, width, min(top + 256, height)) for top in range(0, height, 256)]
    unlike = (np.asarray(first.crop(strip)) != np.asarray(second.crop(strip)) for strip in strips)
    return sum(np.count_nonzero(one.any(axis=2) if one.ndim == 3 else one) for one in unlike) / (width * height)


def _lacks_passes(every: list[tuple[int, bytes]]) -> bool:
    """Whether a progressive file lacks the last bits of some coefficients. Source: ITU-T T.81, B.2.3 and G.1."""
    frame = next((content for kind, content in every if kind == _PROGRESSIVE), None)
    if frame is None:
        return False
    final: dict[int, set[int]] = {component: set() for component in frame[6::3]}
    for kind, content in every:
        if kind == SCAN and len(content) >= 4 and len(content) >= 4 + 2 * content[0] and not content[-1] & 15:
            first, last = content[-3], content[-2]
            for component in content[1 : 1 + 2 * content[0] : 2]:
                final.setdefault(component, set()).update(range(first, last + 1))
    return any(len(known) < _COEFFICIENTS for known in final.values())
