"""What torchrun starts, once for each process of a run, where a person handed over a job file.

torchrun ... -m vit.runs.engines.torchrun_job RUN JOB
"""

import os
import sys
from pathlib import Path

from vit.errors import UserError
from vit.runs.engines.contract import call_off, end_when_replaced, is_over, mark_over, read_handle
from vit.training.presets import train_config
from vit.training.run_folder import read_document, read_json, record_outcome
from vit.training.train import train


def main(folder: Path, job: str) -> int:
    """Train the run in `folder`; returns the exit status."""
    handle, leads = read_handle(folder), os.environ.get("RANK", "0") == "0"
    if handle is None or handle.job != job or is_over(handle):
        print("This job file is an old one: the run has a newer one, or is over.")
        return 2
    if (folder / "stop").exists():
        if leads:
            call_off(handle)
        return 0
    if leads:
        for leftover in ("outcome.json", "heartbeat"):  # of an attempt that was ended from outside
            (folder / leftover).unlink(missing_ok=True)
    print(f"It goes on in {folder / 'log.txt'}", flush=True)
    with (folder / "log.txt").open("ab") as log:
        for stream in (1, 2):
            os.dup2(log.fileno(), stream)
    end_when_replaced(handle, lambda: os._exit(2))
    try:
        train(train_config(**read_document(folder / "config.json")), folder, resume=True)
    except UserError as error:
        if leads:
            record_outcome(folder, "failed", str(error))
            mark_over(handle)
        print(error)
        return 2
    ended = read_json(folder / "outcome.json").get("outcome")
    if leads and (ended == "finished" or (folder / "stop").exists()):  # or else it may be started again
        mark_over(handle)
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
