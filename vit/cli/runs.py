"""The command runs, which waits for no torch."""

import argparse
import json
from typing import Any

from vit.errors import UserError
from vit.runs import control, registry
from vit.training.metrics import MetricsReader, final_test, progress


def run_runs(options: argparse.Namespace) -> None:
    """List runs, look at one, stop or resume it."""
    if options.action == "list":
        for run in registry.list_runs(control.PATIENCE_SECONDS):
            print(_line(run))
        return
    if options.id is None:
        raise UserError(f"Name a run: python -m vit runs {options.action} ID. Its id is in `python -m vit runs list`.")
    if options.action == "stop":
        control.stop(options.id)
    elif options.action == "resume":
        control.resume(options.id)
    run = registry.find_run(options.id, control.PATIENCE_SECONDS)
    print(_line(run))
    if options.action == "show":
        if run.notes:
            print(run.notes)
        print(json.dumps(run.config, indent=2))
        print(run.folder)


def _line(run: Any) -> str:
    reader = MetricsReader(run.folder / "metrics.jsonl")
    reader.update()
    done = progress(reader.records)
    of_validation = "validation" if reader.records.get("validation") else "test"  # of older runs
    accuracy = f"{of_validation} {done.accuracy:.2%}" if done and done.accuracy is not None else "-"
    if final := final_test(reader.records):
        accuracy += f", test {final['accuracy']:.2%}"
    share = f"{done.share:.0%}" if done else "0%"
    return f"{run.id:<44} {run.status:<11} {share:>4} {accuracy:<31}  {run.reason}".rstrip()
