"""A window of Firefox, driven by Mozilla's own Marionette: as people use it, with what its console says."""

import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.browser.serving import VIEWERS
from tests.browser.waiting import PATIENCE, QUIET

if TYPE_CHECKING:
    from marionette_driver.marionette import Marionette

BINARIES = ("firefox-esr", "firefox")
LOOK = 0.05  # [s] between two looks
DARK = "layout.css.prefers-color-scheme.content-override"  # 0 for dark, 1 for light
PREFERENCES = {
    DARK: 1,
    "ui.prefersReducedMotion": 1,
    "devtools.console.stdout.content": True,  # what pages tell the console goes to the log
    "datareporting.policy.dataSubmissionEnabled": False,
}
# Of pages and their scripts. What parts of Firefox say begins with their name, or names a file of theirs.
ERROR = re.compile(
    r"^(?:JavaScript error: (?:http://127\.0\.0\.1|blob:).*"
    r"|console\.error: (?![\w.-]+:|.*\b(?:resource|chrome)://).*)$",
    re.MULTILINE,
)


class Window:
    """The one window of a Firefox.

    Attributes:
        url: of the app.
    """

    def __init__(self, marionette: "Marionette", log: Path, url: str):
        self.marionette, self.url = marionette, url
        self._log, self._read = log, 0

    def open(self, query: str = "", viewers: int = 1) -> None:
        """Load a page of the app anew, and wait until so many viewers are drawn and the server has answered."""
        self.marionette.navigate(f"{self.url}/{query}")
        self.until(f"{VIEWERS}.filter((viewer) => viewer.payload).length === {viewers}")
        self.until(f"({QUIET})()")

    def ask(self, code: str, *arguments: Any) -> Any:
        """Evaluate a JavaScript expression of the page's viewers `a` and `b`, in the page's own world."""
        script = f"const [a, b] = {VIEWERS}; return {code};"
        return self.marionette.execute_script(script, script_args=arguments, sandbox=None)

    def run(self, code: str) -> None:
        """Let the page run a script of its own."""
        self.ask(
            "document.head.append(Object.assign(document.createElement('script'), { textContent: arguments[0] }))", code
        )

    def until(self, code: str, *arguments: Any) -> None:
        """Wait until an expression holds."""
        self.wait(lambda: self.ask(code, *arguments), code)

    def until_link(self, pattern: str) -> None:
        """Wait until the address says so."""
        self.wait(lambda: re.search(pattern, self.marionette.get_url()), pattern)

    def wait(self, holds: Callable[[], Any], what: str) -> None:
        """Wait until something holds."""
        until = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < until, f"never so: {what}; {self.marionette.get_url()}"
            time.sleep(LOOK)

    def point(self, row: int, col: int, *, click: bool = False) -> int:
        """Move the mouse to the middle of a patch of the first picture, wherever that is once the page stands still.

        Returns:
            the token of the patch.
        """
        place = """(() => {
            const over = a.page.find("canvas.over"), { rows, cols, tokens } = a.payload, [row, col] = arguments;
            over.scrollIntoView({ block: "center" });
            const { left, top, width, height } = over.getBoundingClientRect();
            const x = left + ((col + 0.5) / cols) * width, y = top + ((row + 0.5) / rows) * height;
            return [Math.round(x), Math.round(y), tokens - rows * cols + row * cols + col];
        })()"""
        mouse = {"pointerType": "mouse"}

        def there() -> bool:
            x, y, token = self.ask(place, row, col)
            self.marionette.actions.sequence("pointer", "mouse", mouse).pointer_move(1, 1).pointer_move(x, y).perform()
            return self.ask("a.query") == token and self.ask(place, row, col) == [x, y, token]

        self.wait(there, f"the pointer is on the patch in row {row}, column {col}")
        if click:
            self.marionette.actions.sequence("pointer", "mouse", mouse).pointer_down().pointer_up().perform()
        return self.ask(place, row, col)[2]

    def press(self, name: str) -> None:
        """Click the control that people read as `name`, in the page or in a component of it."""
        element = self.ask(
            """(() => {
                const search = (root) => {
                    for (const one of root.querySelectorAll("button, label, summary")) {
                        if (one.textContent.trim().startsWith(arguments[0]) && one.getClientRects().length) return one;
                    }
                    for (const one of root.querySelectorAll("*")) {
                        const inner = one.shadowRoot && search(one.shadowRoot);
                        if (inner) return inner;
                    }
                };
                return search(document);
            })()""",
            name,
        )
        element.click()

    def upload(self, path: Path) -> None:
        """Choose a file for the page's uploader."""
        selector = '[data-testid="stFileUploader"] input[type="file"]'
        self.until("document.querySelector(arguments[0]) !== null", selector)
        self.marionette.find_element("css selector", selector).send_keys(str(path))

    def drawn(self) -> str:
        """What lies over the first picture."""
        return self.ask("a.page.find('canvas.over').toDataURL()")

    def set_dark(self, dark: bool) -> None:
        """Let the person's system be dark, or light."""
        self.marionette.set_pref(DARK, int(not dark))

    def errors(self) -> list[str]:
        """What pages have told the console since the last call that is an error."""
        text = self._log.read_text(encoding="utf-8", errors="replace")
        said, self._read = text[self._read :], len(text)
        return ERROR.findall(said)


def binary() -> str | None:
    """The machine's Firefox."""
    return next(filter(None, map(shutil.which, BINARIES)), None)


@contextmanager
def firefox(url: str, log: Path) -> Iterator[Window]:
    """Run Firefox without a screen, with a profile of its own."""
    from marionette_driver.marionette import Marionette

    marionette = Marionette(
        bin=binary(), headless=True, port=0, prefs=PREFERENCES, gecko_log=str(log), workspace=str(log.parent)
    )
    try:
        marionette.start_session()
        marionette.set_window_rect(width=1280, height=1000)
        yield Window(marionette, log, url)
    finally:
        marionette.quit()
        marionette.cleanup()
        marionette.instance.profile.restore = False  # or it deletes itself again while Python ends, and cannot
