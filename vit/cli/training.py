"""The command train: train here, or launch a run on an engine."""

import argparse
import json
import os
from collections import Counter
from pathlib import Path
from typing import Any

from vit.confidence import CHOSE_EPOCH, figure, too_few
from vit.data.folders import is_packed, list_files
from vit.errors import InvalidConfig
from vit.paths import runs_folder
from vit.training.engines.contract import HERE
from vit.training.loop.config import TrainConfig
from vit.training.loop.presets import PRESETS, describe, run_name, train_config
from vit.training.loop.run_folder import check_folder_name, new_id, read_json
from vit.training.loop.train import train
from vit.training.runs.control import launch
from vit.training.runs.launch_checks import devices_of_setting, with_absolute_paths
from vit.training.trackers import plugin

_SHOWN_CLASSES = 20


def run_train(options: argparse.Namespace) -> None:
    """Train or resume a run."""
    if options.settings:
        print(describe())
        return
    if not options.on and (options.devices or options.nodes > 1 or options.minutes):
        raise InvalidConfig("--devices, --nodes and --minutes need --on.")
    if options.resume and (options.preset or options.config or options.set or options.run or options.name):
        raise InvalidConfig(
            "--resume continues a run with its own settings; only --data may say where its folder is now."
        )
    if not (options.preset or options.config or options.data or options.resume):
        raise InvalidConfig(f"Name a --preset ({', '.join(PRESETS)}), a --config or at least --data.")
    config = train_config(options.preset, **merged_settings(options))
    if options.on in (None, HERE) and not options.resume:
        plugin.check_available(config.track)
    if options.on:
        _launch(config, options)
        return
    name = options.name or run_name(config)
    run = options.resume or _new_folder(options.run, name)
    if not options.resume or options.data:
        config = with_absolute_paths(config)
    if options.preset:
        print(f"{PRESETS[options.preset].title}. {PRESETS[options.preset].expect}", flush=True)
    # Not on --resume: what a run's folder cannot read must be recorded as its outcome, which `train` does.
    if config.data.startswith("folder:") and not options.resume and not int(os.environ.get("RANK", 0)):
        _show_classes(Path(config.data.removeprefix("folder:")).expanduser())
    try:
        result = train(config, run, resume=bool(options.resume), name=name)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Stopped. Continue with --resume {run}") from None
    if int(os.environ.get("RANK", 0)):  # only rank 0 prints results
        return
    if reason := read_json(run / "outcome.json").get("reason"):
        print(f"{reason} --resume {run}")
    if result.validation:
        right = figure(result.validation.accuracy, result.validation.pictures, "validation pictures right")
        print(f"{right}, {CHOSE_EPOCH}.")
    if result.test:
        print(f"{figure(result.test.accuracy, result.test.pictures, 'test pictures right')}.")
    if result.validation:
        print(f"The model: {run / 'checkpoints' / 'best'}")


def _new_folder(folder: Path | None, name: str) -> Path:
    """Return the folder of a new run: the chosen one, or one that is named after the time and the run."""
    if folder and folder.absolute().parent == runs_folder().absolute():
        check_folder_name(folder)
    if not folder and int(os.environ.get("WORLD_SIZE", 1)) > 1:  # each process would choose another one
        raise InvalidConfig("Several processes share the folder of their run. Name it with --run-dir.")
    return folder or runs_folder() / new_id(name)


def _show_classes(folder: Path) -> None:
    """Print the classes found in the folder, so that a wrong guess shows before training."""
    if is_packed(folder):
        return
    files = list_files(folder)
    counts = Counter(label for _, label in (*files.train, *files.validation, *files.test))
    shown = [f"{name} {counts[label]:,}" for label, name in enumerate(files.classes[:_SHOWN_CLASSES])]
    more = ", …" if len(files.classes) > len(shown) else ""
    print(f"{len(files.classes):,} classes, with pictures: {', '.join(shown)}{more}", flush=True)
    if few := too_few(len(files.test)):
        print(few, flush=True)


def _launch(config: TrainConfig, options: argparse.Namespace) -> None:
    """Launch the run on the engine that --on names, and print how to find it."""
    if options.resume or options.run:
        raise InvalidConfig("--on starts a run of its own, in a folder of its own: leave --resume and --run-dir out.")
    devices = options.devices or devices_of_setting(config.device, options.on)
    run = launch(
        config,
        name=options.name or "",
        on=options.on,
        devices=devices,
        nodes=options.nodes,
        minutes=options.minutes,
    )
    print(f"{run.id}  {run.status}  {run.reason}".rstrip())
    print(f"Look at it with: python -m vit runs show {run.id}")


def merged_settings(options: argparse.Namespace) -> dict[str, Any]:
    """Merge the settings of the file, --data and --set; later ones override earlier ones."""
    settings: dict[str, Any] = {}
    file = options.resume / "config.json" if options.resume else options.config
    if file:
        try:
            settings = json.loads(file.read_text())
        except OSError as error:
            what = "--resume needs the folder of a run" if options.resume else "--config needs a file of settings"
            raise InvalidConfig(f"{what}; {file} cannot be read: {error.strerror}.") from error
        except ValueError as error:
            raise InvalidConfig(f"{file} is not JSON. Name a file such as the config.json of a run.") from error
        if not isinstance(settings, dict):
            raise InvalidConfig(f"{file} must hold one JSON object of settings.")
    if options.data:
        settings["data"] = options.data
    for pair in options.set:
        key, equals, value = pair.partition("=")
        if not equals:
            raise InvalidConfig(f"--set takes KEY=VALUE, not {pair!r}.")
        try:
            settings[key] = json.loads(value)
        except ValueError:
            settings[key] = value
    return settings
