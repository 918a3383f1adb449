"""Measure the time from choosing a photo to its first drawn overlay, with the shipped checkpoint, in Chromium.

    python benchmarks/upload.py [--times 10]

The photo has 12 megapixels. For comparison the script measures the server's part alone: decode, forward pass, pack.
"""

import argparse
import io
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "browser")]

from files import upload
from serving import BROWSER_ARGUMENTS, FIND, chromium, streamlit

import vit
from vit.view import first_view
from vit.view.explanation import explain

PATIENCE = 120_000  # timeout [ms]
HEIGHT = 3000  # photo height [px]
SHOWN = f"height => {FIND}?.payload?.header.picture.height === height"


def photo(seed: int) -> bytes:
    """Return a detailed 12-megapixel JPEG whose exact height identifies it."""
    noise = np.random.default_rng(seed).integers(0, 255, (75, 100, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).resize((4000, HEIGHT + seed), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
    return out.getvalue()


def show(name: str, values: list[float]) -> None:
    """Print one line of the table."""
    print(f"{name:<44} {statistics.median(values):7.0f} ms median {max(values):7.0f} ms slowest of {len(values)}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10)
    times = parser.parse_args().times
    photos = [photo(seed) for seed in range(times + 1)]

    checkpoint = vit.load_checkpoint(first_view.CHECKPOINT)
    alone = []
    for data in photos:
        started = time.perf_counter()
        explain(checkpoint, data)
        alone.append(1000 * (time.perf_counter() - started))
    show("decode, forward and pack, without a browser", alone[1:])

    with streamlit(ROOT / "app.py") as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(args=BROWSER_ARGUMENTS, **chromium())
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(PATIENCE)
        page.goto(url)
        page.locator("canvas.over").wait_for()
        page.wait_for_timeout(3000)
        waits = []
        for number, data in enumerate(photos):
            started = time.perf_counter()
            upload(page, {f"photo{number}.jpg": data})
            page.wait_for_function(SHOWN, arg=HEIGHT + number, polling="raf")
            waits.append(1000 * (time.perf_counter() - started))
            page.wait_for_timeout(1500)
        browser.close()
    show("file chosen to overlay drawn", waits[1:])


if __name__ == "__main__":
    main()
