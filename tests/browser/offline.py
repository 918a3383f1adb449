"""A file in a browser without a network."""

from typing import Any

from playwright.sync_api import Browser, Page


class OfflineFile:
    """A file in a browser without a network; errors and requests fail the test.

    Args:
        options: of the browser's context.
    """

    def __init__(self, browser: Browser, **options: Any):
        self.context = browser.new_context(offline=True, **options)
        self.page: Page = self.context.new_page()
        self.wrong: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(message.text))
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def close(self) -> None:
        """Close it, and check that there were neither errors nor requests to a network."""
        self.context.close()
        assert not self.wrong, self.wrong
        assert all(url.startswith(("file:", "blob:")) for url in self.asked), self.asked
