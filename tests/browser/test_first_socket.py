"""A page without a working websocket says so and names the proxy settings; other pages never do."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, WebSocketRoute, expect

from .serving import ROOT

TEN_SECONDS = 10_000 + 1000  # [ms] of the page's clock; two checks


def close(socket: WebSocketRoute) -> None:
    """Close like a proxy that does not support websockets or passes another Host."""
    socket.close()


@pytest.fixture
def address(page: Page, serve: Callable[..., str]) -> str:
    """Address of the app; only `page.clock` advances the page's clock."""
    page.clock.install()
    return serve(ROOT / "app.py")


def test_page_without_a_socket_says_so(page: Page, address: str) -> None:
    page.route_web_socket("**/_stcore/stream", close)
    page.goto(address)
    expect(page.get_by_test_id("stAppSkeleton")).to_be_visible()
    notice = page.locator("#vit-socket")
    expect(notice).to_be_hidden()
    page.clock.run_for(TEN_SECONDS)
    expect(notice).to_contain_text("No web socket reaches the app's server")
    expect(notice).to_contain_text("docs/host.md")


@pytest.mark.exhaustive
def test_silent_open_socket_is_distinguished(page: Page, address: str) -> None:
    page.route_web_socket("**/_stcore/stream", lambda socket: None)
    page.goto(address)
    expect(page.get_by_test_id("stAppSkeleton")).to_be_visible()
    page.clock.run_for(TEN_SECONDS)
    expect(page.locator("#vit-socket")).to_be_hidden()
    page.clock.run_for(2 * TEN_SECONDS)
    expect(page.locator("#vit-socket")).to_contain_text("has not answered yet")


@pytest.mark.exhaustive
def test_no_message_with_a_working_socket(page: Page, address: str) -> None:
    page.goto(address)
    page.wait_for_function("'__vitWatchdog' in window")
    page.clock.run_for(4 * TEN_SECONDS)
    expect(page.locator("#vit-socket")).to_have_count(0)
    expect(page.get_by_role("heading", name="ViT attention explorer")).to_be_visible()
