"""Run a run's trainer, restart it when it asks for that, and record its outcome; the same on every engine."""

import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vit.out_of_memory import describe_exit, kills
from vit.training.loop.run_folder import AGAIN, read_json, record_outcome

CANCELLED = "Cancelled while it waited for its turn."
KILLED = "Killed on request. Resume continues from the last saved state."


def train_until_done(folder: Path, train_once: Callable[[], int | None]) -> None:
    """Run the trainer until it ends, and record an outcome if the trainer recorded none.

    A trainer that runs out of memory asks, through the file `AGAIN`, to be restarted with smaller micro-batches.

    Args:
        train_once: starts the trainer's processes, waits for all of them to exit, and returns the exit status,
            negative for a signal; None if a person killed them.
    """
    log = folder / "log.txt"
    while True:
        begin, kills_before = log.stat().st_size if log.exists() else 0, kills()
        parts = read_json(folder / AGAIN)
        code = train_once()
        if code is None:
            record_outcome(folder, "stopped", KILLED)
            return
        record_outcome(folder, "failed", reason_of(code, log, begin, kills_before))
        if read_json(folder / AGAIN) == parts:
            return
        (folder / "outcome.json").unlink(missing_ok=True)


def reason_of(code: int, log: Path, begin: int, kills_before: int) -> str:
    """Explain in a sentence why a trainer ended that recorded no outcome itself.

    Args:
        code: exit status, negative for a signal.
        begin: offset in the log at which this attempt began [bytes].
        kills_before: `kills()` at the start of the attempt.
    """
    if who := describe_exit(code, kills_before):
        return f"{who}. Resume it; if that happens again, with a smaller image_size, batch_size or model."
    if code < 0:
        return f"It crashed ({signal.Signals(-code).name}). Resume it; see the end of the log."
    with suppress(OSError), log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode(errors="replace").split("\n")
        if messages := [line.strip() for line in lines if line.strip()]:
            return messages[-1][:500] if code == 2 else f"It ended with an error: {messages[-1][:500]}"
    return f"It ended with status {code} and no output."
