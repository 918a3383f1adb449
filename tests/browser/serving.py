"""Start and stop Streamlit, and find a browser, for tests and benchmarks."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).parents[2]
START = 90  # timeout [s], for a busy machine
# JavaScript for the page's viewer, in any shadow root; undefined without one.
FIND = """(() => {
  const search = (node) => {
    for (const element of node.querySelectorAll("*")) {
      if (element.__vitViewer) return element.__vitViewer;
      const found = element.shadowRoot && search(element.shadowRoot);
      if (found) return found;
    }
  };
  return search(document);
})()"""
# All viewers of a page, in document order.
VIEWERS = """(() => {
  const found = [];
  const search = (node) => {
    for (const element of node.querySelectorAll("*")) {
      if (element.__vitViewer) found.push(element.__vitViewer);
      if (element.shadowRoot) search(element.shadowRoot);
    }
  };
  search(document);
  return found;
})()"""
# The first variant is headless without a window, like Playwright's own: a page takes 2.1 s of a core instead of 3.0.
BROWSERS = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
BROWSER_ARGUMENTS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]


def chromium() -> dict[str, str]:
    """Return launch options: the machine's Chromium if there is one, else Playwright's own."""
    found = next(filter(None, map(shutil.which, BROWSERS)), None)
    return {"executable_path": found} if found else {}


def free_port() -> int:
    """Return a port of this machine that nothing uses."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextmanager
def streamlit(page: Path, cwd: Path = ROOT, **environment: str) -> Iterator[str]:
    """Run `page` on a free port of this machine; yield its address.

    Args:
        cwd: folder whose `.streamlit/config.toml` is used.
        environment: variables in addition to this process's own.

    Raises:
        RuntimeError: it did not start; the message is its log.
    """
    port = free_port()
    options = {
        "server.port": port,
        "server.address": "127.0.0.1",
        "server.headless": "true",
        "server.fileWatcherType": "none",
        "browser.gatherUsageStats": "false",
    }
    command = [
        sys.executable,
        "-m",
        "streamlit",
        "run",
        str(page),
        *(f"--{k}={v}" for k, v in options.items()),
    ]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            command,
            cwd=cwd,
            env=os.environ | {"PYTHONPATH": str(ROOT)} | environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            if not _healthy(process, f"http://127.0.0.1:{port}"):
                log.seek(0)
                raise RuntimeError(f"Streamlit did not start:\n{log.read()}")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


def _healthy(process: subprocess.Popen, url: str) -> bool:
    until = time.monotonic() + START
    while time.monotonic() < until and process.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/_stcore/health", timeout=2):
                return True
        except OSError:
            time.sleep(0.2)
    return False


def why_no_chromium() -> str:
    """Return in one line why no Chromium starts here; "" if one does."""
    from playwright.sync_api import Error, sync_playwright

    try:
        with sync_playwright() as playwright:
            playwright.chromium.launch(**chromium(), args=BROWSER_ARGUMENTS).close()
    except Error as error:
        return next((line.strip(" ╔╗║═") for line in str(error).splitlines() if line.strip(" ╔╗║═")), "unknown")
    return ""


if __name__ == "__main__":  # for the Makefile: whether a Chromium starts
    sys.exit(bool(why_no_chromium()))
