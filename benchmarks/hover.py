"""Measure hovering in the attention viewer: drawing time, time to the next frame, and messages to the server.

    python benchmarks/hover.py [--hovers 300] [--cases maps qk huge]

Drives Chromium with seeded random attention. `maps`: 12 blocks x 12 heads x 197 tokens; `qk`: 12 x 12 x 1,025;
`huge`: 12 x 6 x 4,097. Each is measured for both directions and for nearest patches, with features of width 768. A draw
covers the picture, every number and, up to 256 tokens, every map of the grid; above 256 tokens the other maps follow in
later frames ("all maps").
"""

import argparse
import random
import statistics
import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

BROWSER_TESTS = Path(__file__).parents[1] / "tests" / "browser"
sys.path.insert(0, str(BROWSER_TESTS))

from serving import BROWSER_ARGUMENTS, FIND, chromium, streamlit

PATIENCE = 240_000  # timeout [ms]


class Wire:
    """Counts the messages on the web socket."""

    def __init__(self, page: Page):
        self.sent = self.received = 0
        page.on("websocket", self._listen)

    def _listen(self, socket) -> None:
        socket.on("framesent", lambda frame: setattr(self, "sent", self.sent + 1))
        socket.on("framereceived", lambda frame: setattr(self, "received", self.received + len(frame)))


def settle(page: Page, wire: Wire) -> None:
    """Wait until there has been no message for a second."""
    before = None
    while before != (wire.sent, wire.received):
        before = wire.sent, wire.received
        page.wait_for_timeout(1000)


def percentiles(values: list[float]) -> tuple[float, float]:
    """Return p50 and p95."""
    cuts = statistics.quantiles(values, n=20)
    return statistics.median(values), cuts[18]


JUDGE = f"""() => {{
  const {{ masks, map }} = {FIND};
  const at = map.at + map.payload.split;
  const time = (act) => {{
    const times = Array.from({{ length: 300 }}, () => {{
      const began = performance.now();
      for (let i = 0; i < 20; i++) act();
      return (performance.now() - began) / 20;
    }});
    return times.sort((a, b) => a - b)[150];
  }};
  const number = time(() => masks.correlation(map.values, at));
  const began = performance.now();
  for (const judging = masks.computeVerdict(map.values, at); !judging.next().done; );
  return [number, performance.now() - began];
}}"""  # median time of the number; time of one verdict [ms]
BUTTONS = {"from": "Attends to", "to": "Attended by", "nearest": "Nearest patches"}


def measure(page: Page, wire: Wire, view: str, hovers: int) -> dict[str, object]:
    """Hover over random patches, at least one frame apart."""
    page.get_by_role("button", name=BUTTONS[view]).click()
    area = page.locator("canvas.over").bounding_box()
    chance = random.Random(0)

    def hover(count: int) -> None:
        for _ in range(count):
            page.mouse.move(
                area["x"] + chance.random() * area["width"] * 0.98,
                area["y"] + chance.random() * area["height"] * 0.98,
            )
            page.wait_for_timeout(24)

    hover(60)  # warm-up of the JavaScript compiler
    settle(page, wire)
    page.evaluate(f"() => {{ const s = {FIND}.stats; s.draws = s.frames = 0; s.timeFrames = true; }}")
    sent = wire.sent
    hover(hovers)
    told = wire.sent - sent
    draws, frames = page.evaluate(
        f"() => {{ const s = {FIND}.stats; const all = (ring, n) => [...ring.subarray(0, Math.min(n, ring.length))];"
        " return [all(s.draw, s.draws), all(s.frame, s.frames)]; }"
    )
    everything = page.evaluate(
        f"""async () => {{
          const viewer = {FIND};
          const times = [];
          for (let i = 0; i < 5; i++) {{
            const engine = viewer.engine;
            engine.setQuery(engine.payload.split + 7 * i, viewer.selection.direction, "mean", "mean");
            const began = performance.now();
            engine.computeAll();
            times.push(performance.now() - began);
            await new Promise(requestAnimationFrame);
          }}
          return times.sort((a, b) => a - b)[2];
        }}"""
    )
    return {
        "draw": percentiles(draws),
        "frame": percentiles(frames),
        "told": told,
        "maps": everything,
        "n": len(draws),
    }


def main() -> None:
    """Measure and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hovers", type=int, default=300, choices=range(20, 501), metavar="20..500")
    parser.add_argument("--cases", nargs="+", default=["maps", "qk"], choices=["maps", "qk", "huge"])
    options = parser.parse_args()
    head = ("case", "view", "draws", "draw p50/p95 [ms]", "event to frame p50/p95 [ms]", "all maps [ms]",
            "websocket messages")  # fmt: skip
    print(" | ".join(head))
    notes = []
    with streamlit(BROWSER_TESTS / "viewer_page.py") as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(**chromium(), args=BROWSER_ARGUMENTS)
        for case in options.cases:
            page = browser.new_page(viewport={"width": 1280, "height": 1000})
            page.set_default_timeout(PATIENCE)
            wire = Wire(page)
            page.goto(f"{url}/?case={case}&block=5&head=3")
            page.locator(".instrument").wait_for()
            settle(page, wire)
            first = wire.received
            for view in BUTTONS:
                result = measure(page, wire, view, options.hovers)
                draw, frame = ("{:.2f} / {:.2f}".format(*result[k]) for k in ("draw", "frame"))
                print(f"{case} | {view} | {result['n']} | {draw} | {frame} | {result['maps']:.1f} | {result['told']}")
            settle(page, wire)
            before = wire.received
            page.mouse.down()
            page.mouse.up()  # pin
            settle(page, wire)
            pin = wire.received - before
            before = wire.received
            page.locator("body").press("r")  # Streamlit's shortcut: rerun the page
            settle(page, wire)
            notes.append(
                f"{case}: first load {first:,} B, a pin {pin:,} B, a rerun of the page {wire.received - before:,} B"
            )
            page.close()
        page = browser.new_page(viewport={"width": 1280, "height": 1000})
        page.set_default_timeout(PATIENCE)
        page.goto(f"{url}/?case=maps&masks=1")
        page.wait_for_function(f"() => {FIND}?.masks?.count === 256")
        number, verdict = page.evaluate(JUDGE)
        notes.append(f"maps: judged by 256 masks: a map's number {number:.3f} ms, its verdict {verdict:.1f} ms")
        browser.close()
    print("\n".join(["", "Received from the server, and judged:", *notes]))


if __name__ == "__main__":
    main()
