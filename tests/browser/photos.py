"""Photos to upload in tests."""

import io

from PIL import Image


def photo(width: int, height: int) -> bytes:
    """Write a JPEG as phones do: stored on its side, with an EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = 6
    out = io.BytesIO()
    Image.linear_gradient("L").resize((height, width)).convert("RGB").save(out, "JPEG", exif=exif)
    return out.getvalue()
