"""Page Checkpoints: list, upload, rename, delete."""

import io
import json
import re
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
import timm
import torch
from hub_server import HubServer
from patience import until
from safetensors.torch import load_file, save
from streamlit.testing.v1 import AppTest
from tiny import fill
from transformers import ViTConfig, ViTForImageClassification, ViTModel

from pages.looking import checkpoint_list, fetching
from pages.server import access
from pages.shared import job_progress
from tests.pages.controls import app_page, button, press, run, texts
from vit import checkpoints
from vit.checkpoints import load, manage
from vit.checkpoints.hub import models as hub
from vit.checkpoints.hub.recommended import RECOMMENDED
from vit.checkpoints.save import save_checkpoint
from vit.images.preprocess import Preprocess

APP = str(Path(__file__).parents[2] / "app.py")
STOP = "stop Downloading ada/tiny"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Callable[..., Any]) -> Path:
    """A shelf with one of our checkpoints and a timm file with an unknown number of heads."""
    monkeypatch.setenv("VIT_CHECKPOINTS", str(tmp_path))
    model = fill(build(num_classes=3))
    size = model.config.image_size
    save_checkpoint(tmp_path / "ours", model, ["a", "b", "c"], Preprocess(size), {"accuracy": 0.75, "data": "toys"})
    theirs = fill(
        timm.create_model("vit_base_patch16_224", img_size=32, patch_size=8, embed_dim=64, depth=1, num_heads=4)
    )
    weights = save({name: tensor.contiguous() for name, tensor in theirs.state_dict().items()})
    manage.add({"w.safetensors": io.BytesIO(weights)}, "theirs")
    return tmp_path


page = partial(app_page, "checkpoints")


def test_shelf_lists_all_checkpoints(root: Path) -> None:
    app = page()
    shown = app.dataframe[0].value
    assert list(shown["Name"]) == ["ours", "theirs"]
    assert shown["Test accuracy"][0] == 75 and shown["Trained on"][0] == "toys"
    assert shown["File from"][0] == "this app"
    assert list(shown["Note"]) == ["", "Heads unknown"]


def test_unknown_value_is_an_empty_cell(root: Path) -> None:
    (root / "broken").mkdir()
    (root / "broken" / "model.safetensors").write_bytes(b"junk")
    table = page().dataframe[0]
    unknown = table.value[["Test accuracy", "Parameters", "Classes"]].iloc[0]
    assert table.value["Note"][0] == "Cannot be opened" and unknown.isna().all()
    assert table.proto.HasField("placeholder") and table.proto.placeholder == ""


