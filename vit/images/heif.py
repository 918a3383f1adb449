"""HEIC photos, as phones take them, by pillow-heif; nothing is registered in Pillow, which the whole process shares."""

import re
from io import BytesIO

from PIL import Image

from vit.errors import InvalidImage

# AVIF may begin with "mif1" and "msf1", too; its own brand is then among the compatible ones.
_BRANDS = re.compile(rb".{4}ftyp(?:hei|hev|(?:mif1|msf1)(?!.{4}(?:.{4})*?avi[fs]))", re.DOTALL)
_LONGEST = 200  # [bytes] of a list of brands


def is_heif(data: bytes) -> bool:
    """Whether the first bytes are those of a HEIC or HEIF picture, whose AVIF relatives Pillow reads itself.

    >>> is_heif(bytes(4) + b"ftypheic"), is_heif(bytes(4) + b"ftypavif")
    (True, False)
    """
    return _BRANDS.match(data[: min(max(12, int.from_bytes(data[:4], "big")), _LONGEST)]) is not None


def open_heif(data: bytes) -> Image.Image:
    """Read the header; pixels are not decoded yet.

    Raises:
        InvalidImage: it is damaged, or pillow-heif is not installed.
    """
    try:
        from pillow_heif import HeifImageFile  # noqa: PLC0415 # a library of 17 MB that few pictures need
    except ImportError as error:
        raise InvalidImage(
            "This is a HEIC photo, for which pillow-heif must be installed: pip install pillow-heif."
        ) from error
    try:
        return HeifImageFile(BytesIO(data))
    except Exception as error:  # whatever the library makes of hostile bytes
        raise InvalidImage(
            "This HEIC photo is damaged or incomplete; copy the file again, or save it as JPEG."
        ) from error
