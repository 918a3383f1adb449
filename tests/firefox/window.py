"""A window of Firefox, driven by Mozilla's own Marionette: as people use it, with what its console says."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.browser.driven_window import CONTROL, DrivenWindow

if TYPE_CHECKING:
    from marionette_driver.marionette import Marionette

BINARIES = ("firefox-esr", "firefox")
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


class Window(DrivenWindow):
    """The one window of a Firefox."""

    def __init__(self, marionette: "Marionette", log: Path, url: str):
        super().__init__(url)
        self.marionette = marionette
        self._log, self._read = log, 0

    @property
    def address(self) -> str:
        """Address of the page."""
        return self.marionette.get_url()

    def navigate(self, address: str) -> None:
        """Load a page."""
        self.marionette.navigate(address)

    def execute(self, script: str, *arguments: Any) -> Any:
        """Run the body of a function in the page's own world."""
        return self.marionette.execute_script(script, script_args=arguments, sandbox=None)

    def move(self, x: int, y: int) -> None:
        """Move the mouse."""
        self._mouse().pointer_move(x, y).perform()

    def click(self) -> None:
        """Click where the mouse is."""
        self._mouse().pointer_down().pointer_up().perform()

    def _mouse(self) -> Any:
        return self.marionette.actions.sequence("pointer", "mouse", {"pointerType": "mouse"})

    def press(self, name: str) -> None:
        """Click the control that people read as `name`, in the page or in a component of it."""
        self.ask(CONTROL, name).click()

    def upload(self, path: Path) -> None:
        """Choose a file for the page's uploader."""
        selector = '[data-testid="stFileUploader"] input[type="file"]'
        self.until("document.querySelector(arguments[0]) !== null", selector)
        self.marionette.find_element("css selector", selector).send_keys(str(path))

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
