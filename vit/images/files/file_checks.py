"""Refuse hostile or unsupported picture files before their pixels are decoded.

Checks are on the format, and on what decoding could cost: bytes, pixels, sides, frames, and the number of pieces that a
few bytes can declare.
"""

import re
from io import BytesIO
from itertools import islice
from typing import Literal

from PIL import Image, UnidentifiedImageError

from vit.errors import InvalidImage
from vit.images.files import heif, jpeg_end, tiff
from vit.images.files.video import is_video

MAX_BYTES = 100_000_000
MAX_PIXELS = 50_000_000
MAX_SIDE = 20_000  # [px]
MAX_ASPECT = 100  # longer / shorter side: resizing by the shorter side would make a thin picture huge
MAX_FRAMES_PIXELS = 200_000_000  # sum over all frames up to the requested one, which are decoded in sequence
MAX_SCANS = 100  # per JPEG; cameras write 1 to 10, and a few bytes can declare thousands
MAX_SEGMENTS = 400  # per JPEG; Pillow's time grows quadratically with their bytes
MAX_SCANS_PIXELS = 600_000_000  # per JPEG: each scan visits every pixel
MAX_PIECES = 100_000  # tiles, strips or chunks per file; real files have fewer, and each costs an object
MAX_PROFILES = 100  # per PNG; a real one has one, and a kilobyte unpacks to a megabyte
MAX_RUN_LENGTH = 8_000_000  # pixels and bytes of a BMP with run lengths, which Pillow decodes in Python
MAX_FRAMES = 200  # frames per animation, later ones are ignored; per video, sampled evenly

CONVERT = "save or export it as JPEG or PNG and choose that file"
_TIFF_OFFSETS = (273, 324)  # tags for strips and tiles

# Listing the formats keeps Pillow from passing a renamed PostScript file to Ghostscript.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "TIFF", "BMP", "AVIF")
RAW = (
    "This is a raw photo of a camera ({}), which cannot be read here: its preview is not the photo. "
    "Export it as JPEG or PNG, with the camera's program, darktable or Lightroom, and choose that file."
)
_FOREIGN = (
    (rb".{4}ftyp|\x1aE\xdf\xa3", "a video"),
    (rb"RIFF.{4}AVI ", "an AVI video"),
    (rb"#EXTM3U|ffconcat ", "a playlist"),
    (rb"\0\0\0\x0cjP  |\xffO\xffQ", "a JPEG 2000 picture"),
    (rb"\0\0\0\x0cJXL |\xff\x0a", "a JPEG XL picture"),
    (rb"%!PS|\xc5\xd0\xd3\xc6", "a PostScript drawing"),
    (rb"%PDF", "a PDF document"),
    (rb"8BPS", "a Photoshop document"),
    (rb".{128}DICM", "a DICOM picture"),
    (rb"v/1\x01", "an OpenEXR picture"),
    (rb"P[1-7]\s", "a PNM picture"),
    (rb"\0\0\x01\0[^\0]\0", "an icon"),
    (rb"SIMPLE  =", "a FITS picture"),
    (rb".{344}n(i1|\+1)\0", "a NIfTI volume"),
    (rb"ZISRAWFILE", "a CZI picture of a microscope"),
    (rb"#\?R(ADIANCE|GBE)", "an HDR picture"),
    (rb".{,900}<svg", "an SVG drawing"),
    (rb".{,900}<html", "a web page"),
)
_ARCHIVES = (
    (rb"PK\x03\x04", "a zip archive"),
    (rb"7z\xbc\xaf\x27\x1c", "a 7z archive"),
    (rb"Rar!\x1a\x07", "a RAR archive"),
    (rb"\x1f\x8b|BZh|\xfd7zXZ\0|.{257}ustar", "a packed file"),
)
# zip and older pickle of torch.save, safetensors, NumPy arrays, HDF5
_WEIGHTS = (
    rb"PK\x03\x04.{26}[^/]{1,100}/(\.format_version|data\.pkl)|PK\x03\x04.{26}[^/]{1,99}\.npy"
    rb"|\x80\x02\x8a\x0a|.{8}\{\"|\x93NUMPY|\x89HDF"
)
_OURS = rb"\xff\xd8\xff|\x89PNG|GIF8|BM|II[*+]\0|MM\0[*+]|RIFF.{4}WEBP|.{4}ftypavi"


