"""Wait until a page is idle: its server has answered everything, and its viewers have painted and sent everything."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from playwright.sync_api import Page, Route, TimeoutError, WebSocket
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from .serving import VIEWERS

# Streamlit's own state of the page, and pending work of its viewers.
QUIET = f"""() => {{
  const said = document.querySelector('[data-testid="stApp"]')?.dataset;
  const idle = !said || (said.testScriptState === "notRunning" && said.testConnectionState === "CONNECTED");
  return idle && {VIEWERS}.every((viewer) => viewer.settled);
}}"""
# The pending work, for the error message.
UNQUIET = f"""() => {{
  const said = {{ ...document.querySelector('[data-testid="stApp"]')?.dataset }};
  const viewers = {VIEWERS}.map(({{ root, frame, outbox }}) => ({{ ...root.dataset, frame, pending: outbox.pending }}));
  return JSON.stringify({{ said, viewers }});
}}"""
PATIENCE = 180  # timeout [s], for a busy machine
# [ms] between two checks that must both find the page idle, because a browser reports its own clicks with a delay
LOOK = 60
UNFINISHED = (ForwardMsg.FINISHED_EARLY_FOR_RERUN,)  # another run follows by itself


@contextmanager
def hold_requests(page: Page, *urls: str) -> Iterator[list[Route]]:
    """Hold the page's requests for these URLs (glob patterns) until the block ends.

    Yields:
        The requests held so far.
    """
    held: list[Route] = []
    for url in urls:
        page.route(url, lambda route: held.append(route))
    yield held
    for route in held:  # also those that arrive during this loop
        route.continue_()
    for url in urls:
        page.unroute(url)


class Conversation:
    """The messages between a page and its server.

    Attributes:
        runs: number of script runs that the page has requested.
    """

    def __init__(self, page: Page):
        self.page, self.runs, self._answered = page, 0, 0
        page.on("websocket", self._listen)

    def finish(self) -> None:
        """Wait until the page is idle.

        Raises:
            AssertionError: it stayed busy; the tab leaves the page, so that the next test loads it again.
        """
        quiet = 0
        while quiet < 2:
            try:
                self.page.wait_for_function(QUIET, polling=LOOK)  # not with every frame, which would slow the page down
            except TimeoutError:
                state = self.page.evaluate(UNQUIET)
                self.page.goto("about:blank")
                raise AssertionError(f"{self.runs} runs asked, {self._answered} answered: {state}") from None
            self.page.wait_for_timeout(LOOK)  # also processes incoming messages of this process
            quiet = quiet + 1 if self._answered == self.runs and self.page.evaluate(QUIET) else 0

    def follow(self, link: str) -> None:
        """Go to another link of the open page without reloading, as the browser's Back does."""
        before, until = self.runs, time.monotonic() + PATIENCE
        top = "document.querySelector('[data-testid=stMain]').scrollTo(0, 0)"
        go = "history.pushState({}, '', link); dispatchEvent(new PopStateEvent('popstate'))"
        self.page.evaluate(f"(link) => {{ {top}; {go}; }}", link)
        while self.runs == before:
            assert time.monotonic() < until, f"the page never asked its server for {link}"
            self.page.wait_for_timeout(LOOK)

    def _listen(self, socket: WebSocket) -> None:
        self._answered = self.runs  # a new page: nothing from the previous one will arrive
        socket.on("framesent", self._count_run)
        socket.on("framereceived", self._note_answer)

    def _count_run(self, frame: bytes | str) -> None:
        if isinstance(frame, bytes) and BackMsg.FromString(frame).WhichOneof("type") == "rerun_script":
            self.runs += 1

    def _note_answer(self, frame: bytes | str) -> None:
        if not isinstance(frame, bytes):
            return
        message = ForwardMsg.FromString(frame)
        if message.WhichOneof("type") == "script_finished" and message.script_finished not in UNFINISHED:
            self._answered = self.runs
