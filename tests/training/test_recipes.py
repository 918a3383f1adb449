"""Configs of runs: presets, validation of settings, and mistakes reported in one sentence."""

import subprocess
import sys

import pytest

from vit.errors import InvalidConfig
from vit.training.loop.config import TrainConfig
from vit.training.loop.fine_tuning import model_config
from vit.training.loop.presets import PRESETS, describe, train_config


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_describes_a_model_that_can_be_built(name: str) -> None:
    config = train_config(name)
    assert model_config(config, num_classes=3).num_classes == 3


def test_settings_override_the_preset() -> None:
    assert train_config("cifar", epochs=3).epochs == 3
    assert train_config("cifar", epochs=3).batch_size == train_config("cifar").batch_size


def test_config_survives_its_file() -> None:
    config = train_config("cifar", registers=2, layer_scale=1e-4)
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config


def test_registers_follow_the_class_token() -> None:
    assert train_config("shapes", registers=2).vit_config(4).prefix == ("cls", "reg1", "reg2")


def test_augmentation_gets_the_settings_of_the_same_name() -> None:
    assert train_config(crop_padding=3, mixup=0.4).augmentation().crop_padding == 3
    assert train_config(crop_padding=3, mixup=0.4).augmentation().mixup == 0.4


@pytest.mark.parametrize(
    ("preset", "settings", "said"),
    [
        ("nope", {}, "There is no preset 'nope'. Choose from: shapes"),
        (None, {"nope": 1}, "There is no setting 'nope'. Choose from: data"),
        (None, {"preset": "shapes"}, "There is no setting 'preset'"),
        (None, {"epochs": 0}, "epochs must be at least 1, not 0."),
        (None, {"epochs": "many"}, "epochs must be a whole number, not 'many'."),
        (None, {"flip": 2}, "flip must be true or false, not 2."),
        (None, {"seed": 2**31}, "seed must be less than 2,147,483,648"),
        (None, {"size": 5}, "size must be text, not 5."),
        (None, {"lr": float("nan")}, "lr must be a finite number, not nan."),
        (None, {"warmup_epochs": float("inf")}, "warmup_epochs must be a finite number, not inf."),
        (None, {"device": "tpu"}, "device must be auto, cpu, cuda, cuda:1 or mps, not 'tpu'."),
        (None, {"optimizer": "sgd"}, "'adamw' or 'muon', not 'sgd'."),
        (None, {"size": "X/9"}, "There is no size 'X/9'"),
        (None, {"patch_size": 5}, "patch_size 5 does not divide image_size 32 x 32."),
        (None, {"heads": 5}, "heads 5 does not divide dim 48."),
    ],
)
def test_mistake_is_reported_in_one_sentence(preset: str | None, settings: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidConfig) as caught:
        train_config(preset, **settings)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_one_epoch_is_enough_for_any_preset() -> None:
    for name in PRESETS:
        assert train_config(name, epochs=1).epochs == 1


def test_overview_lists_every_preset_and_setting() -> None:
    text = describe()
    assert all(name in text for name in (*PRESETS, *TrainConfig.model_fields))


def test_config_is_created_without_torch() -> None:
    """Otherwise page Train and each launching process would wait seconds for the import."""
    code = (
        "import sys\n"
        "from vit.training.runs import control\n"
        "control.launch\n"
        "from vit.training.loop.presets import run_name, train_config\n"
        "run_name(train_config('cifar', epochs=3))\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
