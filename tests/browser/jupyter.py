"""Start and stop JupyterLab on this machine with isolated settings, and drive a notebook in it."""

import os
import secrets
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from playwright.sync_api import Frame, Page, expect

from .serving import ROOT, START, free_port

STOP = 10  # timeout [s]
_FOLDERS = ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR")
_FOLDERS_OF_LAB = ("JUPYTERLAB_SETTINGS_DIR", "JUPYTERLAB_WORKSPACES_DIR")


def environment(folder: Path) -> dict[str, str]:
    """Return environment variables that isolate Jupyter from the user's files and let kernels find the package."""
    places = {name: str(folder / name.lower()) for name in (*_FOLDERS, *_FOLDERS_OF_LAB)}
    return {**os.environ, **places, "PYTHONPATH": str(ROOT), "PYDEVD_DISABLE_FILE_VALIDATION": "1"}


@contextmanager
def jupyter_lab(folder: Path) -> Iterator[str]:
    """Serve the notebooks of a folder on this machine; yield the URL prefix of its notebooks.

    Raises:
        RuntimeError: it did not start; the message is its log.
    """
    port = free_port()
    token, log = secrets.token_hex(16), folder / "jupyter.log"
    command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--ip=127.0.0.1", f"--port={port}"]
    command += ["--ServerApp.port_retries=0", f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={folder}"]
    command += ["--allow-root", "--LabApp.news_url=", "--KernelManager.shutdown_wait_time=1"]
    with log.open("w") as said:
        server = subprocess.Popen(command, cwd=folder, env=environment(folder), stdout=said, stderr=said)
        try:
            _wait_for(f"http://127.0.0.1:{port}/api/status?token={token}", server, log)
            yield f"http://127.0.0.1:{port}/lab/tree/{{name}}?token={token}&reset"  # no tabs from earlier sessions
        finally:
            _end(server, f"http://127.0.0.1:{port}/api/shutdown?token={token}")


def _end(server: subprocess.Popen[bytes], address: str) -> None:
    """Stop a server and its kernels; kill the server if it does not stop, which ends its kernels."""
    with suppress(OSError):
        urllib.request.urlopen(urllib.request.Request(address, method="POST"), timeout=STOP).close()
    try:
        server.wait(STOP)
    except subprocess.TimeoutExpired:
        server.kill()
        server.wait()


def _wait_for(address: str, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + START
    while True:
        try:
            with urllib.request.urlopen(address, timeout=START):
                return
        except OSError:
            if server.poll() is not None or time.monotonic() > until:
                raise RuntimeError(log.read_text()) from None
            time.sleep(0.1)


class Notebook:
    """A notebook in JupyterLab.

    Attributes:
        hosts: hosts of all requests; "" for data within the page.
    """

    def __init__(self, page: Page, address: str):
        self.page, self.address = page, address
        self.panel = page.locator(".jp-NotebookPanel:not(.lm-mod-hidden)")
        self.hosts: set[str] = set()
        page.on("request", lambda request: self.hosts.add(urlsplit(request.url).netloc))

    def open(self, name: str) -> "Notebook":
        self.page.goto(self.address.format(name=name))
        expect(self.panel.locator(".jp-Cell").first).to_be_visible()
        return self

    def menu(self, *names: str) -> None:
        for name in names:
            self.page.locator(".lm-MenuBar-itemLabel, .lm-Menu-itemLabel").get_by_text(name, exact=True).click()

    def run(self, cell: int) -> str:
        """Run a cell, counted from 0, and return the text of its output."""
        found = self.panel.locator(".jp-Cell").nth(cell)
        found.locator(".jp-InputPrompt").click()
        before = found.locator(".jp-InputPrompt").inner_text()
        self.menu("Run", "Run Selected Cell")
        expect(found.locator(".jp-InputPrompt")).not_to_have_text(before)
        expect(found.locator(".jp-InputPrompt")).not_to_have_text("[*]:")
        return "\n".join(found.locator(".jp-OutputArea-output").all_inner_texts())

    def frame(self, number: int = 0) -> Frame:
        """Return a view's frame, once it is drawn."""
        element = self.panel.locator("iframe.vit-view").nth(number)
        expect(element).to_be_visible()
        handle = element.element_handle()
        frame = handle.content_frame() if handle else None
        assert frame
        expect(frame.locator("canvas.over")).to_be_visible()
        return frame
