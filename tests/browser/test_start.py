"""`streamlit run app.py` for a new user: no prompts, and reachable only from this machine."""

import http.client
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from patience import PATIENCE, until

from .serving import ROOT, free_port


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """Port and log of the app in a home where Streamlit has never run, with the project's own settings."""
    port = free_port()
    home = tmp_path_factory.mktemp("home")
    log = home / "log.txt"
    # BROWSER replaces the user's browser; DISPLAY makes Streamlit assume a screen.
    environment = os.environ | {"HOME": str(home), "DISPLAY": ":99", "BROWSER": "true"}
    command = [sys.executable, "-m", "streamlit", "run", "app.py", f"--server.port={port}"]
    with log.open("w") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
        until(lambda: "URL:" in log.read_text() or process.poll() is not None, "the address of the app")
        yield port, log
        process.kill()
        process.wait()


def upgrade(port: int, host: str) -> int:
    """Return the HTTP status of opening the page's websocket with a host name."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    headers = {
        "Host": host,
        "Origin": f"http://{host}",
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    }
    connection.request("GET", "/_stcore/stream", headers=headers)
    return connection.getresponse().status


def test_first_start_prompts_for_nothing(server: tuple[int, Path]) -> None:
    text = server[1].read_text()
    assert "URL:" in text and "mail" not in text


def test_page_is_reachable_only_by_names_of_this_machine(server: tuple[int, Path]) -> None:
    port, _ = server
    assert upgrade(port, f"localhost:{port}") == 101
    assert upgrade(port, "evil.example") == 403
