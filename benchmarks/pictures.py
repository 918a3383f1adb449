"""Make all pictures of README and docs from the app: `python benchmarks/pictures.py`."""

import io
import math
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "browser")]

from serving import BROWSER_ARGUMENTS, FIND, chromium, streamlit

OUT = ROOT / ".github"
WINDOW = {"width": 1280, "height": 800}
FRAMES, FRAME_MS, FILM_WIDTH = 70, 130, 880  # nine seconds in total


def measure(page: Page) -> None:
    """Wait until the faithfulness of the map is measured, at the press of a button if that takes long here."""
    verdict, button = page.get_by_text("Measured for “"), page.get_by_role("button", name="Measure it")
    expect(verdict.or_(button)).to_be_visible(timeout=240_000)
    if button.is_visible():
        button.click()
    expect(verdict).to_be_visible(timeout=240_000)
    expect(page.locator(".faithfulness dt")).not_to_contain_text("so far", timeout=240_000)
    page.wait_for_function(
        "document.querySelector('[data-testid=stApp]')?.dataset.testScriptState === 'notRunning'", timeout=240_000
    )
    page.wait_for_function(f"() => !{FIND}.root.matches('[data-unready], [data-waiting], [data-judging]')")
    page.mouse.move(640, 60)
    page.get_by_test_id("stMain").evaluate("(main) => main.scrollTo(0, 0)")
    page.wait_for_timeout(3000)  # until the status of the script is hidden


def film(page: Page, name: str) -> None:
    """Record the pointer moving over the heads of the later blocks and then over the picture."""
    grid, over = (page.locator(f"canvas.{one}").bounding_box() for one in ("grid", "over"))
    assert grid and over
    frames = []
    for number in range(FRAMES):
        share = 2 * number / FRAMES
        area, turn, first = (grid, share, 0.6) if share < 1 else (over, share - 1, 0.15)
        across = 0.5 + 0.36 * math.sin(2 * math.pi * turn)
        down = first + (0.95 - first) * turn
        page.mouse.move(area["x"] + across * area["width"], area["y"] + down * area["height"])
        page.wait_for_function(f"() => !{FIND}.frame")
        frame = Image.open(io.BytesIO(page.screenshot())).convert("RGB")
        frames.append(frame.resize((FILM_WIDTH, FILM_WIDTH * frame.height // frame.width), Image.Resampling.LANCZOS))
    frames[0].save(OUT / name, save_all=True, append_images=frames[1:], duration=FRAME_MS, loop=0, quality=60, method=6)


def main() -> None:
    with (
        tempfile.TemporaryDirectory() as runs,
        streamlit(ROOT / "app.py", VIT_RUNS=runs) as url,
        sync_playwright() as playwright,
    ):
        page = playwright.chromium.launch(**chromium(), args=BROWSER_ARGUMENTS).new_page(viewport=WINDOW)
        page.set_default_timeout(240_000)
        page.goto(url)
        measure(page)
        page.screenshot(path=OUT / "explorer.png")
        film(page, "hover.webp")
        page.goto(f"{url}/compare?a_sample=cat&b_sample=raccoon&a_view=components&b_view=components&apart=1")
        expect(page.locator("canvas.over")).to_have_count(2, timeout=240_000)
        page.wait_for_timeout(20_000)  # until both pictures have their colours
        page.screenshot(path=OUT / "components.png")
        page.goto(f"{url}/train?preset=fine-tune&data=shapes&init_from=cifar10&limit=60&epochs=1")
        expect(page.get_by_role("button", name="Start", exact=True)).to_be_enabled(timeout=120_000)
        page.get_by_role("heading", name="Ladder").scroll_into_view_if_needed()
        page.get_by_role("button", name="Try without training").click()
        expect(page.get_by_text("Best so far")).to_be_visible(timeout=240_000)
        page.get_by_role("heading", name="Ladder").evaluate("(heading) => heading.scrollIntoView()")
        left = page.get_by_role("heading", name="Ladder").evaluate("(heading) => heading.getBoundingClientRect().left")
        right_column = {"x": left - 24, "y": 60, "width": WINDOW["width"] - left + 24, "height": 700}
        page.screenshot(path=OUT / "ladder.png", clip=right_column)
        page.goto(f"{url}/train?preset=shapes")
        page.get_by_role("button", name="Start", exact=True).click(timeout=120_000)
        stop = page.get_by_test_id("stMain").get_by_role("button", name="Stop", exact=True)
        expect(stop).to_be_visible(timeout=240_000)
        expect(stop).to_have_count(0, timeout=240_000)
        page.wait_for_timeout(10_000)  # until the curves are complete
        page.screenshot(path=OUT / "runs.png")


if __name__ == "__main__":
    main()
