"""The trainer's side of an experiment tracker: starts the process that copies metrics, and never blocks on it.

The process reads them from metrics.jsonl; see `vit.training.trackers.follower`. If it raises, hangs or dies, the run
gets a note and continues.
"""

import subprocess
from contextlib import suppress
from pathlib import Path

from vit.training.trackers import plugin

GRACE_SECONDS = 20.0  # [s] that a run waits at its end until the last metrics are sent
LOG = "tracking.txt"  # output of trackers, and the traceback of a failure
_MOST = 300  # characters of an error message


class TrackerProcess:
    """The process that follows one attempt of a run.

    Args:
        run: the run's folder.
        name: name of the tracker, the setting `track`.
    """

    def __init__(self, run: Path, name: str):
        self.name, self._problem = name, ""
        self._process: subprocess.Popen[bytes] | None = None
        try:
            with (run / LOG).open("ab") as log:
                self._process = subprocess.Popen(
                    plugin.command(str(run.absolute()), name),
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    start_new_session=True,  # Ctrl-C must reach the trainer only
                )
        except OSError as error:
            self._problem = f"it could not be started ({error.strerror})"

    def note(self) -> str:
        """Return a message if the process has ended unexpectedly, once; "" otherwise."""
        if self._process and self._process.poll() is not None:
            self._problem = self._end(self._process) or f"its process ended with status {self._process.returncode}"
            self._process = None
        if not self._problem:
            return ""
        problem, self._problem = self._problem, ""
        return f"Metrics are no longer sent to {self.name}: {problem}. The run continues and keeps its own."

    def finish(self, outcome: str) -> str:
        """Send the outcome and wait until the last metrics are sent; returns a message like `note`."""
        if (note := self.note()) or self._process is None:
            return note
        process, self._process = self._process, None
        assert process.stdin
        with suppress(OSError):  # the process may have ended meanwhile
            process.stdin.write(f"{outcome}\n".encode())
            process.stdin.close()
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self._problem = f"it did not end within {GRACE_SECONDS:g} s"
        message = self._end(process)
        if process.returncode and not self._problem:
            self._problem = message or f"its process ended with status {process.returncode}"
        return self.note()

    def _end(self, process: "subprocess.Popen[bytes]") -> str:
        """Close the pipes of a process; returns its error message."""
        assert process.stdin and process.stdout
        with suppress(OSError):
            process.stdin.close()
        with process.stdout:
            message = process.stdout.read(_MOST * 4).decode(errors="replace")
        return " ".join(message.split())[:_MOST].rstrip(".")
