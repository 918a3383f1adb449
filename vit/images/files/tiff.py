"""Read the tags of TIFF files without decoding pictures; raw photos are TIFF files with a small preview.

Source: TIFF 6.0; Adobe's DNG 1.7.1; for the cameras' own formats, the tags that ExifTool documents.
"""

import re
import struct
from collections.abc import Sequence
from typing import Literal, NamedTuple

from vit.untrusted import spend

Tags = dict[int, tuple[int, ...]]

_SUBTYPE, _BITS, _COMPRESSION, _PHOTOMETRIC, _MAKE = 254, 258, 259, 262, 271
_SAMPLES, _PLANES, _SUB_DIRECTORIES, _SAMPLE_FORMAT, _DEPTH, _DNG_VERSION = 277, 284, 330, 339, 32997, 50706
_READ = {
    _SUBTYPE, _BITS, _COMPRESSION, _PHOTOMETRIC, _MAKE, _SAMPLES, _PLANES, _SUB_DIRECTORIES, _SAMPLE_FORMAT, _DEPTH,
    _DNG_VERSION,
}  # fmt: skip
# Stacks under a single directory, whose description states the number of pages: those of ImageJ and tifffile.
_STACK = re.compile(rb'ImageJ=[\w.]+\s+images=(\d{1,6})|"shape": \[(\d{1,6}), [\d, ]+\], "truncated"')
_MOST_BELOW, _MOST_VALUES = 32, 64  # subdirectories; values per tag
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


class TiffContent(NamedTuple):
    """What the tags of a TIFF say; the defaults are for other files.

    Attributes:
        raw: the type of a camera's raw photo, such as "DNG"; "" for other pictures.
        only_preview: whether the first picture is a reduced copy of another one in the file.
        pages: their number, up to 1,000, without reduced copies and masks.
        numbers: description of the values, to continue a sentence after "a TIFF"; "" if unknown.
        channels: values per pixel.
        misread: whether Pillow would decode wrong colours without an error, as it does for 16 bits in planes.
    """

    raw: str = ""
    only_preview: bool = False
    pages: int = 1
    numbers: str = ""
    channels: int = 1
    misread: bool = False


def read_tags(data: bytes) -> TiffContent:
    """Read every directory of a file once."""
    raw = next((kind for start, kind in _RAW_STARTS if re.match(start, data[:16], re.DOTALL)), "")
    pages, below = _directories(data)
    if not pages:
        return TiffContent(raw)
    subtypes = [{*tags.get(_SUBTYPE, ())} for tags in pages]
    first = {tag: values[0] for tag, values in pages[0].items() if values}
    stated = [int(count) for match in [_STACK.search(data)] if match for count in match.groups() if count]
    own = sum(not subtype & _COPIES_AND_MASKS for subtype in subtypes)
    in_planes = first.get(_SAMPLES, 1) > 1 and first.get(_PLANES) == 2 and first.get(_COMPRESSION, 1) == 1
    return TiffContent(
        raw or _raw_kind([*pages, *below]),
        bool(first.get(_SUBTYPE, 0) & 1),
        min(max(1, own, first.get(_DEPTH, 1), *stated), _MOST_PAGES),
        _numbers(pages[0]),
        first.get(_SAMPLES, 1),
        in_planes and first.get(_BITS, 8) > 8,
    )


def pages_note(data: bytes) -> str:
    """Return the end of a sentence that begins with a file's name, if only the first of its pages is shown; else ""."""
    if (pages := read_tags(data).pages) == 1:
        return ""
    count = f"{_MOST_PAGES:,} pages or more" if pages == _MOST_PAGES else f"{pages} pages"
    return f"has {count}, of which the first is shown. Save another page as a file of its own to see it."


def _raw_kind(every: Sequence[Tags]) -> str:
    if any(_DNG_VERSION in tags for tags in every):
        return "DNG"
    sensor = any(_OF_SENSORS & {*tags.get(_PHOTOMETRIC, ())} for tags in every)
    if sensor or any(_RAW_COMPRESSIONS & {*tags.get(_COMPRESSION, ())} for tags in every):
        make = bytes(value & 255 for tags in every for value in tags.get(_MAKE, ())).upper()
        return next((kind for name, kind in _BY_MAKE.items() if make.startswith(name)), "RAW")
    return ""


def _numbers(tags: Tags) -> str:
    bits, kinds = tags.get(_BITS, ()), tags.get(_SAMPLE_FORMAT, (1,))
    channels = tags.get(_SAMPLES, (1,))[0]
    if not bits or kinds[0] not in _KINDS:
        return ""
    in_channels = f" in {channels} channels" if channels > 1 else ""
    return f" of {bits[0]}-bit {_KINDS[kinds[0]]}{in_channels}"


def _directories(data: bytes) -> tuple[list[Tags], list[Tags]]:
    """Return the tags of the directories in the chain, and those of subdirectories.

    Directories never overlap in a real file, so all of them together are no larger than the file: that bounds the work.
    """
    pages: list[Tags] = []
    below: list[Tags] = []
    if data[:4] not in (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+"):
        return pages, below
    order: Literal["little", "big"] = "little" if data.startswith(b"II") else "big"
    big = b"+" in data[2:4]
    word, head, step = (8, 8, 20) if big else (4, 2, 12)
    entry = struct.Struct({"little": "<", "big": ">"}[order] + ("HHQQ" if big else "HHII"))

    def number(position: int, size: int) -> int:
        return int.from_bytes(data[position : position + size], order)

    def values(place: int, type_: int, count: int, value: int) -> tuple[int, ...]:
        size = _SIZES[type_]
        place = place if count * size <= word else value
        return tuple(number(place + i * size, size) for i in range(min(count, _MOST_VALUES)))

    waiting, seen, room = [(number(8 if big else 4, word), pages)], set[int](), len(data)
    while waiting:
        position, into = waiting.pop()
        if (
            position in seen
            or not 0 < position < len(data)
            or len(into) >= (_MOST_PAGES if into is pages else _MOST_BELOW)
        ):
            continue
        first, end = position + head, position + head + number(position, head) * step
        if (room := room - (end - position)) < 0:
            break
        spend()
        seen.add(position)
        block = data[first:end]
        entries = {
            tag: (first + step * i + 4 + word, type_, count, value)
            for i, (tag, type_, count, value) in enumerate(entry.iter_unpack(block[: len(block) // step * step]))
            if tag in _READ and type_ in _SIZES
        }
        tags = {tag: values(*facts) for tag, facts in entries.items()}
        into.append(tags)
        waiting += [(number(end, word), into), *((place, below) for place in reversed(tags.get(_SUB_DIRECTORIES, ())))]
    return pages, below
