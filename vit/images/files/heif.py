"""Open HEIC photos from phones by pillow-heif, without registering it in Pillow globally."""

import re
from io import BytesIO

from PIL import Image

from vit.errors import InvalidImage

# AVIF files may also begin with "mif1" and "msf1"; their compatible brands then contain AVIF's own.
_BRANDS = re.compile(rb".{4}ftyp(?:hei|hev|(?:mif1|msf1)(?!.{4}(?:.{4})*?avi[fs]))", re.DOTALL)
_LONGEST = 200  # maximum size of the list of brands [bytes]


def is_heif(data: bytes) -> bool:
    """Whether a file begins like a HEIC or HEIF picture; Pillow itself reads the related AVIF.

    >>> is_heif(bytes(4) + b"ftypheic"), is_heif(bytes(4) + b"ftypavif")
    (True, False)
    """
    return _BRANDS.match(data[: min(max(12, int.from_bytes(data[:4], "big")), _LONGEST)]) is not None


def open_heif(data: bytes) -> Image.Image:
    """Read the header, without decoding pixels.

    Raises:
        InvalidImage: it is damaged, or pillow-heif is not installed.
    """
    try:
        from pillow_heif import HeifImageFile  # noqa: PLC0415 # a library of 17 MB, rarely needed
    except ImportError as error:
        raise InvalidImage(
            "This is a HEIC photo, for which pillow-heif must be installed: pip install pillow-heif."
        ) from error
    try:
        return HeifImageFile(BytesIO(data))
    except Exception as error:  # any exception of the library on hostile bytes
        raise InvalidImage(
            "This HEIC photo is damaged or incomplete; copy the file again, or save it as JPEG."
        ) from error
