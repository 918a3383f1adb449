"""Measure what a page shows without scrolling, in three window sizes: picture, controls and words.

    python benchmarks/first_screen.py [--page PATH?QUERY] [--shots FOLDER] [--project PATH]

For each window it prints the top edge and the size of the stage [px]; how much of it is below the fold; whether the
grid of all heads, the switch between views and the top prediction are visible; the number of controls and words; and
the layout shift after the first paint (CLS, https://web.dev/articles/cls).

A control is an enabled link, button, field or slider; words are separated by blanks. Both count if more than half of
them is visible. Menus of the header count, the content of closed popovers does not.

--page takes `compare?...`, `train` and so on; --project another working copy, to compare with.
"""

import argparse
import sys
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "browser")]

from cold_start import cold_server
from serving import BROWSER_ARGUMENTS, chromium

WINDOWS = ((1280, 800), (1440, 900), (390, 844))
CONTROLS = "a[href], button, input, select, textarea, summary, [role=slider], [role=radio], [role=application]"
NOT_READ = "script, style, option, [aria-live], [data-testid=stIconMaterial], [data-testid=stSkipToContent]"
WATCH_SHIFTS = """
window.__shift = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.__shift += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""
IN_VIEW = f"""() => {{
  const all = [];
  const walk = (node) => {{
    for (const element of node.querySelectorAll("*")) {{
      all.push(element);
      if (element.shadowRoot) walk(element.shadowRoot);
    }}
  }};
  walk(document);
  const seen = (box) => {{
    const width = Math.min(box.right, innerWidth) - Math.max(box.left, 0);
    const height = Math.min(box.bottom, innerHeight) - Math.max(box.top, 0);
    return width > 0 && height > 0 && width * height > 0.5 * box.width * box.height;
  }};
  const whole = (box) => box && box.top >= 0 && box.bottom <= innerHeight + 0.5 && box.right <= innerWidth + 0.5;
  const visible = (element) => element.checkVisibility({{ checkOpacity: true, checkVisibilityCSS: true }});
  const boxOf = (name) => all.find((element) => element.matches(name) && visible(element))?.getBoundingClientRect();
  const controls = all.filter((element) => element.matches({CONTROLS!r}) && !element.disabled && visible(element)
    && seen(element.getBoundingClientRect()) && element.getBoundingClientRect().width > 4
    && element.getAttribute("tabindex") !== "-1" && !element.closest("[aria-hidden=true]"));
  const words = [];
  for (const element of all) {{
    if (!visible(element) || element.matches({NOT_READ!r})) continue;
    for (const node of element.childNodes) {{
      if (node.nodeType !== Node.TEXT_NODE || !node.data.trim()) continue;
      const range = document.createRange();
      range.selectNodeContents(node);
      const box = range.getBoundingClientRect();
      if (box.width > 1 && box.height > 1 && seen(box)) words.push(...node.data.trim().split(/\\s+/));
    }}
  }}
  const stage = boxOf(".stage"), answer = boxOf("[data-testid=stImage], .st-key-answer, .answer");
  return {{
    top: stage?.top + scrollY, width: stage?.width, height: stage?.height,
    below: stage ? Math.max(0, Math.min(stage.height, stage.bottom - innerHeight)) : 0,
    grid: whole(boxOf(".mosaic")), switch: whole(boxOf("[data-field=view]")), answer: whole(answer),
    controls: controls.length, words: words.filter((word) => /[\\p{{L}}\\p{{N}}]/u.test(word)).length,
    shift: window.__shift, text: words.join(" "),
    names: controls.map((one) => one.ariaLabel || one.title || one.innerText || one.outerHTML.slice(0, 60)),
  }};
}}"""
READY = """() => document.querySelector("[data-testid=stApp]")?.dataset.testScriptState === "notRunning"
  && !document.querySelector("[data-stale=true]")"""


def look(browser: Browser, address: str, window: tuple[int, int], scheme: str, shots: Path | None) -> dict:
    """Open a page as a new visitor does; return what is visible once it is complete."""
    width, height = window
    context = browser.new_context(viewport={"width": width, "height": height}, color_scheme=scheme)
    page = context.new_page()
    page.add_init_script(WATCH_SHIFTS)
    page.goto(address)
    page.wait_for_function(READY, timeout=240_000)
    page.wait_for_timeout(2500)  # until everything that the browser fetches is drawn
    page.wait_for_function(READY, timeout=240_000)
    if shots:
        shots.mkdir(parents=True, exist_ok=True)
        page.screenshot(path=shots / f"{width}-{scheme}.png")
    found = page.evaluate(IN_VIEW)
    context.close()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", default="")
    parser.add_argument("--shots", type=Path)
    parser.add_argument("--project", type=Path, default=ROOT)
    parser.add_argument("--names", action="store_true", help="also list what was counted")
    arguments = parser.parse_args()
    print(f"{'window':>11} {'top':>5} {'stage':>9} {'below':>5} grid switch answer controls words   CLS")
    with sync_playwright() as playwright, cold_server(arguments.project) as (port, _):
        browser = playwright.chromium.launch(**chromium(), args=BROWSER_ARGUMENTS)
        for window in WINDOWS:
            for scheme in ("light", "dark") if arguments.shots else ("light",):
                address = f"http://127.0.0.1:{port}/{arguments.page}"
                found = look(browser, address, window, scheme, arguments.shots)
            stage = f"{found.get('width') or 0:.0f}x{found.get('height') or 0:.0f}"
            marks = " ".join(f"{'yes' if found[name] else 'no':>{len(name)}}" for name in ("grid", "switch", "answer"))
            print(
                f"{window[0]:>6}x{window[1]:<4} {found.get('top') or 0:>5.0f} {stage:>9} {found['below']:>5.0f} "
                f"{marks} {found['controls']:>8} {found['words']:>5} {found['shift']:>5.3f}"
            )
            if arguments.names:
                print(f"  {found['names']}\n  {found['text']}")
        browser.close()


if __name__ == "__main__":
    main()
