"""Page Explore, as tests drive it."""

import re
from typing import Any

from playwright.sync_api import Page, expect

from .serving import FIND
from .waiting import Conversation

PATIENCE = 180_000  # [ms] on a busy machine


def open_model(page: Page) -> None:
    """Show what is about the model: the sidebar, which a browser keeps as it was left."""
    sidebar = page.get_by_test_id("stSidebar")
    expect(sidebar).to_be_attached()  # no other page has one
    if sidebar.get_attribute("data-collapsed") == "true":
        page.get_by_test_id("stExpandSidebarButton").click()


class App:
    """The explorer in a browser."""

    def __init__(self, page: Page, url: str):
        self.page, self.url = page, url
        self.foreign: list[str] = []
        self.errors: list[str] = []
        self.talk = Conversation(page)
        page.set_default_timeout(PATIENCE)
        page.on("request", lambda r: None if r.url.startswith((url, "blob:", "data:")) else self.foreign.append(r.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self, query: str = "?sample=cat") -> "App":
        """Another view, as a person who opens this link finds it; a page that is there is not loaded again."""
        if self.page.url.split("?")[0] == f"{self.url}/":
            self.page.mouse.move(0, 0)
            self.page.keyboard.press("Escape")
            self.still()  # the server's answer to the test before would put its own link into the address
            self.talk.follow(f"{self.url}/{query}")
        else:
            self.page.goto(f"{self.url}/{query}")
        expect(self.page.locator("canvas.over")).to_be_visible(timeout=PATIENCE)
        self.still()
        return self

    def still(self) -> None:
        """Wait until the page has painted everything, and has the server's answer to all that it asked."""
        self.talk.finish()

    def ask(self, code: str) -> Any:
        """Evaluate a JavaScript expression of `viewer`."""
        return self.page.evaluate(f"() => {{ const viewer = {FIND}; return {code}; }}")

    def shows(self, field: str, value: int) -> None:
        """Wait until the viewer's payload has this value."""
        self.page.wait_for_function(f"() => {FIND}?.payload?.{field} === {value}")

    def at(self, row: int, col: int) -> tuple[float, float]:
        over = self.page.locator("canvas.over")
        over.scroll_into_view_if_needed()
        area = over.bounding_box()
        assert area
        rows, cols = self.ask("[viewer.payload.rows, viewer.payload.cols]")
        return area["x"] + (col + 0.5) / cols * area["width"], area["y"] + (row + 0.5) / rows * area["height"]

    def sample(self, title: str) -> None:
        """Choose the sample whose title begins so."""
        self.page.get_by_text("Samples", exact=True).click()
        self.page.get_by_role("button", name=re.compile(f"^{title}")).click()

    def open_model(self) -> None:
        """Show what is about the model."""
        open_model(self.page)

    def open_display(self) -> None:
        """Show how the viewer's display can be set."""
        display = self.page.locator(".display").first
        if not display.evaluate("(display) => display.open"):
            display.locator("summary").click()

    def picture(self) -> str:
        return self.page.locator("canvas.over").evaluate("canvas => canvas.toDataURL()")

    def size(self) -> list[int]:
        return self.ask("[viewer.payload.header.picture.width, viewer.payload.header.picture.height]")

    def download(self, label: str) -> bytes:
        with self.page.expect_download(timeout=PATIENCE) as started:
            self.page.get_by_role("button", name=label).click()
        return started.value.path().read_bytes()
