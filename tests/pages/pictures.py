"""Pictures to upload in tests."""

import io

from PIL import Image


def png(*size: int, color: str = "teal") -> bytes:
    """Return a picture of one colour, of this width and height [px]."""
    out = io.BytesIO()
    Image.new("RGB", size, color).save(out, "PNG")
    return out.getvalue()
