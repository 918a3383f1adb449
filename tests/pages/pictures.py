"""Pictures that tests upload."""

import io

from PIL import Image


def png(*size: int, color: str = "teal") -> bytes:
    """One colour, of this width and height [px]."""
    out = io.BytesIO()
    Image.new("RGB", size, color).save(out, "PNG")
    return out.getvalue()
