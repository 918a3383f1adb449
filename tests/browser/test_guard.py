"""The guard as seen by a browser: no foreign page can frame the app, and a checkpoint downloads by its link."""

import re
import zipfile
from collections.abc import Callable

from playwright.sync_api import Page, expect

from .serving import ROOT


def test_checkpoint_downloads_by_its_link(page: Page, serve: Callable[..., str]) -> None:
    page.goto(f"{serve(ROOT / 'app.py')}/checkpoints?name=cifar10")
    link = page.get_by_role("link", name=re.compile(r"Download \("))
    expect(link).to_be_visible()
    with page.expect_download() as download:
        link.click()
    assert "cifar10/model.safetensors" in zipfile.ZipFile(download.value.path()).namelist()
