"""Read the tags of TIFF files without decoding pictures; raw photos are TIFF files with a small preview.

Source: TIFF 6.0; Adobe's DNG 1.7.1; for the cameras' own formats, the tags that ExifTool documents.
"""

import re
from collections.abc import Iterator
from typing import Literal

Tags = dict[int, tuple[int, ...]]

_SUBTYPE, _BITS, _COMPRESSION, _PHOTOMETRIC, _MAKE = 254, 258, 259, 262, 271
_SAMPLES, _SUB_DIRECTORIES, _SAMPLE_FORMAT, _DNG_VERSION = 277, 330, 339, 50706
_MOST_DIRECTORIES, _MOST_ENTRIES, _MOST_VALUES = 32, 4096, 64
_MOST_PAGES = 1000
_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 13: 4, 16: 8, 18: 8}  # [bytes] per value, by type; other types are skipped
_COPIES_AND_MASKS = {1, 4, 5}  # types of subfiles
_OF_SENSORS = {32803, 34892}  # photometric interpretations: colour filter array, and linear raw
_RAW_COMPRESSIONS = {32767, 32769, 32770, 34713, 65000, 65535}  # Sony, Epson, Samsung, Nikon, Kodak, Pentax
_BY_MAKE = {b"NIKON": "NEF", b"SONY": "ARW", b"PENTAX": "PEF", b"SAMSUNG": "SRW", b"HASSELBLAD": "3FR"}
_RAW_STARTS = (
    (rb"(II\*\0|MM\0\*).{4}CR", "CR2"),
    (rb".{4}ftypcrx ", "CR3"),
    (rb"IIR[OS]|MMOR", "ORF"),
    (rb"IIU\0", "RW2"),
    (rb"FUJIFILMCCD-RAW", "RAF"),
    (rb"FOVb", "X3F"),
    (rb"\0MRM", "MRW"),
)
_KINDS = {1: "whole numbers", 2: "whole numbers with a sign", 3: "floating-point numbers"}


def raw_kind(data: bytes) -> str:
    """Return the type of a camera's raw photo, such as "DNG"; "" for other files."""
    for start, kind in _RAW_STARTS:
        if re.match(start, data[:16], re.DOTALL):
            return kind
    every = list(_directories(data))
    if any(_DNG_VERSION in tags for tags in every):
        return "DNG"
    sensor = any(_OF_SENSORS & {*tags.get(_PHOTOMETRIC, ())} for tags in every)
    if sensor or any(_RAW_COMPRESSIONS & {*tags.get(_COMPRESSION, ())} for tags in every):
        make = bytes(value & 255 for tags in every for value in tags.get(_MAKE, ())).upper()
        return next((kind for name, kind in _BY_MAKE.items() if make.startswith(name)), "RAW")
    return ""


def only_previews(data: bytes) -> bool:
    """Whether the first picture of a TIFF is a reduced copy of another one in the file."""
    first = next(_directories(data), {})
    return bool(first.get(_SUBTYPE, (0,))[0] & 1)


def count_pages(data: bytes) -> int:
    """Count the pages of a TIFF up to 1,000, without reduced copies and masks; 1 for other files."""
    chain = _directories(data, _MOST_PAGES, below=False)
    return max(1, sum(not {*tags.get(_SUBTYPE, ())} & _COPIES_AND_MASKS for tags in chain))


def pages_note(data: bytes) -> str:
    """Return the end of a sentence that begins with a file's name, if only the first of its pages is shown; else ""."""
    if (pages := count_pages(data)) == 1:
        return ""
    count = f"{_MOST_PAGES:,} pages or more" if pages == _MOST_PAGES else f"{pages} pages"
    return f"has {count}, of which the first is shown. Save another page as a file of its own to see it."


def describe(data: bytes) -> str:
    """Describe the content of a TIFF, to continue a sentence after "a TIFF"; "" if unknown."""
    tags = next(_directories(data), {})
    bits, kinds = tags.get(_BITS, ()), tags.get(_SAMPLE_FORMAT, (1,))
    channels = tags.get(_SAMPLES, (1,))[0]
    if not bits or kinds[0] not in _KINDS:
        return ""
    in_channels = f" in {channels} channels" if channels > 1 else ""
    return f" of {bits[0]}-bit {_KINDS[kinds[0]]}{in_channels}"


def _directories(data: bytes, most: int = _MOST_DIRECTORIES, *, below: bool = True) -> Iterator[Tags]:
    """Yield the tags of each directory in the chain, each followed by its subdirectories unless not `below`."""
    if data[:4] not in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return
    order: Literal["little", "big"] = "little" if data.startswith(b"II") else "big"
    big = b"+" in data[2:4]
    word, head = (8, 8) if big else (4, 2)

    def number(position: int, size: int) -> int:
        return int.from_bytes(data[position : position + size], order)

    def read(position: int) -> tuple[Tags, int]:
        tags: Tags = {}
        count, entry = number(position, head), position + head
        for start in range(entry, entry + min(count, _MOST_ENTRIES) * (4 + 2 * word), 4 + 2 * word):
            size, values = _SIZES.get(number(start + 2, 2), 0), min(number(start + 4, word), _MOST_VALUES)
            place = start + 4 + word
            if number(start + 4, word) * size > word:
                place = number(place, word)
            if size:
                tags[number(start, 2)] = tuple(number(place + i * size, size) for i in range(values))
        return tags, number(entry + count * (4 + 2 * word), word)

    waiting, seen = [number(8 if big else 4, word)], set[int]()
    while waiting and len(seen) < most:
        position = waiting.pop()
        if position in seen or not 0 < position < len(data):
            continue
        seen.add(position)
        tags, following = read(position)
        yield tags
        waiting += [following, *(reversed(tags.get(_SUB_DIRECTORIES, ())) if below else ())]
