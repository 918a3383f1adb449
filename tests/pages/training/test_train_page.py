"""Page Train: empty, normal and error states, without a browser."""

import shlex
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import streamlit as st
from patience import until
from PIL import Image
from streamlit.testing.v1 import AppTest

from pages.shared import job_progress
from pages.training import run_records, setting_names
from pages.training.train_form import cost_preview, data_picker, settings
from tests.pages.controls import button, control, name_of, open_to_a_network, pictures, press, run, texts
from tests.pages.controls import train_page as opened
from vit.cli.parser import parser
from vit.cli.training import merged_settings
from vit.data import downloads
from vit.devices import Device
from vit.errors import InvalidDataset
from vit.training.loop import augmentation_preview, dry_run
from vit.training.loop.config import TrainConfig
from vit.training.loop.presets import PRESETS, train_config
from vit.training.runs import registry

ROOT = Path(__file__).parents[3]


@pytest.fixture
def page(folders: Path) -> AppTest:
    """The page, opened without a link."""
    return opened()


def address(page: AppTest) -> dict[str, str]:
    """Return the form's values in the address."""
    return {name: "".join(text) for name, text in page.query_params.items()}  # a list or a string


def start(page: AppTest):
    return page.button(key="start")


def setting(page: AppTest, name: str):
    """Return a setting's widget."""
    for kind in ("number_input", "selectbox", "toggle"):
        for widget in page.get(kind):
            if name_of(widget) == settings.first_key(name):
                return widget
    raise KeyError(name)


def described(page: AppTest) -> TrainConfig:
    """Return the command line on the page."""
    words = shlex.split(page.code[-1].value)
    options = parser().parse_args(words[words.index("vit") + 1 :])
    return train_config(options.preset, **merged_settings(options))


def test_page_opens_ready_to_start(page: AppTest) -> None:
    assert not page.error and not start(page).disabled
    expected = train_config("shapes", device="cpu").model_dump(exclude={"data_root"})
    assert described(page).model_dump(exclude={"data_root"}) == expected


@pytest.mark.parametrize("preset", ["notebook", "pictures"])
def test_preset_fills_every_setting(page: AppTest, preset: str) -> None:
    control(page.selectbox, "preset").set_value(preset).run()
    assert not page.exception and not page.error
    outside = set(settings.ELSEWHERE)
    assert described(page).model_dump(exclude=outside) == train_config(preset).model_dump(exclude=outside)


def test_impossible_combination_is_explained_at_the_field(page: AppTest) -> None:
    setting(page, "heads").set_value(5).run()
    assert [error.value for error in page.error] == ["heads 5 does not divide width 48\\."]
    column = next(c for c in page.columns if any(w.key == settings.first_key("heads") for w in c.number_input))
    assert len(column.error) == 1
    assert start(page).disabled
    setting(page, "heads").set_value(4).run()
    assert not page.error and described(page).heads == 4


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("lr", 0.0, "more than 0"),
        ("size", "mnist", "in colour"),
        ("crop_padding", 28, "more than half of the input of 32 px"),
    ],
)
def test_unsuitable_value_is_reported_before_the_start(page: AppTest, name: str, value: object, words: str) -> None:
    setting(page, name).set_value(value).run()
    assert len(page.error) == 1 and words in page.error[0].value
    assert start(page).disabled


@pytest.mark.parametrize(("name", "value", "limit"), [("epochs", 0, "1"), ("heads", 65, "64"), ("mixup", 10.5, "10")])
def test_number_out_of_range_is_explained_at_the_field(page: AppTest, name: str, value: float, limit: str) -> None:
    setting(page, name).set_value(value).run()
    assert setting(page, name).value == value, "what was typed counts"
    (error,) = next(c for c in page.columns if any(w.key == settings.first_key(name) for w in c.number_input)).error
    assert f" {limit}\\." in error.value
    assert start(page).disabled


def test_changed_settings_are_in_the_command_line(page: AppTest) -> None:
    setting(page, "epochs").set_value(3)
    setting(page, "pool").set_value("mean")
    setting(page, "flip").set_value(False).run()
    config = described(page)
    assert (config.epochs, config.pool, config.flip, config.optimizer) == (3, "mean", False, "muon")


