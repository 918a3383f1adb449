"""Base of the page objects: a page of a server that shows the viewer."""

from typing import Any

from playwright.sync_api import Page

from .serving import FIND
from .waiting import Conversation

PATIENCE = 180_000  # timeout [ms], for a busy machine


class PageWithViewer:
    """A page with the viewer.

    Attributes:
        errors: JavaScript errors of the page.
        over: the picture with its map.
    """

    def __init__(self, page: Page):
        self.page = page
        self.errors: list[str] = []
        self.conversation = Conversation(page)
        self.over = page.locator("canvas.over").first
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.set_default_timeout(PATIENCE)

    def wait_until_idle(self) -> None:
        """Wait until the page has painted everything and the server has answered everything."""
        self.conversation.finish()

    def evaluate(self, code: str, *args: Any) -> Any:
        """Evaluate `code`, a JavaScript expression of `viewer` and `args`."""
        return self.page.evaluate(f"(args) => {{ const viewer = {FIND}; return {code}; }}", list(args))

    def at(self, row: int, col: int) -> tuple[float, float]:
        """Return the position [px] of a patch in the window, after scrolling to it."""
        self.over.scroll_into_view_if_needed()
        area = self.over.bounding_box()
        assert area
        rows, cols = self.evaluate("[viewer.payload.rows, viewer.payload.cols]")
        return area["x"] + (col + 0.5) / cols * area["width"], area["y"] + (row + 0.5) / rows * area["height"]

    def open_display(self) -> None:
        """Show the controls of the display."""
        display = self.page.locator(".display").first
        if not display.evaluate("(display) => display.open"):
            display.locator("summary").click()
