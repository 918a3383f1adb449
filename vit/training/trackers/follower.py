"""The process that copies a run's metrics to an experiment tracker during training.

    python -m vit.training.trackers.follower RUN NAME
    python -m vit.training.trackers.follower --list

It reads metrics.jsonl and sends new records after each epoch and at the end. In tracking.json it stores the tracker's
id of the run and the last steps sent, so that a resumed run continues there. The trainer writes the outcome to stdin;
end of file without one means that the trainer died. An error is one line on stdout, with exit status 1. Nothing waits
for this process.
"""

import os
import re
import signal
import sys
import threading
import traceback
from pathlib import Path

from vit.errors import UserError
from vit.training.loop.metrics import MetricsReader, Record
from vit.training.loop.run_folder import read_json, write_json
from vit.training.trackers.plugin import Point, RunFacts, Tracker, find, installed
from vit.untrusted import is_text, is_whole

TRACKING = "tracking.json"  # for each tracker: its id of the run, and the last steps sent, by kind of record
FILES = "tracking"  # folder for a tracker's own files
GRACE_SECONDS = 30.0  # [s] after the end of the trainer, when this process exits even if a server hangs
_PAUSE_SECONDS = 0.5  # [s] between two reads of the metrics
_ADDRESS = re.compile(r"\w+://[^\s'\"<>]+")
_FIGURES = {
    "step": ("train", ("loss", "lr", "pictures_per_second")),
    "validation": ("validation", ("accuracy", "loss")),
    "test": ("test", ("accuracy", "loss")),
}
_LOCAL_SETTINGS = ("data_root", "workers", "track")  # settings of this machine, which are not sent
# Fields of the "start" record to send.
_START_FIELDS = ("params", "train_pictures", "validation_pictures", "test_pictures", "hardware")


class Follower:
    """Copies one run to one tracker.

    Attributes:
        over: set when the trainer has ended.
        outcome: how the trainer ended.
    """

    def __init__(self, run: Path, name: str):
        self.run, self.name = run, name
        self.over, self.outcome = threading.Event(), "interrupted"
        self._reader = MetricsReader(run / "metrics.jsonl")
        self._tracker: Tracker | None = None
        before = read_json(run / TRACKING).get(name)
        known = before if isinstance(before, dict) else {}
        sent = known.get("sent")
        self._id = run_id if is_text(run_id := known.get("id")) else ""
        self._sent = {kind: step for kind, step in sent.items() if is_whole(step)} if isinstance(sent, dict) else {}

    def follow(self) -> None:
        """Send new records until the trainer has ended and all are sent. Raises whatever the tracker raises."""
        open_run = find(self.name).load()
        while True:
            over = self.over.wait(_PAUSE_SECONDS)  # before reading, so that the last read sees everything
            self._reader.update()
            records = self._reader.records
            if self._tracker is None and records.get("start"):
                self._tracker = open_run(self._facts(records["start"][-1]), self._id)
            if self._tracker is not None and (over or self._epoch_is_new()):
                self._send(self._tracker)
            if over:
                break
        if self._tracker is not None:
            self._tracker.finish(self.outcome)

    def _facts(self, start: Record) -> RunFacts:
        about, config = read_json(self.run / "about.json"), read_json(self.run / "config.json")
        settings = {name: value for name, value in config.items() if name not in _LOCAL_SETTINGS}
        for name in ("data", "init_from"):  # send only the last part of a path
            kind, colon, path = str(settings.get(name, "")).partition("folder:")
            settings[name] = f"{kind}{colon}{Path(path).name}" if colon else kind.rpartition("/")[2]
        settings |= {name: start[name] for name in _START_FIELDS if name in start}
        return RunFacts(str(about.get("name") or self.run.name), settings, self.run / FILES)

    def _epoch_is_new(self) -> bool:
        return any(self._new(kind) for kind in ("validation", "test"))

    def _new(self, kind: str) -> list[Record]:
        sent = self._sent.get(kind, -1)
        return [record for record in self._reader.records.get(kind, []) if record["step"] > sent]

    def _send(self, tracker: Tracker) -> None:
        points, sent = [], dict(self._sent)
        for kind, (prefix, names) in _FIGURES.items():
            for record in self._new(kind):
                figures = {f"{prefix}/{name}": float(record[name]) for name in names if name in record}
                points.append(Point(record["step"], float(record.get("t", 0.0)), figures))
                sent[kind] = record["step"]
        tracker.log(sorted(points, key=lambda point: point.step))
        self._sent = sent
        known = {"id": tracker.id, "sent": sent}
        write_json(self.run / TRACKING, read_json(self.run / TRACKING) | {self.name: known})

    def listen(self) -> None:
        """Wait for the outcome from the trainer, and limit this process's time after that."""
        message = sys.stdin.readline().strip()
        self.outcome = message if message in ("finished", "stopped", "failed") else "interrupted"
        self.over.set()
        timer = threading.Timer(GRACE_SECONDS, os._exit, (1,))
        timer.daemon = True
        timer.start()


def _reason(error: BaseException) -> str:
    """Format an error in one line, without URLs, which may contain a password.

    >>> _reason(ConnectionError("No answer from http://ada:secret@example.com/api\\nTry later."))
    'ConnectionError: No answer from an address'
    """
    message = _ADDRESS.sub("an address", str(error).strip())
    return f"{type(error).__name__}: {message.splitlines()[0]}" if message else type(error).__name__


def main() -> int:
    """Follow the run that the command line names; returns the exit status."""
    if sys.argv[1:] == ["--list"]:
        print(*installed())
        return 0
    for request in (signal.SIGINT, signal.SIGTERM):  # meant for the trainer, which then sends the outcome
        signal.signal(request, signal.SIG_IGN)
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # stdout carries the error line only; whatever libraries print goes to stderr
    follower = Follower(Path(sys.argv[1]), sys.argv[2])
    threading.Thread(target=follower.listen, daemon=True).start()
    try:
        follower.follow()
    except UserError as error:
        print(error, file=answer, flush=True)
        return 1
    except BaseException as error:
        traceback.print_exc()
        print(_reason(error), file=answer, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    status = main()
    sys.stderr.flush()
    os._exit(status)  # skips threads and exit handlers of libraries, which may hang
