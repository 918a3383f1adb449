"""The command ladder: compare ways to adapt a checkpoint to a dataset."""

import argparse
import json
import math
import sys
import time
from contextlib import closing, redirect_stdout
from pathlib import Path

from vit.cli.training import merged_settings
from vit.confidence import CHOSE_EPOCH, figure
from vit.errors import InvalidConfig
from vit.paths import runs_folder
from vit.progress import progress_bar
from vit.training.loop import dry_run, ladder
from vit.training.loop.config import TrainConfig
from vit.training.loop.distributed import set_up_process
from vit.training.loop.ladder import RUNGS, RungResult
from vit.training.loop.presets import checkpoint_name, train_config
from vit.training.loop.run_folder import new_id, read_json
from vit.training.loop.train import train
from vit.training.runs.command_line import command_line
from vit.training.runs.launch_checks import with_absolute_paths


def run_ladder(options: argparse.Namespace) -> None:
    """Try every way to adapt a checkpoint to a dataset, and recommend one."""
    rungs = options.rungs or list(RUNGS)
    if unknown := [name for name in rungs if name not in RUNGS]:
        raise InvalidConfig(f"There is no rung {unknown[0]!r}. Choose from: {', '.join(RUNGS)}.")
    config = train_config("fine-tune", **merged_settings(options) | {"init_from": options.start})
    results: dict[str, RungResult] = {}
    models: dict[str, Path] = {}
    if {"neighbours", "probe"} & set(rungs):
        started = time.perf_counter()
        for name, without in _without_training(config, bar=not options.json).items():
            if name in rungs:
                results[name] = without
                _print(options, name, without, time.perf_counter() - started)
    for name in RUNGS:
        if name in rungs and name not in ("neighbours", "probe"):
            started = time.perf_counter()
            title = f"{checkpoint_name(options.start)}, {RUNGS[name].title}"
            models[name] = runs_folder() / new_id(title)
            with redirect_stdout(sys.stderr):
                result = train(with_absolute_paths(ladder.rung_config(config, name)), models[name], name=title)
            if read_json(models[name] / "outcome.json").get("outcome") == "stopped":
                again = f"python -m vit train --resume {models[name]}"
                raise KeyboardInterrupt(f"Stopped. Continue this run with: {again}")
            if result.validation is None:
                raise InvalidConfig("Stopped before the first epoch.")
            of = result.validation
            results[name] = RungResult(of.accuracy, of.pictures, of.loss)
            _print(options, name, results[name], time.perf_counter() - started, models[name])
    if options.json:
        return
    best = ladder.recommended(results.items())
    print(f"\nRecommended: {RUNGS[best].title}. {RUNGS[best].sentence}")
    if models:
        print(f"All figures are of validation pictures, {CHOSE_EPOCH} of each training.")
    if best in models:
        print(f"The model: {models[best] / 'checkpoints' / 'best'}")
    elif RUNGS[best].settings:
        print(command_line(ladder.rung_config(config, best), "fine-tune"))


def _without_training(config: TrainConfig, bar: bool) -> dict[str, RungResult]:
    updates = dry_run.without_training(config, str(set_up_process(config).device), math.inf)
    style = "{l_bar}{bar}| {elapsed}, {remaining} left"
    with closing(updates), progress_bar(total=100, bar_format=style, leave=False, disable=not bar) as progress:
        for update in updates:
            if isinstance(update, dict):
                return update
            progress.update(int(100 * update) - progress.n)
    return {}


def _print(
    options: argparse.Namespace, name: str, result: RungResult, seconds: float, model: Path | None = None
) -> None:
    low, high = result.interval
    if options.json:
        facts = {"rung": name, "accuracy": result.accuracy, "interval": [low, high], "pictures": result.pictures}
        print(json.dumps(facts | {"seconds": round(seconds, 1), "run": model and str(model)}), flush=True)
        return
    right = figure(result.accuracy, result.pictures)
    print(f"{RUNGS[name].title:<20} {right:<36} {seconds:6.0f} s", flush=True)
