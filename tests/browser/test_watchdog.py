"""A page that Streamlit's frontend gave up reloads by itself; a page without a server says so."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

PAGE = Path(__file__).parent / "watchdog_page.py"


class Line:
    """The websocket between the page and its server, which a test can break.

    Attributes:
        opened: number of connections so far.
    """

    def __init__(self, page: Page):
        self.opened = 0
        page.route_web_socket("**/_stcore/stream", self._connect)

    def _connect(self, socket: WebSocketRoute) -> None:
        self.opened, self._page = self.opened + 1, socket
        self._server = socket.connect_to_server()

    def spoil(self) -> None:
        """Send the page a message that crashes Streamlit's frontend."""
        self._page.send("no message")

    def cut(self) -> None:
        """Close the connection."""
        self._page.close()
        self._server.close()


@pytest.fixture
def line(page: Page, serve: Callable[..., str]) -> Line:
    """Connection of a drawn page."""
    line = Line(page)
    page.goto(serve(PAGE))
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_text("view chosen")).to_be_visible()
    return line


@pytest.mark.exhaustive
def test_crashed_page_reloads_with_its_view(page: Page, line: Line) -> None:
    line.spoil()
    expect(page.get_by_text("Connection error")).to_be_visible()
    expect(page.get_by_text("Connection error")).to_be_hidden()
    expect(page.get_by_text("view chosen")).to_be_visible()
    assert line.opened == 2 and page.url.endswith("?view=chosen")


@pytest.mark.exhaustive
def test_ineffective_reloads_end(page: Page, line: Line) -> None:
    page.evaluate("sessionStorage['vit-reloads'] = JSON.stringify([1, 2, 3].map(() => Date.now()))")
    line.spoil()
    expect(page.get_by_text("loading it again did not help")).to_be_visible()
    assert line.opened == 1


def test_page_without_a_server_says_that_training_continues(page: Page, line: Line) -> None:
    page.route("**/_stcore/**", lambda route: route.abort())
    line.cut()
    notice = page.locator("#vit-offline")
    expect(notice).to_contain_text("Runs that train go on")
    expect(notice).to_have_attribute("data-closed", re.compile("[1-9]"))  # Streamlit's own message was there
    expect(page.get_by_text("connected to the internet")).to_be_hidden()
    page.unroute("**/_stcore/**")
    expect(notice).to_be_hidden()
    expect(page.get_by_text("view chosen")).to_be_visible()
