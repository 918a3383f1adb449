"""When a page is done: its server has answered all that it asked, and its viewers have painted and told everything."""

import time

from playwright.sync_api import Page, TimeoutError, WebSocket
from streamlit.proto.BackMsg_pb2 import BackMsg
from streamlit.proto.ForwardMsg_pb2 import ForwardMsg

from .serving import VIEWERS

# Streamlit's own state of the page, and what the viewers on it still have to do.
QUIET = f"""() => {{
  const said = document.querySelector('[data-testid="stApp"]')?.dataset;
  const idle = !said || (said.testScriptState === "notRunning" && said.testConnectionState === "CONNECTED");
  return idle && {VIEWERS}.every((viewer) => viewer.settled);
}}"""
# What is not quiet, for whoever reads the failure.
UNQUIET = f"""() => {{
  const said = {{ ...document.querySelector('[data-testid="stApp"]')?.dataset }};
  const viewers = {VIEWERS}.map(({{ root, frame, outbox }}) => ({{ ...root.dataset, frame, pending: outbox.pending }}));
  return JSON.stringify({{ said, viewers }});
}}"""
PATIENCE = 180  # [s] on a busy machine
LOOK = 60  # [ms] between two looks; both have to find the page quiet, because a browser hears of its own clicks later
UNFINISHED = (ForwardMsg.FINISHED_EARLY_FOR_RERUN,)  # another run follows by itself


class Conversation:
    """What a page and its server say to each other.

    Attributes:
        runs: how many runs of the script the page has asked for.
    """

    def __init__(self, page: Page):
        self.page, self.runs, self._answered = page, 0, 0
        page.on("websocket", self._listen)

    def finish(self) -> None:
        """Wait until nothing is left to be said or painted.

        Raises:
            AssertionError: it never ended; the page is left then, so that the next test loads it anew.
        """
        quiet = 0
        while quiet < 2:
            try:
                self.page.wait_for_function(QUIET, polling=LOOK)  # not with every frame, beside what is waited for
            except TimeoutError:
                state = self.page.evaluate(UNQUIET)
                self.page.goto("about:blank")
                raise AssertionError(f"{self.runs} runs asked, {self._answered} answered: {state}") from None
            self.page.wait_for_timeout(LOOK)  # also lets the messages in that this process has not seen
            quiet = quiet + 1 if self._answered == self.runs and self.page.evaluate(QUIET) else 0

    def follow(self, link: str) -> None:
        """Go to another link of the page that is open without loading it again, as the browser's Back does."""
        before, until = self.runs, time.monotonic() + PATIENCE
        top = "document.querySelector('[data-testid=stMain]').scrollTo(0, 0)"
        go = "history.pushState({}, '', link); dispatchEvent(new PopStateEvent('popstate'))"
        self.page.evaluate(f"(link) => {{ {top}; {go}; }}", link)
        while self.runs == before:
            assert time.monotonic() < until, f"the page never asked its server for {link}"
            self.page.wait_for_timeout(LOOK)

    def _listen(self, socket: WebSocket) -> None:
        self._answered = self.runs  # a new page; of the one before, nothing will come
        socket.on("framesent", self._heard)
        socket.on("framereceived", self._answer)

    def _heard(self, frame: bytes | str) -> None:
        if isinstance(frame, bytes) and BackMsg.FromString(frame).WhichOneof("type") == "rerun_script":
            self.runs += 1

    def _answer(self, frame: bytes | str) -> None:
        if not isinstance(frame, bytes):
            return
        message = ForwardMsg.FromString(frame)
        if message.WhichOneof("type") == "script_finished" and message.script_finished not in UNFINISHED:
            self._answered = self.runs
