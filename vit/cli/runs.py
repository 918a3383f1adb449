"""The command runs, which does not import torch."""

import argparse
import json
from typing import Any

from vit.confidence import figure
from vit.errors import UserError
from vit.training.loop.metrics import MetricsReader, final_test, pictures_of, progress
from vit.training.runs import control, registry


def run_runs(options: argparse.Namespace) -> None:
    """List, show, stop, resume or delete runs."""
    if options.action == "list":
        for run in registry.list_runs(control.PATIENCE_SECONDS):
            print(_line(run))
        return
    if not options.ids:
        raise UserError(f"Name a run: python -m vit runs {options.action} ID. Its id is in `python -m vit runs list`.")
    if options.devices and options.action != "resume":
        raise UserError("--devices is for `runs resume`.")
    for run_id in options.ids:  # fail on an unknown id before changing any run
        registry.find_run(run_id, control.PATIENCE_SECONDS)
    for run_id in options.ids:
        if options.action == "delete":
            _delete(run_id, options.yes)
            continue
        if options.action == "stop":
            control.stop(run_id)
        elif options.action == "resume":
            control.resume(run_id, devices=options.devices)
        run = registry.find_run(run_id, control.PATIENCE_SECONDS)
        print(_line(run))
        if options.action == "show":
            if run.notes:
                print(run.notes)
            print(json.dumps(run.config, indent=2))
            print(run.folder)


def _delete(run_id: str, sure: bool) -> None:
    folder = registry.find_run(run_id, control.PATIENCE_SECONDS).folder
    files = [file for file in folder.rglob("*") if file.is_file()]
    size = sum(file.stat().st_size for file in files)
    what = f"{run_id}: {size / 1e6:,.1f} MB in {len(files):,} files"
    if sure:
        control.delete(run_id)
        print(f"Deleted {what}")
    else:
        print(f"Would delete {what}, its checkpoints among them. Add --yes to do it.")


def _line(run: Any) -> str:
    reader = MetricsReader(run.folder / "metrics.jsonl")
    reader.update()
    done = progress(reader.records)
    accuracy = "-"
    if done and done.accuracy is not None:
        accuracy = f"validation {figure(done.accuracy, pictures_of(reader.records, 'validation'))}"
    if final := final_test(reader.records):
        accuracy += f", test {figure(final['accuracy'], final.get('pictures'))}"
    share = f"{done.share:.0%}" if done else "0%"
    return f"{run.id:<44} {run.status:<11} {share:>4} {accuracy:<56}  {run.reason}".rstrip()
