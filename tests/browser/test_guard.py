"""The guard as seen by a browser: no foreign page can frame the app, and a checkpoint downloads by its link."""

import re
import threading
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Page, expect

from .serving import ROOT


@pytest.fixture
def elsewhere() -> Iterator[Callable[[str], str]]:
    """Return `elsewhere(html)`: the address of such a page on another port of this machine."""
    shown: list[str] = []

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(shown[-1].encode())

        def log_message(self, *_: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield lambda html: (shown.append(html), f"http://127.0.0.1:{server.server_port}/")[1]
    server.shutdown()


def test_foreign_page_cannot_frame_the_app(
    page: Page, serve: Callable[..., str], elsewhere: Callable[[str], str]
) -> None:
    app = serve(ROOT / "app.py")
    with page.expect_console_message(lambda message: "frame" in message.text.lower()) as said:
        page.goto(elsewhere(f"<iframe src='{app}'></iframe>"))
    assert "frame-ancestors" in said.value.text


def test_foreign_page_of_this_machine_gets_no_socket(
    page: Page, serve: Callable[..., str], elsewhere: Callable[[str], str]
) -> None:
    app = serve(ROOT / "app.py").replace("http", "ws", 1)
    page.goto(elsewhere("<title>elsewhere</title>"))
    opened = page.evaluate(
        """(address) => new Promise((done) => {
          const socket = new WebSocket(address, ["streamlit"]);
          socket.onopen = () => done(true);
          socket.onerror = () => done(false);
        })""",
        f"{app}/_stcore/stream",
    )
    assert opened is False


def test_checkpoint_downloads_by_its_link(page: Page, serve: Callable[..., str]) -> None:
    page.goto(f"{serve(ROOT / 'app.py')}/checkpoints?name=cifar10")
    link = page.get_by_role("link", name=re.compile(r"Download \("))
    expect(link).to_be_visible()
    with page.expect_download() as download:
        link.click()
    assert "cifar10/model.safetensors" in zipfile.ZipFile(download.value.path()).namelist()
