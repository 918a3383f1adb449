"""A window of a browser that Playwright does not drive: what the drivers of Firefox and of WebKit have in common."""

import re
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from .serving import VIEWERS
from .waiting import PATIENCE, QUIET

LOOK = 0.05  # [s] between two looks
# The middle of a patch of the first picture in the window, and its token.
PLACE = """(() => {
    const over = a.page.find("canvas.over"), { rows, cols, tokens } = a.payload, [row, col] = arguments;
    over.scrollIntoView({ block: "center" });
    const { left, top, width, height } = over.getBoundingClientRect();
    const x = left + ((col + 0.5) / cols) * width, y = top + ((row + 0.5) / rows) * height;
    return [Math.round(x), Math.round(y), tokens - rows * cols + row * cols + col];
})()"""
# The visible control that people read as `arguments[0]`, in the page or in a component of it.
CONTROL = """(() => {
    const search = (root) => {
        for (const one of root.querySelectorAll("button, label, summary")) {
            if (one.textContent.trim().startsWith(arguments[0]) && one.getClientRects().length) return one;
        }
        for (const one of root.querySelectorAll("*")) {
            const inner = one.shadowRoot && search(one.shadowRoot);
            if (inner) return inner;
        }
    };
    return search(document);
})()"""


class DrivenWindow(ABC):
    """The one window of a browser.

    Attributes:
        url: of the app.
    """

    def __init__(self, url: str):
        self.url = url

    @property
    @abstractmethod
    def address(self) -> str:
        """Address of the page."""

    @abstractmethod
    def navigate(self, address: str) -> None:
        """Load a page, and wait until it has loaded."""

    @abstractmethod
    def execute(self, script: str, *arguments: Any) -> Any:
        """Run the body of a function in the page's own world; return what it returns."""

    @abstractmethod
    def move(self, x: int, y: int) -> None:
        """Move the mouse to this place of the window [px]."""

    @abstractmethod
    def click(self) -> None:
        """Press and release the mouse where it is."""

    @abstractmethod
    def errors(self) -> list[str]:
        """Errors that pages have told the console since the last call."""

    def open(self, query: str = "", viewers: int = 1) -> None:
        """Load a page of the app anew, and wait until so many viewers are drawn and the server has answered."""
        self.navigate(f"{self.url}/{query}")
        self.until(f"{VIEWERS}.filter((viewer) => viewer.payload).length === {viewers}")
        self.until(f"({QUIET})()")

    def ask(self, code: str, *arguments: Any) -> Any:
        """Evaluate a JavaScript expression of the page's viewers `a` and `b`."""
        return self.execute(f"const [a, b] = {VIEWERS}; return {code};", *arguments)

    def run(self, code: str) -> None:
        """Let the page run a script of its own."""
        self.ask(
            "document.head.append(Object.assign(document.createElement('script'), { textContent: arguments[0] }))", code
        )

    def until(self, code: str, *arguments: Any) -> None:
        """Wait until an expression holds."""
        self.wait(lambda: self.ask(code, *arguments), code)

    def until_link(self, pattern: str) -> None:
        """Wait until the address says so."""
        self.wait(lambda: re.search(pattern, self.address), pattern)

    def wait(self, holds: Callable[[], Any], what: str) -> None:
        """Wait until something holds."""
        until = time.monotonic() + PATIENCE
        while not holds():
            assert time.monotonic() < until, f"never so: {what}; {self.address}"
            time.sleep(LOOK)

    def point(self, row: int, col: int, *, click: bool = False) -> int:
        """Move the mouse to the middle of a patch of the first picture, wherever that is once the page stands still.

        Returns:
            the token of the patch.
        """

        def there() -> bool:
            x, y, token = self.ask(PLACE, row, col)
            self.move(1, 1)
            self.move(x, y)
            return self.ask("a.query") == token and self.ask(PLACE, row, col) == [x, y, token]

        self.wait(there, f"the pointer is on the patch in row {row}, column {col}")
        if click:
            self.click()
        return self.ask(PLACE, row, col)[2]

    def drawn(self) -> str:
        """What lies over the first picture."""
        return self.ask("a.page.find('canvas.over').toDataURL()")