def test_starting_from_a_checkpoint_does_not_change_its_size(page: AppTest) -> None:
    control(page.selectbox, "init_from").set_value("cifar10").run()
    assert not page.exception and not page.error
    assert setting(page, "heads").disabled and not setting(page, "epochs").disabled
    assert described(page).init_from == "cifar10"
    assert control(page.selectbox, "preset").value == "fine-tune", "a start of another kind wants another recipe"
    control(page.selectbox, "init_from").set_value("").run()
    assert control(page.selectbox, "preset").value == "shapes"


def test_start_launches_one_run_however_often_it_is_sent(page: AppTest) -> None:
    setting(page, "epochs").set_value(1)
    control(page.text_input, "name").set_value("A first try").run()
    nonce = page.session_state["Train"].nonce
    start(page).click().run()
    (run,) = registry.list_runs()
    assert (run.name, run.devices, run.config["epochs"]) == ("A first try", ("cpu",), 1)
    assert page.query_params["run"] in (run.id, [run.id])
    page.switch_page("pages/train.py").run()
    assert page.session_state["Train"].nonce != nonce, "the next click is another run"
    page.session_state["Train"].nonce = nonce  # the same form again, as a double click sends it
    start(page).click().run()
    assert not page.exception and [one.id for one in registry.list_runs()] == [run.id]


def test_form_survives_a_visit_to_another_page(page: AppTest) -> None:
    setting(page, "epochs").set_value(3)
    setting(page, "pool").set_value("mean").run()
    page.switch_page("pages/runs.py").run()
    page.switch_page("pages/train.py").run()
    assert not page.exception
    assert (described(page).epochs, described(page).pool) == (3, "mean")


def test_address_opens_the_same_form_in_another_session(page: AppTest) -> None:
    control(page.selectbox, "preset").set_value("notebook").run()
    setting(page, "epochs").set_value(3)
    setting(page, "pool").set_value("mean")
    setting(page, "lr").set_value(1e-5)
    setting(page, "flip").set_value(False)
    setting(page, "image_size").set_value(48)
    control(page.text_input, "name").set_value("50 % & more").run()
    control(page.radio, "grid").set_value(True).run()
    control(page.multiselect, "space_names").set_value(["depth"]).run()
    link = address(page)
    assert link == {
        "preset": "notebook", "data": "shapes", "epochs": "3", "pool": "mean", "lr": "1e-05", "flip": "false",
        "image_size": "48", "name": "50 % & more", "space": "depth=2,4,8", "grid": "true",
    }  # fmt: skip
    again = opened(**link)
    assert not again.error and not again.warning
    assert described(again) == described(page)
    assert control(again.text_input, "name").value == "50 % & more"
    assert again.button(key="start_search").label == "Start 3 trials"
    assert address(again) == link


