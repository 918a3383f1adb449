"""The command line that a page shows does what the page would."""

import shlex

import pytest

from vit.__main__ import _settings, parser
from vit.command import command_line
from vit.recipes import PRESETS, TrainConfig, train_config


def read_back(line: str) -> TrainConfig:
    """What `python -m vit train` makes of the line."""
    words = shlex.split(line)
    options = parser().parse_args(words[words.index("vit") + 1 :])
    return train_config(options.preset, **_settings(options))


@pytest.mark.parametrize("preset", [None, *PRESETS])
def test_every_preset_reads_back_as_itself(preset: str | None) -> None:
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
def test_changed_settings_read_back_as_they_were(preset: str | None, settings: dict) -> None:
    config = train_config(preset, **settings)
    assert read_back(command_line(config, preset)) == config


def test_a_preset_alone_is_one_short_line() -> None:
    assert command_line(train_config("shapes"), "shapes") == "python -m vit train --preset shapes"


def test_several_gpus_start_with_torchrun_on_those_gpus() -> None:
    config = train_config("cifar", device="cuda")
    line = command_line(config, "cifar", ("cuda:1", "cuda:3"))
    assert line.startswith("CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=1,3 torchrun --nproc-per-node=2 -m vit")
    assert read_back(line) == config
