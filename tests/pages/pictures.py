"""Pictures to upload in tests."""

from picture_files import encode
from PIL import Image


def png(*size: int, color: str | tuple[int, int, int] = "teal") -> bytes:
    """Return a picture of one colour, of this width and height [px]."""
    return encode(Image.new("RGB", size, color))
