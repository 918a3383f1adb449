"""The form of page Train and its link are inverse to each other, for links from any source."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest
from PIL import Image

from pages.shared import datasets
from pages.training import setting_names
from pages.training.train_form import settings
from pages.training.train_form.form import FIRST, LONGEST, PARTS, TrainForm
from vit.training.loop.presets import PRESETS

ROOT = Path(__file__).parents[3]
START = "/runs/50 % & more=?#+ü/checkpoints/best"
STARTS = ("", "cifar10", "everyday", START)

# A valid value of every setting, often its limit.
SETTINGS: dict[str, Any] = dict(
    size="S/16", image_size=48, patch_size=12, dim=40, depth=5, heads=5, mlp_dim=77, registers=3, pool="mean",
    norm="after_pool", activation="gelu_tanh", layer_scale=1e-5, dropout=0.1 + 0.2, drop_path=5e-324, start="mimetic",
    epochs=10000, batch_size=65536, optimizer="adamw", lr=1e-17, muon_lr=0.1, weight_decay=0.0, schedule="constant",
    warmup_epochs=1e-7, label_smoothing=0.3, balance="sampling", grad_clip=1e300, ema=0.9999999999999999,
    validate_every=3, patience=7, crop_padding=9,
    freeze="last:12", lora_rank=256, layer_decay=0.123456789, probe_first=True,
    crop_scale=0.07, zoom_out=15.5, flip=False, operations=7, magnitude=0.77, erase=0.01, mixup=9.5, cutmix=0.7,
    precision="float32", compile=True, workers=0, seed=2**31 - 1, limit=2**53 - 1, track="wandb",
)  # fmt: skip
SEARCH: dict[str, Any] = dict(
    name="A name", space="depth=2,4 lr=1e-3:1e-2", grid=True, trials=7, min_epochs=3, reduction_factor=4,
    search_seed=5,
)  # fmt: skip
TEXTS = ["<b>&epochs=3</b>", "50 % & more?#=+;", " \t", "null", "%00%0A", "x\u202ey🙂'\"\\", "z" * LONGEST]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A local dataset whose name has special characters of links."""
    monkeypatch.setenv("VIT_DATA_ROOTS", str(tmp_path))
    for label in "ab":
        (tmp_path / "a & b=c#%2F+ü" / label).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / "a & b=c#%2F+ü" / label / "0.png")
    return f"folder:{tmp_path / 'a & b=c#%2F+ü'}"


def through_a_link(form: TrainForm) -> TrainForm:
    """Return the form restored from this form's link."""
    query = dict(parse_qsl(urlencode(form.to_query()), keep_blank_values=True))
    again, refused = TrainForm.from_query(query, STARTS)
    assert not refused
    return again


def opened(query: Mapping[str, str]) -> TrainForm:
    return TrainForm.from_query(query, STARTS).form


@pytest.mark.parametrize("preset", PRESETS)
def test_defaults_are_in_no_link(preset: str) -> None:
    form = TrainForm.of_preset(preset)
    assert form.to_query() == ({} if preset == FIRST else {"preset": preset})
    assert through_a_link(form) == form
    named = PRESETS[preset].settings["data"] in datasets.NAMED
    assert form.data == (PRESETS[preset].settings["data"] if named else "shapes")


@pytest.mark.parametrize("preset", PRESETS)
def test_link_restores_every_choice(preset: str, folder: str) -> None:
    assert set(SETTINGS) == set(setting_names.NAMES)
    form = TrainForm(preset, folder, START, SETTINGS, **SEARCH)
    assert through_a_link(form) == form
    assert opened(form.to_query()).to_query() == form.to_query()


@pytest.mark.parametrize("part", PARTS)
def test_link_restores_each_single_choice(part: str, folder: str) -> None:
    chosen = TrainForm("mnist", folder, START, SETTINGS, **SEARCH).parts()[part]
    for preset in PRESETS:
        form = TrainForm.of_parts({**TrainForm.of_preset(preset).parts(), part: chosen})
        if part != "preset":  # another recipe's values are so many choices
            assert form.to_query().keys() <= {"preset", part}
        assert through_a_link(form) == form


@pytest.mark.parametrize("preset", PRESETS)
def test_empty_choice_survives_a_link(preset: str) -> None:
    usual = TrainForm.of_preset(preset)
    empty = {name: None for name in setting_names.NAMES if settings.kind(name)[2]}
    form = replace(usual, init_from="", settings={**usual.settings, **empty})
    assert through_a_link(form) == form


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("part", ["name", "space"])
def test_any_text_survives_a_link(part: str, text: str) -> None:
    form = TrainForm.of_parts({**TrainForm.of_preset().parts(), part: text})
    assert through_a_link(form) == form


@pytest.mark.parametrize("part", PARTS)
def test_hostile_link_makes_a_form_that_has_a_link(part: str) -> None:
    usual = TrainForm.of_preset(FIRST if part == "preset" else "mnist")
    for text in ["", "<b>", "-1", "inf", "nan", "1e999", "9" * 400, "true", "None", "../..", *TEXTS]:
        form, refused = TrainForm.from_query({"preset": "mnist", "utm_source": "mail", part: text}, STARTS)
        assert form.parts().keys() == usual.parts().keys() and form.to_query().keys() <= {"preset", part}
        assert refused in ((), (f"{part}={text[:60]}",))
        assert not refused or form == usual
        assert through_a_link(form) == form


def test_link_with_a_value_out_of_range_is_refused_there() -> None:
    """A form can contain typed values that no link may set."""
    usual = TrainForm.of_preset()
    query = replace(usual, settings={**usual.settings, "epochs": 0}, name="A name").to_query()
    assert TrainForm.from_query(query, STARTS) == (replace(usual, name="A name"), ("epochs=0",))


def test_only_one_file_accesses_the_form_in_the_session() -> None:
    files = [ROOT / "pages" / "train.py", *(ROOT / "pages" / "training" / "train_form").glob("*.py")]
    assert [file.name for file in files if "session_state" in file.read_text()] == ["form_state.py"]
