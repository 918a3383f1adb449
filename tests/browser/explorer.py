"""Page object of Explore for tests."""

import re
from typing import Any

from playwright.sync_api import Page, expect

from .serving import FIND
from .waiting import Conversation

PATIENCE = 180_000  # timeout [ms], for a busy machine


def open_model(page: Page) -> None:
    """Show the controls of the model in the sidebar, whose state the browser stores."""
    sidebar = page.get_by_test_id("stSidebar")
    expect(sidebar).to_be_attached()  # only Explore has it
    if sidebar.get_attribute("data-collapsed") == "true":
        page.get_by_test_id("stExpandSidebarButton").click()


class App:
    """The explorer in a browser."""

    def __init__(self, page: Page, url: str):
        self.page, self.url = page, url
        self.foreign: list[str] = []
        self.errors: list[str] = []
        self.conversation = Conversation(page)
        page.set_default_timeout(PATIENCE)
        page.on("request", lambda r: None if r.url.startswith((url, "blob:", "data:")) else self.foreign.append(r.url))
        page.on("pageerror", lambda error: self.errors.append(str(error)))

    def open(self, query: str = "?sample=cat") -> "App":
        """Follow a link without reloading a page that is open already; `cifar10` unless it names a checkpoint."""
        if "checkpoint=" not in query:
            query += f"{'&' if '?' in query else '?'}checkpoint=cifar10"
        if self.page.url.split("?")[0] == f"{self.url}/":
            self.page.mouse.move(0, 0)
            self.page.keyboard.press("Escape")
            self.wait_until_idle()  # the previous test's pending response would overwrite the address with its own link
            self.conversation.follow(f"{self.url}/{query}")
        else:
            self.page.goto(f"{self.url}/{query}")
        expect(self.page.locator("canvas.over")).to_be_visible(timeout=PATIENCE)
        self.wait_until_idle()
        return self

    def wait_until_idle(self) -> None:
        """Wait until the page has painted everything and the server has answered everything."""
        self.conversation.finish()

    def evaluate(self, code: str) -> Any:
        """Evaluate a JavaScript expression of `viewer`."""
        return self.page.evaluate(f"() => {{ const viewer = {FIND}; return {code}; }}")

    def wait_for_payload(self, field: str, value: int) -> None:
        """Wait until the viewer's payload has this value."""
        self.page.wait_for_function(f"() => {FIND}?.payload?.{field} === {value}")

    def at(self, row: int, col: int) -> tuple[float, float]:
        over = self.page.locator("canvas.over")
        over.scroll_into_view_if_needed()
        area = over.bounding_box()
        assert area
        rows, cols = self.evaluate("[viewer.payload.rows, viewer.payload.cols]")
        return area["x"] + (col + 0.5) / cols * area["width"], area["y"] + (row + 0.5) / rows * area["height"]

    def sample(self, title: str) -> None:
        """Choose the sample with this title prefix."""
        self.page.get_by_text("Samples", exact=True).click()
        self.page.get_by_role("button", name=re.compile(f"^{title}")).click()

    def open_model(self) -> None:
        """Show the controls of the model."""
        open_model(self.page)

    def open_display(self) -> None:
        """Show the controls of the viewer's display."""
        display = self.page.locator(".display").first
        if not display.evaluate("(display) => display.open"):
            display.locator("summary").click()

    def picture(self) -> str:
        return self.page.locator("canvas.over").evaluate("canvas => canvas.toDataURL()")

    def size(self) -> list[int]:
        return self.evaluate("[viewer.payload.header.picture.width, viewer.payload.header.picture.height]")

    def download(self, label: str) -> bytes:
        with self.page.expect_download(timeout=PATIENCE) as started:
            self.page.get_by_role("button", name=label).click()
        return started.value.path().read_bytes()
