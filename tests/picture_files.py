"""Pictures as files in memory."""

import io
from typing import Any

from PIL import Image


def encode(picture: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Return a file of this format, with Pillow's options for it."""
    out = io.BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()
