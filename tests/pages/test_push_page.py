"""Pushing to the Hub from the pages: a preview precedes it, and the button exists only for permitted users."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hub_server import HubServer, empty_hub
from streamlit.testing.v1 import AppTest
from written_runs import write_run

from pages.server import access
from pages.training import run_records
from tests.pages.controls import app_page, press
from vit.checkpoints.save import save_checkpoint
from vit.images.preprocess import Preprocess

APP = str(Path(__file__).parents[2] / "app.py")
REPOSITORY = "ada/tiny"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Callable[..., Any]) -> Iterator[HubServer]:
    """A Hub with its token in the environment, one of our checkpoints, and a finished run."""
    with empty_hub(tmp_path) as server:
        monkeypatch.setenv("HF_TOKEN", server.token)
        monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
        model = build(num_classes=3)
        save_checkpoint(tmp_path / "checkpoints" / "ours", model, ["a", "b", "c"], Preprocess(model.config.image_size))
        (tmp_path / "runs").mkdir()
        run_records.forget()
        yield server


def look(app: AppTest, repository: str) -> AppTest:
    press(app, "Push to the Hub")
    app.text_input(key="push repository").set_value(repository)
    return press(app, "Show what would be uploaded")


def test_plan_is_shown_and_then_pushed(server: HubServer) -> None:
    app = look(app_page("checkpoints", name="ours"), REPOSITORY)
    words = " ".join(text.value for text in app.markdown)
    assert "a new private repository" in words and "model" in words and "README" in words
    assert not server.repositories
    assert not press(app, "Push").error
    revision = server.repositories[REPOSITORY].branches["main"]
    assert server.repositories[REPOSITORY].closed == "private"
    assert app.code[0].value == f"vit classify PICTURE --checkpoint {REPOSITORY}@{revision}"
    links = {link.proto.url for link in app.get("link_button")}
    assert f"{server.url}/{REPOSITORY}/commit/{revision}" in links


def test_best_checkpoint_of_a_finished_run_is_pushed(server: HubServer, tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs", "Toys")
    app = look(app_page("runs", run=[run], view="results"), REPOSITORY)
    press(app, "Push")
    there = server.repositories[REPOSITORY]
    best = tmp_path / "runs" / run / "checkpoints" / "best" / "model.safetensors"
    assert there.commits[there.branches["main"]]["model.safetensors"] == best.read_bytes()


def test_unfinished_run_has_no_such_button(server: HubServer, tmp_path: Path) -> None:
    run = write_run(tmp_path / "runs", "Toys", outcome="stopped")
    assert "Push to the Hub" not in labels(app_page("runs", run=[run], view="results"))


def test_refusal_of_the_hub_is_reported_in_one_sentence(server: HubServer) -> None:
    app = look(app_page("checkpoints", name="ours"), "not a name")
    assert len(app.error) == 1 and "is not the name of a repository" in app.error[0].value
    app.text_input(key="push repository").set_value("bob/tiny")
    press(press(app, "Show what would be uploaded"), "Push")
    assert len(app.error) == 1 and "may not write to bob/tiny" in app.error[0].value and not app.exception


@pytest.mark.parametrize("why", ["no token", "a network", "not ours"])
def test_users_who_cannot_push_see_no_button(server: HubServer, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    if why == "no token":
        monkeypatch.delenv("HF_TOKEN")
    elif why == "a network":
        monkeypatch.setattr(access, "is_local", lambda: False)
    else:
        server.publish("ada/theirs", {"config.json": b"{}"})
        monkeypatch.setattr("vit.checkpoints.load.OURS", "nobody's")
    app = app_page("checkpoints", name="ours")
    assert "Push to the Hub" not in labels(app)


def test_user_whose_permission_was_withdrawn_pushes_nothing(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    app = look(app_page("checkpoints", name="ours"), REPOSITORY)
    monkeypatch.setattr(access, "may_train", lambda: False)
    press(app, "Push")
    assert not server.repositories


def test_token_is_on_no_page(server: HubServer) -> None:
    app = look(app_page("checkpoints", name="ours"), REPOSITORY)
    assert server.token not in str(app.main)


def labels(app: AppTest) -> set[str]:
    return {button.label for button in app.button}
