"""A page that no web socket reaches says so, and names what a proxy has to do; all others never do."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from .serving import ROOT

TEN_SECONDS = 10_000 + 1000  # [ms] of the page's clock, and two looks


def close(socket: WebSocketRoute) -> None:
    """As a proxy that knows no web sockets, or passes another Host."""
    socket.close()


@pytest.fixture
def address(page: Page, serve: Callable[..., str]) -> str:
    """Of the app; the page's clock goes on by `page.clock` alone."""
    page.clock.install()
    return serve(ROOT / "app.py")


def test_a_page_that_no_socket_reaches_says_so(page: Page, address: str) -> None:
    page.route_web_socket("**/_stcore/stream", close)
    page.goto(address)
    expect(page.get_by_test_id("stAppSkeleton")).to_be_visible()
    notice = page.locator("#vit-socket")
    expect(notice).to_be_hidden()
    page.clock.run_for(TEN_SECONDS)
    expect(notice).to_contain_text("No web socket reaches the app's server")
    expect(notice).to_contain_text("docs/host.md")


@pytest.mark.exhaustive
def test_an_open_socket_that_brings_nothing_is_told_apart(page: Page, address: str) -> None:
    page.route_web_socket("**/_stcore/stream", lambda socket: None)
    page.goto(address)
    expect(page.get_by_test_id("stAppSkeleton")).to_be_visible()
    page.clock.run_for(TEN_SECONDS)
    expect(page.locator("#vit-socket")).to_be_hidden()
    page.clock.run_for(2 * TEN_SECONDS)
    expect(page.locator("#vit-socket")).to_contain_text("has not answered yet")


@pytest.mark.exhaustive
def test_with_a_socket_nothing_is_said(page: Page, address: str) -> None:
    page.goto(address)
    page.wait_for_function("'__vitWatchdog' in window")
    page.clock.run_for(4 * TEN_SECONDS)
    expect(page.locator("#vit-socket")).to_have_count(0)
    expect(page.get_by_role("heading", name="ViT attention explorer")).to_be_visible()
