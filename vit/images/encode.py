"""Encode pictures as files in memory, and as data URLs for HTML."""

import base64
from io import BytesIO
from typing import Any

from PIL import Image


def encode_image(picture: Image.Image, kind: str = "PNG", **options: Any) -> bytes:
    """Encode a picture.

    Args:
        kind: a format of Pillow.
        options: of Pillow's writer, such as quality=85.

    Raises:
        OSError: the format cannot store the picture's mode.
    """
    out = BytesIO()
    picture.save(out, kind, **options)
    return out.getvalue()


def data_url(content: bytes, kind: str = "PNG") -> str:
    """Return the content of a picture file as a URL for `img` elements."""
    return f"data:image/{kind.lower()};base64,{base64.b64encode(content).decode()}"