def check_file(data: bytes) -> None:
    """Refuse files that are empty, too large, or disproportionately expensive to decode."""
    if not data:
        raise InvalidImage("The file is empty; choose another one.")
    if len(data) > MAX_BYTES:
        raise InvalidImage(
            f"The file has {len(data) / 1e6:,.1f} MB and the limit is {MAX_BYTES / 1e6:.0f} MB; "
            + ("make the video shorter." if is_video(data) else "save it as JPEG or make the picture smaller.")
        )
    _check_pieces(data)


def open_image(data: bytes) -> Image.Image:
    """Read the header and refuse excessive sizes, without decoding pixels."""
    tags = tiff.read_tags(data)
    if tags.raw:
        raise InvalidImage(RAW.format(tags.raw))
    if tags.only_preview:
        raise InvalidImage(f"The first picture in this TIFF is a preview of another one in it; {CONVERT}.")
    if tags.misread:
        raise InvalidImage(f"This is a TIFF{tags.numbers}, each in a plane of its own; {CONVERT}.")
    try:
        image = heif.open_heif(data) if heif.is_heif(data) else Image.open(BytesIO(data), formats=FORMATS)
    except (Image.DecompressionBombError, Image.DecompressionBombWarning) as error:
        pixels = re.search(r"\d+", str(error))
        size = f"has {int(pixels[0]) / 1e6:,.0f} megapixels" if pixels else "is too large"
        raise InvalidImage(f"The picture {size} and the limit is {MAX_PIXELS / 1e6:.0f}; make it smaller.") from error
    except UnidentifiedImageError as error:
        raise InvalidImage(_unreadable(data, tags)) from error
    width, height = image.size
    if width * height > MAX_PIXELS or max(width, height) > MAX_SIDE:
        raise InvalidImage(
            f"The picture is {width:,} x {height:,} pixels and the limit is {MAX_PIXELS / 1e6:.0f} megapixels "
            f"and {MAX_SIDE:,} pixels a side; make it smaller."
        )
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise InvalidImage(
            f"The picture is {width:,} x {height:,} pixels, thinner than {MAX_ASPECT} to 1. Cut out a part of it."
        )
    if any(tile[0] == "bmp_rle" for tile in getattr(image, "tile", ())) and width * height + len(data) > MAX_RUN_LENGTH:
        raise InvalidImage(f"The picture is too large for a BMP with run lengths; {CONVERT}.")
    if data.startswith(jpeg_end.START):
        if width * height * _segments(data).count(jpeg_end.SCAN) > MAX_SCANS_PIXELS:
            raise InvalidImage(f"The picture is stored in too many scans for its size; {CONVERT}.")
        if (whole := jpeg_end.with_end_marker(data)) is not data:
            return Image.open(BytesIO(whole), formats=FORMATS)
    return image


def _unreadable(data: bytes, tags: tiff.TiffContent) -> str:
    """Describe a file that no reader recognises, by its first bytes, and a TIFF by its tags."""
    if tags.channels > 3:
        return (
            f"This is a TIFF{tags.numbers}, and a picture has at most 3. Keep 3 channels, for example with "
            "gdal_translate -b 3 -b 2 -b 1 -co PHOTOMETRIC=RGB."
        )
    if tags.numbers:
        return f"This is a TIFF{tags.numbers}, stored in a way that is not read here; {CONVERT}."
    start = data[:1000]
    if re.match(_OURS, start, re.DOTALL):
        return "This picture is damaged or incomplete; copy the file again or choose another one."
    if re.match(_WEIGHTS, start, re.DOTALL):
        return "This file contains arrays, like a checkpoint, not a picture. Page Checkpoints opens checkpoints."
    if start.startswith(b"version https://git-lfs"):
        return "This is a placeholder of Git LFS. Fetch the picture itself with: git lfs pull."
    for pattern, name in _ARCHIVES:
        if re.match(pattern, start, re.DOTALL):
            return f"This is {name}, which is not read as a picture; unpack it and choose the pictures in it."
    for pattern, name in _FOREIGN:
        if re.match(pattern, start, re.DOTALL | re.IGNORECASE):
            return f"This is {name}, which cannot be read here; {CONVERT}."
    return "This file is not a picture; choose a JPEG, PNG, WebP, GIF, TIFF, BMP, AVIF or HEIC file."


