"""The trainer's side of an experiment tracker: start the process that copies figures there, and never wait for it.

The figures themselves are in metrics.jsonl, which that process reads; see `vit.training.trackers.follower`. Whatever it
does, raise, hang or die, costs one note in the run, and no step.
"""

import subprocess
from contextlib import suppress
from pathlib import Path

from vit.training.trackers import plugin

GRACE_SECONDS = 20.0  # [s] that the end of a run waits for the last figures to be sent
LOG = "tracking.txt"  # what trackers print, and the traceback of one that failed
_MOST = 300  # characters of a reason


class TrackerProcess:
    """Follows one attempt of a run.

    Args:
        run: the run's folder.
        name: of the tracker, as the setting `track` has it.
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
                    start_new_session=True,  # a terminal's Ctrl-C is meant for the trainer
                )
        except OSError as error:
            self._problem = f"it could not be started ({error.strerror})"

    def note(self) -> str:
        """What a person should know, once: that it ended by itself, and why; "" while all is well."""
        if self._process and self._process.poll() is not None:
            self._problem = self._end(self._process) or f"its process ended with status {self._process.returncode}"
            self._process = None
        if not self._problem:
            return ""
        problem, self._problem = self._problem, ""
        return f"Figures are no longer copied to {self.name}: {problem}. The run goes on, and keeps all of its own."

    def finish(self, outcome: str) -> str:
        """Say how the attempt ended, and wait a while for the last figures to be sent; returns as `note` does."""
        if (note := self.note()) or self._process is None:
            return note
        process, self._process = self._process, None
        assert process.stdin
        with suppress(OSError):  # it has just ended
            process.stdin.write(f"{outcome}\n".encode())
            process.stdin.close()
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            self._problem = f"it did not end within {GRACE_SECONDS:g} s"
        said = self._end(process)
        if process.returncode and not self._problem:
            self._problem = said or f"its process ended with status {process.returncode}"
        return self.note()

    def _end(self, process: "subprocess.Popen[bytes]") -> str:
        """Close what is left of a process; returns what it said."""
        assert process.stdin and process.stdout
        with suppress(OSError):
            process.stdin.close()
        with process.stdout:
            said = process.stdout.read(_MOST * 4).decode(errors="replace")
        return " ".join(said.split())[:_MOST].rstrip(".")
