"""Photos for tests, uploads and downloads."""

import mimetypes
from collections.abc import Mapping

from PIL import Image
from playwright.sync_api import Page

from vit.images.encode import encode_image


def photo(width: int, height: int) -> bytes:
    """Write a JPEG as phones do: stored on its side, with an EXIF orientation."""
    exif = Image.Exif()
    exif[0x0112] = 6
    return encode_image(Image.linear_gradient("L").resize((height, width)).convert("RGB"), "JPEG", exif=exif)


def upload(page: Page, files: Mapping[str, bytes], timeout: float | None = None) -> None:
    """Upload files, by name, with the first uploader of the page.

    Args:
        timeout: the page's own if None [ms].
    """
    page.locator('[data-testid="stFileUploader"] input[type="file"]').first.set_input_files(
        [
            {"name": name, "mimeType": mimetypes.guess_type(name)[0] or "application/octet-stream", "buffer": content}
            for name, content in files.items()
        ],
        timeout=timeout,
    )


def download(page: Page, label: str, *, exact: bool = False) -> bytes:
    """Press a button, and return the file that the page sends.

    Args:
        exact: whether `label` is all of the button's label, not a part of it.
    """
    with page.expect_download() as started:
        page.get_by_role("button", name=label, exact=exact).click()
    return started.value.path().read_bytes()
