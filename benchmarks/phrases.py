"""Measure the time from a typed phrase to its drawn map on page Explore, with a CLIP of the size of ViT-B/32.

    python benchmarks/phrases.py [--times 10]

Drives Chromium. The model's weights are random and its tokenizer splits text into letters, so a phrase has more tokens
than with the published model.
"""

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "tests" / "browser")]

from serving import BROWSER_ARGUMENTS, FIND, chromium, streamlit
from text_models import clip

PATIENCE = 120_000  # timeout [ms]
# Source: config.json of openai/clip-vit-base-patch32.
TEXT = dict(hidden_size=512, intermediate_size=2048, num_hidden_layers=12, num_attention_heads=8)
PICTURE = dict(hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12)
PICTURE |= dict(image_size=224, patch_size=32)
DRAWN = f"phrase => {FIND}?.state?.method?.target === phrase && {FIND}.settled"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=10)
    times = parser.parse_args().times
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "clip").mkdir()
        clip(Path(folder) / "clip", TEXT, PICTURE, 512)
        with streamlit(ROOT / "app.py", VIT_CHECKPOINTS=folder) as url, sync_playwright() as playwright:
            browser = playwright.chromium.launch(args=BROWSER_ARGUMENTS, **chromium())
            page = browser.new_page(viewport={"width": 1280, "height": 900})
            page.set_default_timeout(PATIENCE)
            page.goto(f"{url}/?checkpoint=clip&sample=cat&classes_from=typed&classes_text=thing&view=relevance")
            page.wait_for_function(DRAWN, arg="thing")
            waits = []
            for number in range(times + 1):
                phrase = f"a photo of thing {number}"
                page.get_by_role("textbox", name="Phrases, one per line").fill(phrase)
                started = time.perf_counter()
                page.keyboard.press("Control+Enter")
                page.wait_for_function(DRAWN, arg=phrase, polling="raf")
                waits.append(1000 * (time.perf_counter() - started))
                page.wait_for_timeout(1500)
            browser.close()
    print(f"phrase entered to its map drawn: {statistics.median(waits[1:]):.0f} ms median, "
          f"{max(waits[1:]):.0f} ms slowest of {times}")  # fmt: skip


if __name__ == "__main__":
    main()
