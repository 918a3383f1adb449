"""`streamlit run app.py` as a newcomer starts it: nothing asked, nobody else listening in."""

import http.client
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PATIENCE = 90  # [s]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[int, Path]]:
    """Port and log of the app in a home where Streamlit has never run, with the project's own settings."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    home = tmp_path_factory.mktemp("home")
    log = home / "log.txt"
    # BROWSER stands in for the visitor's browser; with DISPLAY set, Streamlit believes that there is a screen.
    environment = os.environ | {"HOME": str(home), "DISPLAY": ":99", "BROWSER": "true"}
    command = [sys.executable, "-m", "streamlit", "run", "app.py", f"--server.port={port}"]
    with log.open("w") as out:
        process = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
        )
        until = time.monotonic() + PATIENCE
        while time.monotonic() < until and process.poll() is None and "URL:" not in log.read_text():
            time.sleep(0.2)
        yield port, log
        process.kill()
        process.wait()


def upgrade(port: int, host: str) -> int:
    """HTTP status of opening the page's websocket under a host name."""
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


def test_first_start_asks_for_nothing(server: tuple[int, Path]) -> None:
    text = server[1].read_text()
    assert "URL:" in text and "mail" not in text


def test_only_names_of_this_machine_reach_the_page(server: tuple[int, Path]) -> None:
    port, _ = server
    assert upgrade(port, f"localhost:{port}") == 101
    assert upgrade(port, "evil.example") == 403
