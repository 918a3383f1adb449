"""The trainer's processes, once or again, and words for an end that they had none for: the same wherever they run."""

import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from vit.out_of_memory import ended, kills
from vit.training.run_folder import AGAIN, read_json, record_outcome

CANCELLED = "Cancelled while it waited for its turn."
KILLED = "Killed on request. Resume continues from the last saved state."


def train_to_the_end(folder: Path, train_once: Callable[[], int | None]) -> None:
    """Run the trainer, again where it asks for smaller parts of a batch, and record how it ended where it did not.

    Args:
        train_once: starts the trainer's processes, waits until nothing is left of them, and returns the exit status,
            negative for a signal; None where a person killed them.
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
    """Words for the end of a trainer that left none.

    Args:
        code: its exit status, negative for a signal.
        begin: where in the log this attempt began [bytes].
        kills_before: `kills()` when it began.
    """
    if who := ended(code, kills_before):
        return f"{who}. Resume it; if that happens again, with a smaller image_size, batch_size or model."
    if code < 0:
        return f"It crashed ({signal.Signals(-code).name}). Resume it; the log holds what it last said."
    with suppress(OSError), log.open("rb") as file:
        file.seek(begin)
        lines = file.read().decode(errors="replace").split("\n")
        if messages := [line.strip() for line in lines if line.strip()]:
            return messages[-1][:500] if code == 2 else f"It ended with an error: {messages[-1][:500]}"
    return f"It ended with status {code} and said nothing."
