"""Page object of a page with the viewer."""

import re
from pathlib import Path

from playwright.sync_api import Page, expect

from .page_with_viewer import PageWithViewer
from .serving import FIND
from .waiting import LOOK

PAGE = Path(__file__).parent / "viewer_page.py"


class Viewer(PageWithViewer):
    """The page `viewer_page.py`."""

    def __init__(self, page: Page):
        super().__init__(page)
        self.dialogs: list[str] = []
        self.opened = 0
        page.on("dialog", lambda dialog: (self.dialogs.append(dialog.message), dialog.dismiss()))

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

    def wait_until_painted(self) -> None:
        """Wait until the picture shows what the pointer selects."""
        self.page.wait_for_function(f"() => !{FIND}.frame")

    def point(self, row: int, col: int) -> None:
        self.page.mouse.move(*self.at(row, col))
        self.wait_until_painted()

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
