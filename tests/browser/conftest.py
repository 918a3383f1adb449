"""Fixtures for tests in a real browser with a real server."""

import re
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Error, Page, expect

from .explorer import App
from .page_with_viewer import PATIENCE
from .serving import BROWSER_ARGUMENTS, ROOT, chromium, streamlit
from .viewer import PAGE, Viewer
from .waiting import LOOK, Conversation

expect.set_options(timeout=PATIENCE)
collect_ignore = ["viewer_page.py", "watchdog_page.py"]  # pages run by Streamlit


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Function, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Save a screenshot of the page to `test-results/` when its test fails."""
    report = yield
    if report.failed and call.when == "call":
        pages = [page for one in item.funcargs.values() if isinstance(page := getattr(one, "page", one), Page)]
        for number, page in enumerate(dict.fromkeys(pages)):
            picture = ROOT / "test-results" / f"{re.sub(r'[^0-9A-Za-z_-]+', '-', item.name)}-{number}.png"
            with suppress(Error):
                page.screenshot(path=picture, timeout=5000)
                report.sections.append(("the page", f"{page.url}\n{picture}"))
    return report


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    """Override pytest-playwright's options: use an installed browser whose tabs share a process."""
    arguments = [*browser_type_launch_args.get("args", []), *BROWSER_ARGUMENTS, "--process-per-site"]
    return {**browser_type_launch_args, **chromium(), "args": arguments}


# Disable animations: drawing transitions and pulses 60 times a second leaves the processor little time for the page.
# They also lose clicks: Playwright takes a group that starts to slide for stable, and a click whose mouse-down and
# mouse-up hit different elements counts for none.
STILL = """const animate = Element.prototype.animate;
Element.prototype.animate = function (frames) { return animate.call(this, frames, 0); };
addEventListener("DOMContentLoaded", () => {
  const style = document.createElement("style");
  style.textContent = "*, *::before, *::after { animation: none !important; transition: none !important; }";
  document.head.append(style);
});"""


# Streamlit stores in the browser whether its sidebar was open; clear it, so that every tab starts with the default.
FORGET_SIDEBAR = """try {
  for (const key of Object.keys(localStorage)) if (key.startsWith("stSidebarCollapsed")) localStorage.removeItem(key);
} catch { /* an empty page has no storage */ }"""


@pytest.fixture(scope="session")
def shared_context(browser: Browser, browser_context_args: dict[str, Any]) -> Iterator[BrowserContext]:
    """One context for all tests, so that Streamlit's files are fetched and compiled once: 2 s of a core per tab."""
    context = browser.new_context(**browser_context_args, reduced_motion="reduce")
    context.add_init_script(STILL)
    context.add_init_script(FORGET_SIDEBAR)
    # All servers are one site, whose process ends with its last tab.
    keep_alive = context.new_page()
    keep_alive.route("**", lambda route: route.fulfill(body=""))
    keep_alive.goto("http://127.0.0.1/")
    yield context
    context.close()


@pytest.fixture
def page(shared_context: BrowserContext) -> Iterator[Page]:
    """A separate tab."""
    page = shared_context.new_page()
    page.set_default_timeout(PATIENCE)
    page.wait_for_function = partial(page.wait_for_function, polling=LOOK)  # not with every frame
    yield page
    page.close()


@pytest.fixture
def conversation(page: Page) -> Conversation:
    """Record the messages between the page and its server; request it before opening the page."""
    return Conversation(page)


@pytest.fixture(scope="session")
def serve() -> Iterator[Callable[..., str]]:
    """Return `serve(page, **environment)`, which runs a Streamlit page once per session, and returns its address."""
    running: dict[Any, str] = {}
    with ExitStack() as stack:

        def start(page: Path, **environment: str) -> str:
            wanted = (Path(page).resolve(), *sorted(environment.items()))
            if wanted not in running:
                running[wanted] = stack.enter_context(streamlit(wanted[0], **environment))
            return running[wanted]

        yield start


@pytest.fixture(scope="module")
def tab(shared_context: BrowserContext) -> Iterator[Viewer]:
    """One page for all tests of a file."""
    yield Viewer(shared_context.new_page())


@pytest.fixture
def open_viewer(tab: Viewer, serve: Callable[..., str]) -> Iterator[Callable[..., Viewer]]:
    """Return `open_viewer(query)`, which shows a viewer in the shared tab."""
    yield lambda query="case=small": tab.open(serve(PAGE), query)
    assert not tab.errors, tab.errors.clear()


@pytest.fixture
def open_page(page: Page, serve: Callable[..., str]) -> Iterator[Callable[..., Viewer]]:
    """Return `open_page(query)`, which shows a viewer in a separate tab."""
    viewer = Viewer(page)
    yield lambda query="case=small": viewer.open(serve(PAGE), query)
    assert not viewer.errors


@pytest.fixture(scope="module")
def explorer(shared_context: BrowserContext, serve: Callable[..., str]) -> Iterator[App]:
    """One page for all tests of a file."""
    yield (explorer := App(shared_context.new_page(), serve(ROOT / "app.py")))
    explorer.page.close()


@pytest.fixture
def app(explorer: App) -> Iterator[App]:
    """Page Explore, not yet opened."""
    explorer.page.set_viewport_size({"width": 1280, "height": 1000})
    yield explorer
    assert not explorer.errors, explorer.errors.clear()
    assert not explorer.foreign, explorer.foreign.clear()  # the page sent a request to another machine
