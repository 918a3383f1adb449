"""Pictures to upload in tests."""

from PIL import Image

from vit.images.encode import encode_image


def png(*size: int, color: str | tuple[int, int, int] = "teal") -> bytes:
    """Return a picture of one colour, of this width and height [px]."""
    return encode_image(Image.new("RGB", size, color))