def test_selected_data_is_in_the_address_before_the_page_shows_it(
    page: AppTest, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise a reload as soon as the classes are shown would lose them."""
    show, seen = data_picker.show, []

    def noted(*arguments: object, **named: object) -> None:
        seen.append(st.query_params.to_dict())
        show(*arguments, **named)

    monkeypatch.setattr(data_picker, "show", noted)
    control(page.selectbox, "data").set_value("mnist").run()
    assert seen[-1] == address(page) == {"preset": "mnist"}


def test_default_form_has_a_plain_address(page: AppTest) -> None:
    assert address(page) == {}


def test_link_to_a_preset_sets_its_data(folders: Path) -> None:
    page = opened(preset="mnist")
    assert (control(page.selectbox, "preset").value, control(page.selectbox, "data").value) == ("mnist", "mnist")
    assert described(page).dim == train_config("mnist").dim


def test_invalid_values_of_a_link_are_reported_and_dropped(folders: Path) -> None:
    wrong = {
        "preset": "best", "data": "folder:/etc", "init_from": "/etc/passwd", "size": "huge", "epochs": "0",
        "batch_size": "many", "grad_clip": "inf", "limit": "9" * 30, "pool": "", "flip": "2", "lr": "nan",
        "grid": "2", "space": "lr=" * 1000,
    }  # fmt: skip
    page = opened(**wrong, depth="3", optimizer="adamw", utm_source="mail", set_epochs="7")
    (warning,) = page.warning
    said = warning.value.replace("\\", "")
    assert all(f"{name}={text[:60]}" in said for name, text in wrong.items() if name != "pool")
    assert not page.error and not start(page).disabled
    config = described(page)
    assert config.model_copy(update={"data_root": "data"}) == train_config(
        "shapes", device="cpu", depth=3, optimizer="adamw"
    )
    assert address(page) == {"depth": "3", "optimizer": "adamw"}
    assert not page.run().warning


def test_one_click_restores_the_values_of_the_preset(page: AppTest) -> None:
    assert not any(button.key == "reset" for button in page.button), "nothing to go back from"
    setting(page, "epochs").set_value(0)
    setting(page, "pool").set_value("mean").run()
    page.button(key="reset").click().run()
    assert not page.exception and not page.error and not start(page).disabled
    assert described(page).model_copy(update={"data_root": "data"}) == train_config("shapes", device="cpu")
    assert not any(button.key == "reset" for button in page.button)


def test_nothing_can_be_started_on_data_whose_download_failed(page: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    from torchvision.datasets import CIFAR10

    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:9/cifar-10-python.tar.gz")  # a closed port
    control(page.selectbox, "data").set_value("cifar10").run()
    assert not start(page).disabled, "a run downloads what is not here"
    press(page, "Download CIFAR-10")
    for _ in range(2):
        assert len(page.error) == 1 and "could not be downloaded" in page.error[0].value
        assert start(page).disabled
        page.run()
    control(page.selectbox, "data").set_value("shapes").run()
    assert not page.error and not start(page).disabled


def test_failed_or_stopped_download_can_be_tried_again(page: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = threading.Event()

    def held(name: str, root: Path, progress: Callable[[int, int], object]) -> None:
        while not fails.wait(0.01):
            progress(1, 4)
        raise InvalidDataset("The network is down.")

    def offer() -> Any:
        return next(button for button in page.button if button.label == "Download CIFAR-10")

    monkeypatch.setattr(downloads, "download", held)
    monkeypatch.setattr(job_progress, "WAIT", 0.0)
    control(page.selectbox, "data").set_value("cifar10").run()
    offer().click().run()
    fails.set()
    until(lambda: page.run().error, "the failure")
    assert not offer().disabled
    fails.clear()
    offer().click().run()
    assert not page.error, "that of the download before"
    page.button(key="stop Downloading").click()
    until(lambda: button(page.run(), "stop Downloading") is None, "the stop")
    assert not page.exception and not page.error and not offer().disabled


def test_full_disk_is_reported_and_keeps_the_form(page: AppTest, folders: Path) -> None:
    page.secrets["limits"] = {"free_gb": 10**6}
    setting(page, "epochs").set_value(3).run()
    start(page).click().run()
    assert len(page.error) == 1 and "disk" in page.error[0].value
    assert setting(page, "epochs").value == 3 and not registry.list_runs()


@pytest.mark.parametrize(
    ("size", "count", "preset"),
    [((100, 80), 1200, "pictures"), ((40, 30), 1200, "cifar-cpu"), ((100, 80), 4, "fine-tune")],
)
def test_folder_below_the_roots_can_be_selected(folders: Path, size: tuple[int, int], count: int, preset: str) -> None:
    pictures(folders / "data" / "zoo", size, count=count)
    app = opened()
    control(app.selectbox, "data").set_value(f"folder:{folders / 'data' / 'zoo'}").run()
    assert not app.exception and not app.error
    assert control(app.selectbox, "preset").value == preset, "the recipe made for such pictures is proposed"
    assert described(app).data == f"folder:{folders / 'data' / 'zoo'}"
    assert described(app).init_from == ("cifar10" if preset == "fine-tune" else "")
    control(app.selectbox, "data").set_value("shapes").run()
    assert (control(app.selectbox, "preset").value, described(app).init_from) == ("shapes", "")


def test_level_of_nested_folders_is_chosen_and_in_the_link(folders: Path) -> None:
    for kind, names in {"fruit": ("apple", "pear"), "vegetables": ("carrot", "leek", "onion")}.items():
        pictures(folders / "data" / "food" / kind, classes=len(names), count=5)
        for label, name in enumerate(names):
            (folders / "data" / "food" / kind / f"class {label}").rename(folders / "data" / "food" / kind / name)
    spec = f"folder:{folders / 'data' / 'food'}"
    app = opened(data=spec)
    level = control(app.selectbox, "level")
    assert level.options == [
        "Level 1 has 2 classes (fruit, vegetables)",
        "Level 2 has 5 classes (apple, carrot, leek and 2 more)",
    ]
    assert "Level 1 is used" in texts(app, "info")
    level.set_value(f"{spec}#2").run()
    for again in (app, opened(**address(app))):
        assert not again.exception and not again.error
        assert address(again)["data"] == control(again.selectbox, "data").value == described(again).data == f"{spec}#2"
        assert any("5 classes." in caption.value for caption in again.caption)
    control(app.selectbox, "level").set_value(spec).run()
    assert described(app).data == spec
    assert any("were ignored" in one.value for one in opened(data=f"{spec}#7").warning)


def test_nothing_can_be_started_on_pictures_too_few_for_validation(folders: Path) -> None:
    pictures(folders / "data" / "zoo", (40, 30), count=4)
    app = opened(data=f"folder:{folders / 'data' / 'zoo'}")
    assert not start(app).disabled
    pictures(folders / "data" / "few", (40, 30), count=2)
    app = opened(data=f"folder:{folders / 'data' / 'few'}")
    assert any("four of a class are enough" in one.value for one in app.warning)
    assert start(app).disabled and not app.exception


def test_started_run_is_in_the_list_of_runs_at_once(page: AppTest) -> None:
    assert run_records.every_run() == []
    start(page).click().run()
    assert [run.id for run in run_records.every_run()] == [run.id for run in registry.list_runs()] != []


def test_page_is_closed_where_the_app_is_open_to_a_network(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_to_a_network(monkeypatch)
    page = opened()
    assert not page.button and not page.selectbox
    assert "closed" in page.title[0].value


def test_settings_to_compare_have_an_effect_and_those_of_training_come_first(folders: Path) -> None:
    def offered(**link: str) -> list[str]:
        return control(opened(**link).multiselect, "space_names").options

    muon, adamw = offered(preset="shapes"), offered(preset="mnist")
    title = setting_names.title
    assert muon[:3] == [title("lr"), title("muon_lr"), title("weight_decay")]
    assert title("muon_lr") not in adamw and title("magnitude") not in adamw
    assert title("workers") not in muon and title("lora_rank") not in muon
    assert {title("depth"), title("epochs"), title("seed")} <= set(muon)
    tuned = offered(preset="fine-tune", init_from="cifar10")
    assert title("lora_rank") in tuned and title("depth") not in tuned


def test_setting_to_compare_that_became_ineffective_is_dropped(folders: Path) -> None:
    page = opened(preset="shapes", space="muon_lr=0.1,0.2 lr=0.1,0.2")
    assert control(page.multiselect, "space_names").value == ["muon_lr", "lr"]
    control(page.selectbox, "set_optimizer").set_value("adamw").run()
    assert not page.exception
    assert control(page.multiselect, "space_names").value == ["lr"]


def test_every_preset_is_offered(page: AppTest) -> None:
    assert sorted(control(page.selectbox, "preset").options) == sorted(preset.title for preset in PRESETS.values())


def said(page: AppTest) -> str:
    return " ".join(one.proto.body for one in page.get("html"))


def test_preview_is_redrawn_only_after_relevant_changes(page: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[TrainConfig] = []
    real = augmentation_preview.preview
    monkeypatch.setattr(
        augmentation_preview, "preview", lambda config, images: drawn.append(config) or real(config, images)
    )
    for name, value, times in (("epochs", 3, 0), ("crop_padding", 1, 1), ("epochs", 4, 1), ("seed", 41, 2)):
        setting(page, name).set_value(value).run()
        assert not page.exception and len(drawn) == times
    assert drawn[0].crop_padding == 1 and drawn[1].seed == 41


def test_dry_run_shows_the_cost_of_a_run(page: AppTest) -> None:
    setting(page, "limit").set_value(100).run()
    assert "<span>Epochs × steps</span><b>8 × 2</b>" in said(page) and "not tried" in said(page)
    press(page, "Try a few steps")
    assert not page.exception and not page.error and "not tried" not in said(page)
    assert not page.warning, "it does not take long"
    assert not button(page, "cancel_trial"), "it is over"


def test_run_that_would_take_days_is_warned_of(folders: Path) -> None:
    pictures(folders / "data" / "zoo")
    page = opened(data=f"folder:{folders / 'data' / 'zoo'}")
    control(page.selectbox, "init_from").set_value("").run()
    control(page.selectbox, "preset").set_value("pictures").run()
    config = described(page)
    found = dry_run.DryRun(
        streamed=False, memory=10**9,
        seconds_per_epoch=7776.0, pictures_per_second=0.1, parts=1,
        device="cpu",
    )  # fmt: skip
    page.session_state["Train"].dry_run = (cost_preview.recipe_key(config, ("cpu",)), found)
    page.run()
    assert any("On this CPU all epochs take about 9 days" in one.value for one in page.warning)
    assert "<span>All epochs</span><b>about 9 days</b>" in said(page)


def test_model_that_exceeds_the_memory_is_refused_at_the_form(page: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pages.training.train_form.cost_preview.memory_of_this_machine", lambda: (8 << 30, 4 << 30))
    control(page.selectbox, "preset").set_value("pictures").run()
    setting(page, "limit").set_value(None)
    setting(page, "size").set_value("H/14").run()
    assert start(page).disabled and any("GB are free" in one.value for one in page.error)
    setting(page, "size").set_value("shapes")
    setting(page, "image_size").set_value(32)
    setting(page, "crop_padding").set_value(2)
    setting(page, "batch_size").set_value(4000).run()  # in as many parts as fit
    assert not start(page).disabled and not page.error


def test_run_is_named_after_its_model_and_data(page: AppTest) -> None:
    assert control(page.text_input, "name").placeholder == "ViT 3x48/4, 32 px"
    setting(page, "size").set_value("S/16")
    setting(page, "image_size").set_value(64).run()
    assert control(page.text_input, "name").placeholder == "ViT-S/16, 64 px"
    setting(page, "patch_size").set_value(8)
    setting(page, "dim").set_value(16)
    setting(page, "heads").set_value(2)
    setting(page, "mlp_dim").set_value(16)
    setting(page, "limit").set_value(50)
    setting(page, "depth").set_value(2).run()
    start(page).click().run()
    assert not page.exception
    (run,) = registry.list_runs()
    assert run.name == "ViT 2x16/8, 64 px" and run.id[16:].startswith("vit-")


def test_each_of_two_equal_gpus_can_be_selected(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gpus = [Device(f"cuda:{i}", "NVIDIA H100", 80 << 30, 70 << 30, 0.1) for i in range(2)]
    every = [Device("cpu", "CPU", 8 << 30, 4 << 30, None), *gpus]
    monkeypatch.setattr(run_records, "devices", lambda: {device.name: device for device in every})
    page = opened()
    assert page.radio(key="device").options == ["CPU", "NVIDIA H100", "NVIDIA H100 (2)", "Several GPUs"]
    assert page.radio(key="device").value == "cuda:0"
    for name in ("cuda:1", "cuda:0"):
        page.radio(key="device").set_value(name).run()
        run(page)
        assert page.radio(key="device").value == name


@pytest.mark.parametrize("installed", [(), ("mlflow",)])
def test_installed_tracker_is_offered(
    folders: Path, monkeypatch: pytest.MonkeyPatch, installed: tuple[str, ...]
) -> None:
    from vit.training.trackers import plugin

    monkeypatch.setattr(plugin, "available", lambda: installed)
    app = opened()
    offered = [box for box in app.selectbox if box.key == settings.first_key("track")]
    assert [box.options for box in offered] == [["none", *installed]] * bool(installed)
    for box in offered:
        box.set_value("mlflow").run()
        assert described(app).track == "mlflow" and not app.error


def test_unequal_classes_are_balanced_by_a_click(folders: Path) -> None:
    pictures(folders / "data" / "zoo", classes=2, count=5)
    rare = folders / "data" / "zoo" / "class 0"
    common = folders / "data" / "zoo" / "class 1"
    for number in range(40):
        shade = Image.new("RGB", (40, 30), (number, 255 - number, 7))
        shade.save(common / f"more {number}.png")
    app = opened(data=f"folder:{folders / 'data' / 'zoo'}", balance="none")
    assert rare.name in texts(app) and "Nothing balances them" in texts(app)
    app.button(key="balance_classes").click().run()
    assert setting(app, "balance").value == "auto" and "The loss balances them" in texts(app)
    assert button(app, "balance_classes") is None


def test_start_is_the_pages_only_primary_button(folders: Path) -> None:
    app = opened(preset="fine-tune", data="shapes", init_from="cifar10", limit="60")
    assert button(app, "ladder_train") is not None
    primary = [one.key for one in app.button if one.proto.type == "primary"]
    assert primary == ["start", "start_search"], "the second one is in a closed expander"