def test_checkpoint_that_takes_long_holds_up_no_other(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    proceed, real = threading.Event(), checkpoints.summarise

    def slow(folder: Path) -> Any:
        if folder.name == "ours":
            proceed.wait()
        return real(folder)

    with monkeypatch.context() as patch:
        patch.setattr(load, "summarise", slow)
        patch.setattr(checkpoint_list, "WAIT", 0.0)
        patch.setattr(checkpoint_list, "WAIT_EACH", 0.2)
        until(lambda: list(page().dataframe[0].value["Note"]) == ["Cannot be opened", "Heads unknown"], "the others")
        assert "still being read" in texts(page(name="ours"))
        proceed.set()
        until(lambda: list(page().dataframe[0].value["Note"]) == ["", "Heads unknown"], "its summary")


def test_checkpoint_that_takes_too_much_work_is_a_row_with_a_sentence(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = {"w": torch.zeros(4), "many": {str(number): number for number in range(20_000)}}
    torch.save(content, root / "ours" / "many.pt")
    (root / "ours" / "model.safetensors").unlink()
    monkeypatch.setattr(checkpoint_list, "SUMMARY_SECONDS", 0.0)
    assert page().dataframe[0].value["Note"][0] == "Cannot be opened"
    assert "takes more than 0 s" in texts(page(name="ours"))


def test_missing_number_of_heads_is_asked_for_in_the_explorer(root: Path) -> None:
    app = page(name="theirs")
    assert app.info[0].value.endswith("Open it in Explore and choose the number there.")


def test_small_model_is_offered_as_a_lesson(root: Path) -> None:
    app = page(name="ours")
    app.selectbox(key="lesson ours").set_value("de")
    app.button(key="make lesson ours").click()
    assert not run(app).error
    assert re.fullmatch(r"Make it \(about \d\.\d MB\)", app.button(key="make lesson ours").label)

    def files() -> list[str]:
        return [button.label for button in app.get("download_button") if "lesson" in button.label]

    (label,) = files()
    assert re.fullmatch(r"Download the lesson \(\d\.\d MB\)", label)
    app.run()  # close the popover and open it again
    assert files() == [label]
    app.selectbox(key="lesson ours").set_value("en").run()  # of files that were not created
    assert files() == []


def test_reason_why_a_lesson_is_impossible_is_shown(root: Path, build: Callable[..., Any]) -> None:
    save_checkpoint(root / "odd", fill(build(activation="silu")), list("abcde"), Preprocess((32, 32)), {})
    app = page(name="odd")
    app.button(key="make lesson odd").click()
    app.run()
    assert app.error[0].value.startswith("odd does not fit into a lesson")


@pytest.mark.parametrize("new", ["best-one", "zebra"])  # first and last of the list
def test_checkpoint_is_renamed_and_the_link_follows(root: Path, new: str) -> None:
    app = page(name="ours")
    app.text_input(key="name ours").set_value(new)
    press(app, "Rename")
    assert sorted(path.name for path in root.iterdir()) == sorted([new, "theirs"])
    assert app.query_params["name"] == new


def test_taken_name_is_refused(root: Path) -> None:
    app = page(name="ours")
    app.text_input(key="name ours").set_value("theirs")
    press(app, "Rename")
    assert "already" in app.error[0].value
    assert sorted(path.name for path in root.iterdir()) == ["ours", "theirs"]


def test_deletion_asks_for_confirmation(root: Path) -> None:
    app = page(name="theirs")
    press(app, "Delete")
    assert (root / "theirs").exists()
    app.button(key="really delete").click()
    app.run()
    assert not (root / "theirs").exists() and (root / "ours").exists()


def test_upload_is_stored_under_its_name(root: Path) -> None:
    app = page()
    weights = (root / "theirs" / "w.safetensors").read_bytes()
    app.file_uploader[0].set_value([("My Model.safetensors", weights, "application/octet-stream")])
    app.run()
    assert app.text_input(key="new name").value == "my-model"
    press(app, "Add")
    assert [path.name for path in (root / "my-model").iterdir()] == ["My_Model.safetensors"]
    assert app.query_params["name"] == "my-model"
    assert json.loads(app.get_by_key("scroll").proto.json) == "my-model", "the page scrolls to it"
    assert json.loads(app.run().get_by_key("scroll").proto.json) == "", "once"


def test_refused_upload_can_be_stored_under_another_name(root: Path) -> None:
    app = page()
    weights = (root / "theirs" / "w.safetensors").read_bytes()
    app.file_uploader[0].set_value([("ours.safetensors", weights, "application/octet-stream")])
    app.run()
    for name in ("ours", "another"):
        app.text_input(key="new name").set_value(name)
        press(app, "Add")
        assert ["already" in error.value for error in app.error] == [True] * (name == "ours")
    assert (root / "another" / "ours.safetensors").read_bytes() == weights


@pytest.mark.parametrize(
    ("file", "name"),
    [("checkpoint.pth.tar", "checkpoint"), ("ours.safetensors", "ours-2"), ("My_Model.bin", "my_model")],
)
def test_suggested_name_is_free(root: Path, file: str, name: str) -> None:
    app = page()
    app.file_uploader[0].set_value([(file, b"", "application/octet-stream")])
    run(app)
    assert app.text_input(key="new name").value.replace("-", "_") == name.replace("-", "_")


def test_weights_are_named_after_a_config_uploaded_later(root: Path) -> None:
    app = page()
    weights, config = (("model.safetensors", b""), ("config.json", b'{"architecture": "vit_base_patch16_224"}'))
    for files, name in (([weights], "model"), ([weights, config], "vit_base_patch16_224")):
        app.file_uploader[0].set_value([(*file, "application/octet-stream") for file in files]).run()
        assert not app.exception
        assert app.text_input(key="new name").value == name


def test_pth_tar_is_taken_for_a_pth(root: Path) -> None:
    file = io.BytesIO()
    torch.save({"state_dict": load_file(root / "theirs" / "w.safetensors")}, file)
    app = page()
    app.file_uploader[0].set_value([("model_best.pth.tar", file.getvalue(), "application/x-tar")])
    app.run()
    app.text_input(key="new name").set_value("best")
    assert not press(app, "Add").error
    assert [path.name for path in (root / "best").iterdir()] == ["model_best.pth"]


def test_trainers_files_are_uploaded_together_and_several_models_are_offered(root: Path) -> None:
    """State needed only to resume a training is left out; another model of the file can be selected."""
    state = load_file(root / "theirs" / "w.safetensors")
    file, optimizer = io.BytesIO(), io.BytesIO()
    torch.save({"student": state, "teacher": {name: tensor + 1 for name, tensor in state.items()}}, file)
    torch.save({"state": {0: torch.zeros(3)}}, optimizer)
    app = page()
    app.file_uploader[0].set_value(
        [
            ("last.ckpt", file.getvalue(), "application/octet-stream"),
            ("optimizer.pt", optimizer.getvalue(), "application/octet-stream"),
            ("trainer_state.json", b"{}", "application/json"),
        ]
    )
    app.run()
    assert not press(app, "Add").error
    assert [path.name for path in (root / "last").iterdir()] == ["last.ckpt"]
    assert manage.summarise(root / "last").others == ("student",)
    explore = app_page(checkpoint="last#student", heads="4")
    assert not explore.error
    (picker,) = (box for box in explore.selectbox if box.label == "Checkpoint")
    assert picker.value == "last#student" and "last" in picker.options


GUESSES: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "head": ("fc", 3, ("`fc` is taken for the head", "reads the pooler", "so they are numbered", "Also assumed:")),
    "no head": ("projection", 64, ("By its name `projection` is no classifier",)),
    "numbers": ("age_regressor", 1, ("`age_regressor` is taken for the head", "estimates numbers")),
}


@pytest.mark.parametrize("name", GUESSES)
def test_explorer_states_beside_the_answer_what_is_guessed(name: str, root: Path) -> None:
    layer, outputs, said = GUESSES[name]
    sizes = dict(hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=96, image_size=32)
    whole = torch.nn.ModuleDict({"vit": ViTModel(ViTConfig(**sizes, patch_size=8))})
    whole[layer] = torch.nn.Linear(64, outputs)
    (root / "guessed").mkdir()
    torch.save(whole.state_dict(), root / "guessed" / "best.pth")
    explore = app_page(checkpoint="guessed", heads="4")
    assert not explore.error
    assert any(all(words in caption.value for words in said) for caption in explore.main.caption)
    assert any("It estimates" in text.value for text in explore.markdown) is (name == "numbers")


def test_empty_shelf_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIT_CHECKPOINTS", str(tmp_path))
    app = page()
    assert "no checkpoint yet" in app.info[0].value
    assert app.header[-1].value == "Add one"


def test_shelf_is_read_only_over_a_network(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "is_local", lambda: False)
    app = page()
    labels = {button.label for button in app.button}
    assert "Delete" not in labels and "Rename" not in labels
    assert not app.file_uploader


@pytest.fixture
def published(root: Path, tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Publish a tiny transformers model on a Hub in this process; return its pinned name."""
    folder = tmp_path_factory.mktemp("theirs")
    small = dict(hidden_size=64, num_hidden_layers=1, num_attention_heads=4, intermediate_size=96, image_size=32)
    fill(ViTForImageClassification(ViTConfig(patch_size=8, num_labels=3, **small))).save_pretrained(folder)
    monkeypatch.setenv("VIT_DOWNLOADS", str(tmp_path_factory.mktemp("downloads")))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", False)
    with HubServer().running() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url)
        yield f"ada/tiny@{server.publish('ada/tiny', folder)}"


def fetch(app: AppTest, name: str) -> AppTest:
    next(field for field in app.text_input if field.label.startswith("Name on the Hugging")).set_value(name)
    next(button for button in app.button if button.label == "Fetch").click()
    return app.run()


def test_checkpoint_is_fetched_by_name_listed_and_deleted(published: str) -> None:
    app = fetch(page(), "ada/tiny")
    assert not app.error
    assert app.query_params["name"] == published
    assert hub.shortened(published) in list(app.dataframe[0].value["Name"])
    app = fetch(page(name="ours"), "ada/tiny")  # which changes nothing in the list
    assert app.query_params["name"] == published
    assert "Rename" not in [button.label for button in app.button]  # its name states its source
    press(app, "Delete")
    app.button(key="really delete").click()
    app.run()
    assert hub.shortened(published) not in list(app.dataframe[0].value["Name"])


@pytest.mark.parametrize("name", ["ada/other", "not a name", "../../etc"])
def test_failed_download_is_reported_in_one_sentence(published: str, name: str) -> None:
    app = fetch(page(), name)
    assert len(app.error) == 1 and app.error[0].value.endswith(".")


@pytest.fixture
def downloading(published: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[AppTest, threading.Event]]:
    """Request a checkpoint whose download waits for the event."""
    proceed, fetch_now = threading.Event(), hub.fetch

    def held(name: str, progress: Callable[[int, int], None], keep_free: int) -> hub.DownloadedCheckpoint:
        while not proceed.wait(0.01):
            progress(1, 4)
        return fetch_now(name, progress, keep_free)

    monkeypatch.setattr(hub, "fetch", held)
    monkeypatch.setattr(job_progress, "WAIT", 0.0)
    yield fetch(page(), "ada/tiny"), proceed
    proceed.set()


def test_download_goes_on_while_other_controls_are_used(
    published: str, downloading: tuple[AppTest, threading.Event]
) -> None:
    app, proceed = downloading
    for _ in range(2):  # a click elsewhere
        assert not app.exception and button(app, STOP) is not None
        app.run()
    proceed.set()
    until(lambda: button(app.run(), STOP) is None, "the end of the download")
    assert not app.error and app.query_params["name"] == published
    assert hub.shortened(published) in list(app.dataframe[0].value["Name"])


def test_download_is_stopped(published: str, downloading: tuple[AppTest, threading.Event]) -> None:
    app, _ = downloading
    app.button(key=STOP).click()
    until(lambda: button(app.run(), STOP) is None, "the end of the download")
    assert not app.error and not app.exception
    assert hub.shortened(published) not in list(app.dataframe[0].value["Name"])


def test_card_shows_its_download(published: str, monkeypatch: pytest.MonkeyPatch) -> None:
    card = RECOMMENDED[0]._replace(repository="ada/tiny", commit=published.rpartition("@")[2])
    monkeypatch.setattr(fetching, "RECOMMENDED", (card,))
    app = page()
    for _ in range(2):  # again after it was deleted
        app.button(key="recommended ada/tiny").click().run()
        assert not app.exception and app.query_params["name"] == published
        hub.remove(published)
        app.run()


@pytest.fixture
def card(published: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """Recommend the published model; return the key of its button."""
    monkeypatch.setattr(fetching, "RECOMMENDED", (RECOMMENDED[0]._replace(repository="ada/tiny"),))
    return "recommended ada/tiny"


def test_visitor_without_permission_cannot_stop_a_download(
    card: str, downloading: tuple[AppTest, threading.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    (recommended,) = fetching.RECOMMENDED
    trusted = page()
    trusted.button(key=card).click().run()
    stop = f"stop Downloading {recommended.name}"
    assert button(trusted, stop) is not None
    monkeypatch.setattr(access, "is_local", lambda: False)
    assert button(page(), stop) is None


def test_click_after_permission_was_withdrawn_downloads_nothing(card: str, monkeypatch: pytest.MonkeyPatch) -> None:
    app, fetched = page(), list[str]()
    monkeypatch.setattr(hub, "fetch", lambda name, *_: fetched.append(name))
    monkeypatch.setattr(access, "is_local", lambda: False)
    app.button(key=card).click().run()
    assert not app.exception and not fetched


def test_link_to_a_remote_checkpoint_fills_the_form(root: Path) -> None:
    app = page(fetch="ada/tiny")
    assert "ada/tiny" in [field.value for field in app.text_input]
