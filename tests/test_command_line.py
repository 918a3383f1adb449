"""The command line shown on a page is equivalent to the page's form."""

import argparse
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from torch.distributed.run import get_args_parser

import vit
from vit.checkpoints.load import load_checkpoint
from vit.cli.parser import parser
from vit.cli.training import merged_settings
from vit.training.loop.config import TrainConfig
from vit.training.loop.presets import PRESETS, train_config
from vit.training.runs.command_line import command_line

ROOT = Path(vit.__file__).parent.parent


def read_back(line: str) -> TrainConfig:
    """Parse the line as `python -m vit train` does."""
    arguments = shlex.split(line)
    options = parser().parse_args(arguments[arguments.index("vit") + 1 :])
    return train_config(options.preset, **merged_settings(options))


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_every_preset_survives_the_round_trip(preset: str | None) -> None:
    config = train_config(preset)
    assert read_back(command_line(config, preset)) == config


@pytest.mark.parametrize("preset", [None, "cifar", "shapes"])
@pytest.mark.parametrize(
    "settings",
    [
        {"data": "folder:/srv/my pictures/it's; $(rm) ü"},
        {"lr": 1e-5, "ema": 0.9998, "layer_scale": 1e-4, "heads": 1, "limit": 7},
        {"flip": False, "compile": True, "pool": "mean", "size": "S/16", "image_size": 64},
        {"data_root": "7", "schedule": "constant", "patience": 3, "device": "cuda"},
        {"data_root": "null"},
    ],
)
def test_changed_settings_survive_the_round_trip(preset: str | None, settings: dict) -> None:
    config = train_config(preset, **settings)
    assert read_back(command_line(config, preset)) == config


def test_preset_alone_is_one_short_line() -> None:
    assert command_line(train_config("shapes"), "shapes") == "python -m vit train --preset shapes"


def test_name_is_part_of_the_line() -> None:
    line = command_line(train_config("shapes"), "shapes", name="it's mine")
    assert parser().parse_args(shlex.split(line)[3:]).name == "it's mine"


def test_several_gpus_use_torchrun_on_those_gpus() -> None:
    config = train_config("cifar", device="cuda")
    line = command_line(config, "cifar", ("cuda:1", "cuda:3"))
    assert line.startswith(
        "CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=1,3 torchrun --standalone --nproc-per-node=2 "
    )
    assert read_back(line) == config
    assert line.endswith(" --run-dir runs/vit-9x256-4-32-px"), "each process would choose another folder"
    unnamed = command_line(config, "cifar", ("cuda:1", "cuda:3"), name="日本語")
    assert unnamed.endswith(" --run-dir runs/run"), "no letter of the name is left for a folder"


def options_of_train() -> list[str]:
    """List all options except the spelling that is known to clash."""
    commands = next(action for action in parser()._actions if isinstance(action, argparse._SubParsersAction))
    every = {name for action in commands.choices["train"]._actions for name in action.option_strings}
    return sorted(every - {"-h", "--help", "--run"})


@pytest.mark.parametrize("option", options_of_train())
def test_torchrun_leaves_the_options_of_train_alone(option: str) -> None:
    """torchrun parses any abbreviation of its own options, wherever it appears."""
    known = get_args_parser().parse_args(["--nproc-per-node=2", "-m", "vit", "train", option, "value"])
    assert (known.training_script, known.training_script_args) == ("vit", ["train", option, "value"])


@pytest.mark.exhaustive
@pytest.mark.slow
def test_two_processes_train_with_the_displayed_command(tmp_path: Path) -> None:
    small = dict(image_size=16, dim=24, heads=2, depth=1, mlp_dim=48)
    config = train_config("shapes", **small, batch_size=8, epochs=1, limit=16, device="cpu")
    torchrun, *words = shlex.split(command_line(config, "shapes", ("cpu", "cpu")))
    assert torchrun == "torchrun"
    run = tmp_path / "run"
    done = subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", *words, "--run-dir", str(run)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads((run / "environment.json").read_text())["devices"] == 2
    assert load_checkpoint(run / "checkpoints" / "best").config.dim == 24