def _check_pieces(data: bytes) -> None:
    """Refuse small files that need much time or memory to decode."""
    if data.startswith(jpeg_end.START):
        kinds = _segments(data)
        _limit(kinds.count(jpeg_end.SCAN), MAX_SCANS, "scans")
        _limit(len(kinds) - kinds.count(jpeg_end.END_KIND), MAX_SEGMENTS, "segments")
    elif data.startswith(b"\x89PNG"):
        chunks = _png_chunks(data)
        _limit(len(chunks), MAX_PIECES, "chunks")
        _limit(chunks.count(b"iCCP"), MAX_PROFILES, "colour profiles")
    elif data.startswith(b"GIF"):
        gif_frames(data)
    elif data.startswith((b"II", b"MM")):
        _limit(_tiff_values(data), MAX_PIECES, "tiles or strips")


def _limit(pieces: int, limit: int, name: str) -> None:
    """Refuse a picture with too many pieces."""
    if pieces > limit:
        raise InvalidImage(f"The picture has more than {limit:,} {name}; {CONVERT}.")


def _segments(data: bytes) -> bytes:
    """Return the types of the segments of a JPEG, at most one more than the limit."""
    return bytes(kind for kind, _ in islice(jpeg_end.segments(data), MAX_SEGMENTS + 1))


def _png_chunks(data: bytes) -> list[bytes]:
    """Return the types of the chunks of a PNG, at most one more than the limit."""
    kinds, position = list[bytes](), 8
    while position < len(data) and len(kinds) <= MAX_PIECES:
        kinds.append(data[position + 4 : position + 8])
        position += 12 + int.from_bytes(data[position : position + 4], "big")
    return kinds


def gif_frames(data: bytes) -> int:
    """Count the frames of a GIF, up to the limit. Source: GIF89a, sections 18 to 26.

    Raises:
        InvalidImage: it has many more blocks than its size needs, as blocks of a real file hold 255 bytes.
    """

    def table(flags: int) -> int:
        """Size of a colour table [bytes]."""
        return 3 * 2 ** ((flags & 7) + 1) if flags & 0x80 else 0

    frames, blocks, position = 0, 0, 13 + table(data[10]) if len(data) > 10 else len(data)
    while position < len(data) and frames < MAX_FRAMES:
        blocks += 1
        kind = data[position]
        if kind == 0x2C:  # an image: 9 bytes of descriptor, its colour table, and the code size
            frames += 1
            position += 11 + table(data[position + 9] if position + 9 < len(data) else 0)
        elif kind == 0x21:  # an extension and its label
            position += 2
        else:
            break
        while position < len(data) and data[position]:  # data blocks, each preceded by its length
            blocks += 1
            _limit(blocks, MAX_PIECES + len(data) // 64, "blocks")
            position += 1 + data[position]
        _limit(blocks, MAX_PIECES + len(data) // 64, "blocks")
        position += 1
    return frames


def _tiff_values(data: bytes) -> int:
    """Return the largest number of values in a tag of the first TIFF directory, as each value becomes an object."""
    order: Literal["little", "big"] = "little" if data.startswith(b"II") else "big"
    big = data[2:4] in (b"\x2b\0", b"\0\x2b")

    def number(position: int, size: int) -> int:
        return int.from_bytes(data[position : position + size], order)

    directory = number(8, 8) if big else number(4, 4)
    entry, word, head = (20, 8, 8) if big else (12, 4, 2)
    counts, first = [0], directory + head
    for position in range(first, min(first + entry * number(directory, head), len(data)), entry):
        is_text = number(position + 2, 2) in (1, 2, 6, 7)  # bytes, too; they stay one object
        if not is_text or number(position, 2) in _TIFF_OFFSETS:
            counts.append(number(position + 4, word))
    return max(count for count in counts if count <= len(data))  # larger counts are impossible: Pillow reports damage
