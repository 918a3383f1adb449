"""Page object of a page with the viewer."""

import re
from pathlib import Path

import numpy as np
from playwright.sync_api import Page, expect

from .explorer import PATIENCE
from .serving import FIND
from .waiting import LOOK, Conversation

PAGE = Path(__file__).parent / "viewer_page.py"


class Viewer:
    """A page with the viewer."""

    def __init__(self, page: Page):
        self.page = page
        self.dialogs: list[str] = []
        self.errors: list[str] = []
        self.opened = 0
        self.conversation = Conversation(page)
        self.over = page.locator("canvas.over").first
        page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.set_default_timeout(PATIENCE)

    def open(self, url: str, query: str) -> "Viewer":
        """Follow a link to a viewer without reloading a page that is open already."""
        self.opened += 1
        link = f"{url}/?fresh={self.opened}&{query}"
        if not self.page.url.startswith(url):
            self.page.goto(link)
        else:
            self.page.mouse.move(0, 0)
            self.wait_until_idle()  # the previous test's pending response would overwrite the address with its own link
            self.page.evaluate(f"() => {{ {FIND}.left = true; }}")
            self.conversation.follow(link)
        self.page.get_by_text(f"fresh {self.opened}", exact=True).wait_for()
        self.page.wait_for_function(f"() => {{ const viewer = {FIND}; return viewer && !viewer.left; }}", polling=LOOK)
        expect(self.page.locator(".instrument").first).to_be_visible()
        self.wait_until_idle()
        return self

    def wait_until_idle(self) -> None:
        """Wait until the page has painted everything and the server has answered everything."""
        self.conversation.finish()

    def wait_until_painted(self) -> None:
        """Wait until the picture shows what the pointer selects."""
        self.page.wait_for_function(f"() => !{FIND}.frame")

    def evaluate(self, code: str, *args):
        """Evaluate `code`, a JavaScript expression of `viewer` and `args`."""
        return self.page.evaluate(f"(args) => {{ const viewer = {FIND}; return {code}; }}", list(args))

    def point(self, row: int, col: int) -> None:
        rows, cols = self.evaluate("[viewer.payload.rows, viewer.payload.cols]")
        self.over.scroll_into_view_if_needed()
        area = self.over.bounding_box()
        self.page.mouse.move(
            area["x"] + (col + 0.5) / cols * area["width"], area["y"] + (row + 0.5) / rows * area["height"]
        )
        self.wait_until_painted()

    def open_display(self) -> None:
        """Show the controls of the display."""
        display = self.page.locator(".display").first
        if not display.evaluate("(display) => display.open"):
            display.locator("summary").click()

    def point_at_map(self, row: int, col: int) -> None:
        """Point at a map of the grid, by its block and head."""
        grid = self.page.locator("canvas.grid")
        grid.scroll_into_view_if_needed()
        area = grid.bounding_box()
        x, y = self.evaluate(
            "[(viewer.mosaic.left(args[1]) + viewer.mosaic.tileWidth / 2) / viewer.mosaic.width,"
            " (viewer.mosaic.above(args[0]) + viewer.mosaic.tileHeight / 2) / viewer.mosaic.height]",
            row,
            col,
        )
        self.page.mouse.move(area["x"] + x * area["width"], area["y"] + y * area["height"])

    def click(self, row: int, col: int) -> None:
        self.point(row, col)
        self.page.mouse.down()
        self.page.mouse.up()

    def leave(self) -> None:
        self.page.mouse.move(2, 2)
        self.wait_until_painted()

    def pixels(self, name: str) -> str:
        return self.evaluate(f"viewer.page.find('{name}').toDataURL()")

    def expect_sentence(self, text: str | re.Pattern) -> None:
        expect(self.page.locator(".sentence").first).to_have_text(text)

    def expect_selection(self, *parts: str) -> None:
        """Wait until Python has received a selection with these parts."""
        for part in parts:
            expect(self.page.get_by_text("selection residual=")).to_contain_text(part)

    def row(self, block: int, head: int, token: int, direction: str) -> np.ndarray:
        code = """(() => {
          const out = new Float32Array(viewer.payload.tokens);
          viewer.payload.fill(args[0], args[1], args[2], args[3], out, 0);
          return [...out];
        })()"""
        return np.asarray(self.evaluate(code, block, head, token, direction))
