"""Page object of Explore for tests."""

import re

from playwright.sync_api import Page, expect

from .files import download
from .page_with_viewer import PageWithViewer
from .serving import FIND


def open_model(page: Page) -> None:
    """Show the controls of the model in the sidebar, whose state the browser stores."""
    sidebar = page.get_by_test_id("stSidebar")
    expect(sidebar).to_be_attached()  # only Explore has it
    if sidebar.get_attribute("data-collapsed") == "true":
        page.get_by_test_id("stExpandSidebarButton").click()


class App(PageWithViewer):
    """The explorer in a browser."""

    def __init__(self, page: Page, url: str):
        super().__init__(page)
        self.url = url
        self.foreign: list[str] = []
        page.on("request", lambda r: None if r.url.startswith((url, "blob:", "data:")) else self.foreign.append(r.url))

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
        expect(self.page.locator("canvas.over")).to_be_visible()
        self.wait_until_idle()
        return self

    def wait_for_payload(self, field: str, value: int) -> None:
        """Wait until the viewer's payload has this value, and the page is idle."""
        self.page.wait_for_function(f"() => {FIND}?.payload?.{field} === {value}")
        self.wait_until_idle()

    def sample(self, title: str) -> None:
        """Choose the sample with this title prefix."""
        self.page.get_by_text("Samples", exact=True).click()
        self.page.get_by_role("button", name=re.compile(f"^{title}")).click()

    def open_model(self) -> None:
        """Show the controls of the model."""
        open_model(self.page)

    def open_share(self) -> None:
        """Show the link and the files to share."""
        self.page.get_by_role("button", name="Share").click()
        expect(self.page.get_by_role("button", name="Picture as PNG")).to_be_visible()

    def picture(self) -> str:
        return self.page.locator("canvas.over").evaluate("canvas => canvas.toDataURL()")

    def size(self) -> list[int]:
        return self.evaluate("[viewer.payload.header.picture.width, viewer.payload.header.picture.height]")

    def download(self, label: str) -> bytes:
        return download(self.page, label)
