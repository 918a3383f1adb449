"""Measure a cold start in Chromium: from the open port of a new server to a map that follows the pointer.

    python benchmarks/cold_start.py [--times 5] [--other PATH]

Each round starts `streamlit run app.py` again. A browser that is already running opens the page as soon as the port
accepts a connection. Times are measured from that moment [s]:

    words       the page shows its first text
    picture     picture, map and grid of the viewer are drawn
    hover       the numbers have followed the pointer to a patch
    all         the server is idle and the page complete

The last line is the time from choosing a photo of 12 megapixels on the complete page to its drawn overlay.

--other names another working copy of this project, which is measured alternately with this one: on a machine with
other load only the ratios are meaningful.
"""

import argparse
import contextlib
import io
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "browser")]

from files import upload
from serving import BROWSER_ARGUMENTS, FIND, chromium

PATIENCE = 240  # timeout [s]
STAGES = ("words", "picture", "hover", "all")
LINES = (*STAGES, "photo")
HEIGHT = 3000  # of a photo [px]; the exact height identifies it
# Checks each stage once per frame and stores the time at which it was first reached, in seconds since 1970.
WATCH = f"""() => {{
  const times = (window.__times = {{}}), now = () => (performance.timeOrigin + performance.now()) / 1000;
  const note = (name, so) => so && (times[name] ??= now());
  const look = () => {{
    const viewer = {FIND};
    note("words", document.body?.innerText.includes("ViT attention explorer"));
    const picture = viewer?.root.querySelector(".picture");
    const drawn = viewer?.stats.draws && picture.complete && picture.naturalWidth && picture.clientWidth;
    note("picture", drawn && !viewer.root.matches("[data-unready], [data-waiting]"));
    note("hover", times.picture && viewer.hovered >= 0 && viewer.stats.draws > (times.draws ??= viewer.stats.draws));
    requestAnimationFrame(look);
  }};
  look();
}}"""
WHOLE = """() => document.querySelector("[data-testid=stApp]")?.dataset.testScriptState === "notRunning"
  && document.body.innerText.includes("All attention as NPZ")"""


def photo(height: int) -> bytes:
    """Return a detailed JPEG of 12 megapixels."""
    noise = np.random.default_rng(height).integers(0, 255, (75, 100, 3), np.uint8)
    out = io.BytesIO()
    Image.fromarray(noise).resize((4000, height), Image.Resampling.BICUBIC).save(out, "JPEG", quality=90)
    return out.getvalue()


@contextlib.contextmanager
def cold_server(project: Path) -> Iterator[tuple[int, float]]:
    """Start the app of a working copy; yield its port and the time at which that opened, in seconds since 1970."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "streamlit", "run", "app.py", f"--server.port={port}", "--server.headless=true"]
    with tempfile.TemporaryDirectory() as runs, tempfile.TemporaryFile("w+") as log:
        environment = os.environ | {"VIT_RUNS": runs}
        process = subprocess.Popen(command, cwd=project, env=environment, stdout=log, stderr=subprocess.STDOUT)
        try:
            until = time.monotonic() + PATIENCE
            while time.monotonic() < until and process.poll() is None:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.01)
            else:
                log.seek(0)
                raise RuntimeError(f"Streamlit did not start:\n{log.read()}")
            yield port, time.time()
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def measure(browser: Browser, project: Path) -> dict[str, float]:
    """Do one cold start; return the time of each stage, and how long the server took to open its port [s]."""
    context = browser.new_context(viewport={"width": 1280, "height": 900})
    context.set_default_timeout(1000 * PATIENCE)
    context.add_init_script(f"({WATCH})()")
    page = context.new_page()
    started = time.time()
    with cold_server(project) as (port, opened):
        page.goto(f"http://127.0.0.1:{port}/", wait_until="commit")
        page.wait_for_function("() => window.__times.picture")
        while not page.evaluate("() => window.__times.hover"):
            area = page.locator("canvas.over").first.bounding_box()
            for share in (0.3, 0.6):
                page.mouse.move(area["x"] + share * area["width"], area["y"] + share * area["height"])
                page.wait_for_timeout(20)
        page.wait_for_function(WHOLE)
        times = page.evaluate("() => window.__times") | {"all": time.time()}
        for height in (HEIGHT, HEIGHT + 1):  # the first one warms up
            content, chosen = photo(height), time.time()
            upload(page, {f"{height}.jpg": content})
            page.wait_for_function(f"() => {FIND}?.payload?.header.picture.height === {height}", polling="raf")
            waited = time.time() - chosen
            page.wait_for_timeout(1500)
        context.close()
    return {name: times[name] - opened for name in STAGES} | {"port": opened - started, "photo": waited}


def main() -> None:
    """Measure the working copies alternately and print the medians."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--other", type=Path, help="another working copy, to compare with")
    options = parser.parse_args()
    projects = {"this": ROOT} | ({"other": options.other.resolve()} if options.other else {})
    result: dict[str, list[dict[str, float]]] = {name: [] for name in projects}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(**chromium(), args=BROWSER_ARGUMENTS)
        measure(browser, ROOT)  # warm-up of the file cache and of the browser's code
        for _ in range(options.times):
            for name, project in projects.items():
                result[name].append(measure(browser, project))
                print(name, *(f"{stage} {result[name][-1][stage]:.2f}" for stage in ("port", *LINES)), flush=True)
        browser.close()
    middle = {n: {s: statistics.median(one[s] for one in each) for s in LINES} for n, each in result.items()}
    print(f"\nMedian of {options.times} [s]" + ("; this and the other; ratio" if options.other else ""))
    for stage in LINES:
        ratio = f" {middle['this'][stage] / middle['other'][stage]:6.2f}" if options.other else ""
        print(f"{stage:<8}" + "".join(f" {each[stage]:6.2f}" for each in middle.values()) + ratio)


if __name__ == "__main__":
    main()
