"""The command train."""

import argparse
import json
import os
from typing import Any

from vit.devices import list_devices
from vit.errors import InvalidConfig
from vit.paths import runs_folder
from vit.runs.control import launch, new_id
from vit.runs.engines.contract import HERE
from vit.runs.registry import ANY_GPU
from vit.training.config import TrainConfig
from vit.training.presets import PRESETS, describe, run_name, train_config
from vit.training.run_folder import read_json
from vit.training.train import train


def run_train(options: argparse.Namespace) -> None:
    """Train, or continue a run."""
    if options.settings:
        print(describe())
        return
    if not options.on and (options.devices or options.nodes > 1 or options.minutes):
        raise InvalidConfig("--devices, --nodes and --minutes say what is asked of the place that --on names.")
    if options.resume and (options.preset or options.config or options.data or options.set or options.run):
        raise InvalidConfig("--resume continues a run as it was described; it goes without other options.")
    if not (options.preset or options.config or options.data or options.resume):
        raise InvalidConfig(f"Name a --preset ({', '.join(PRESETS)}), a --config or at least --data.")
    config = train_config(options.preset, **_settings(options))
    if options.on:
        _hand_over(config, options)
        return
    run = options.resume or options.run or runs_folder() / new_id(run_name(config))
    if options.preset:
        print(f"{PRESETS[options.preset].title}. {PRESETS[options.preset].expect}", flush=True)
    try:
        result = train(config, run, resume=bool(options.resume))
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"Stopped. Continue with --resume {run}") from None
    if int(os.environ.get("RANK", 0)):  # one of several processes, not the leading one
        return
    if reason := read_json(run / "outcome.json").get("reason"):
        print(f"{reason} --resume {run}")
    if result.validation:
        print(f"{result.validation.accuracy:.2%} of {result.validation.pictures:,} validation pictures right.")
    if result.test:
        print(f"{result.test.accuracy:.2%} of {result.test.pictures:,} test pictures right.")
    if result.validation:
        print(f"The model: {run / 'checkpoints' / 'best'}")


def _hand_over(config: TrainConfig, options: argparse.Namespace) -> None:
    """Launch the run where it was asked for, and say how it is to be met again."""
    if options.resume or options.run:
        raise InvalidConfig("--on starts a run of its own, in a folder of its own: leave --resume and --run-dir out.")
    gpu = [ANY_GPU] if options.on != HERE or len(list_devices()) > 1 else ["cpu"]
    devices = options.devices or (gpu if config.device == "auto" else [config.device])
    run = launch(config, on=options.on, devices=devices, nodes=options.nodes, minutes=options.minutes)
    print(f"{run.id}  {run.status}  {run.reason}".rstrip())
    print(f"Look at it with: python -m vit runs show {run.id}")


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    """From the file, then --data, then --set: the later wins."""
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
