"""A window of WebKitGTK, driven by WebKit's own WebDriver on a display without a screen."""

import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2

from tests.browser.driven_window import PATIENCE, DrivenWindow
from tests.browser.serving import VIEWERS, free_port

LIBRARIES = Path("/usr/lib")
WIDTH, HEIGHT = 1280, 1000  # [px]
SCREEN = f"{WIDTH + 100}x{HEIGHT + 100}x24"
ELEMENT = "element-6066-11e4-a52e-4f735466cecf"  # key of an element in WebDriver's JSON
# Keeps the page's errors in a list: under WebDriver, WebKitGTK does not print what pages tell the console.
LISTEN = """
    const said = window.saidErrors = [], { error } = console;
    addEventListener("error", ({ message }) => said.push(message));
    addEventListener("unhandledrejection", ({ reason }) => said.push(String(reason)));
    console.error = (...words) => { said.push(words.join(" ")); error(...words); };
"""
# WebKitGTK's driver has no fingers.
TAP = """
    const [selector, old] = arguments, target = a.page.root.querySelector(selector);
    target.scrollIntoView({ block: "center" });
    const { left, top, width, height } = target.getBoundingClientRect();
    const at = { clientX: left + 0.51 * width, clientY: top + 0.51 * height, bubbles: true, composed: true, detail: 1 };
    const finger = { ...at, pointerId: 7, pointerType: "touch", isPrimary: true };
    const send = (kind, bubbles = true) => target.dispatchEvent(new PointerEvent(kind, { ...finger, bubbles }));
    for (const kind of ["pointerover", "pointerenter", "pointerdown", "pointerup", "pointerout", "pointerleave"])
      send(kind, !/enter|leave/.test(kind));
    target.dispatchEvent(old ? new MouseEvent("click", at) : new PointerEvent("click", finger));
"""


class Window(DrivenWindow):
    """The one window of a WebKitGTK.

    Args:
        driver: address of the session.
        url: of the app.
    """

    def __init__(self, driver: httpx2.Client, url: str):
        super().__init__(url)
        self._driver = driver
        self._errors: list[str] = []  # of earlier pages

    def command(self, method: str, path: str, **content: Any) -> Any:
        """Send a command of WebDriver; return its result."""
        answer = self._driver.request(method, path, json=content if method == "POST" else None)
        assert answer.is_success, answer.text
        return answer.json()["value"]

    @property
    def address(self) -> str:
        """Address of the page."""
        return self.command("GET", "url")

    def navigate(self, address: str) -> None:
        """Load a page, and listen to its errors from then on."""
        self._errors = self.errors()
        self.command("POST", "url", url=address)
        self.execute(LISTEN)

    def execute(self, script: str, *arguments: Any) -> Any:
        """Run the body of a function in the page's own world."""
        return self.command("POST", "execute/sync", script=script, args=arguments)

    def move(self, x: int, y: int) -> None:
        """Move the mouse."""
        self._act("mouse", {"type": "pointerMove", "x": x, "y": y})

    def click(self) -> None:
        """Click where the mouse is."""
        self._act("mouse", {"type": "pointerDown", "button": 0}, {"type": "pointerUp", "button": 0})

    def _act(self, kind: str, *actions: dict[str, Any]) -> None:
        source = {"type": "pointer", "id": kind, "parameters": {"pointerType": kind}, "actions": actions}
        self.command("POST", "actions", actions=[source])

    def tap(self, selector: str, *, old: bool = False) -> None:
        """Tell the middle of an element of the first viewer what Safari tells it when a finger taps it.

        Args:
            old: as before Safari 18.3, where the click is no pointer event.
        """
        self.execute(f"const [a] = {VIEWERS}; {TAP}", selector, old)

    def upload(self, selector: str, path: Path) -> None:
        """Choose a file."""
        self.until("document.querySelector(arguments[0]) !== null", selector)
        element = self.command("POST", "element", using="css selector", value=selector)[ELEMENT]
        self.command("POST", f"element/{element}/value", text=str(path))

    def errors(self) -> list[str]:
        """Errors of pages since the last call."""
        errors, self._errors = self._errors + self.execute("return window.saidErrors?.splice(0) ?? []"), []
        return errors


def browser() -> Path | None:
    """The machine's MiniBrowser, WebKitGTK's own browser, which is not in the PATH."""
    return next(LIBRARIES.glob("*/webkit2gtk-4.1/MiniBrowser"), None)


@contextmanager
def display() -> Iterator[str]:
    """Run a display without a screen; yield its name."""
    read, write = os.pipe()
    command = ["Xvfb", "-displayfd", str(write), "-screen", "0", SCREEN, "-nolisten", "tcp"]
    process = subprocess.Popen(command, pass_fds=[write], stderr=subprocess.DEVNULL)
    os.close(write)
    with os.fdopen(read) as answer, ending(process):
        yield f":{answer.readline().strip()}"


@contextmanager
def ending(process: subprocess.Popen) -> Iterator[None]:
    """End a process with the block."""
    try:
        yield
    finally:
        process.terminate()
        process.wait(PATIENCE)


@contextmanager
def webkit(url: str, folder: Path, *, dark: bool = False) -> Iterator[Window]:
    """Run WebKitGTK on a display of its own.

    Args:
        folder: home of the browser, which keeps a profile and caches there.
        dark: the person's system is dark.
    """
    port = free_port()
    options = {"webkitgtk:browserOptions": {"binary": str(browser()), "args": ["--automation"]}}
    with display() as name, tempfile.TemporaryFile() as log:
        environment = os.environ | {
            "DISPLAY": name,
            "HOME": str(folder),
            "GTK_THEME": f"Adwaita{':dark' * dark}",
            "LIBGL_ALWAYS_SOFTWARE": "1",
        }
        command = ["WebKitWebDriver", f"--port={port}"]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=subprocess.STDOUT)
        with ending(process), httpx2.Client(timeout=PATIENCE, transport=httpx2.HTTPTransport(retries=10)) as client:
            start = client.post(f"http://127.0.0.1:{port}/session", json={"capabilities": {"alwaysMatch": options}})
            session = start.json()["value"]["sessionId"]
            client.base_url = f"http://127.0.0.1:{port}/session/{session}"
            window = Window(client, url)
            window.command("POST", "window/rect", width=WIDTH, height=HEIGHT)
            try:
                yield window
            finally:
                client.delete("")
