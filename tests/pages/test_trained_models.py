"""A trained model opens on page Explore with pictures of its test split."""

import json
from pathlib import Path

import pytest
from PIL import Image
from short_runs import write_dead_run
from streamlit.testing.v1 import AppTest

from pages.looking import dataset_pictures
from pages.server import access, uploaded_pictures
from pages.shared import trained_models
from pages.training import models, run_records
from tests.pages.controls import app_page
from vit.errors import UserError
from vit.training.loop.presets import train_config
from vit.training.loop.run_folder import hold_run
from vit.training.loop.train import train
from vit.training.runs import registry
from vit.view import first_view

ROOT = Path(__file__).parents[2]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Twelve pictures of each of two classes, two of them for testing."""
    for label, name in enumerate(("dark", "light")):
        (tmp_path / "data" / name).mkdir(parents=True)
        for number in range(20):
            shade = 100 * label + number
            Image.new("RGB", (8, 8), (shade, shade, shade)).save(tmp_path / "data" / name / f"{number:02}.png")
    return tmp_path / "data"


@pytest.fixture
def run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> registry.Run:
    for name in ("runs", "pictures"):
        monkeypatch.setenv(f"VIT_{name.upper()}", str(tmp_path / name))
    sizes = dict(image_size=8, patch_size=4, dim=16, depth=1, heads=2, mlp_dim=16, epochs=1, batch_size=8)
    train(train_config(data=f"folder:{folder}", **sizes), tmp_path / "runs" / "20261125-000000-shades-0000")
    return registry.find_run("20261125-000000-shades-0000")


def opened(run: registry.Run, **link: str) -> AppTest:
    return app_page(checkpoint=f"run-{run.id}", **link)


def test_run_opens_with_test_pictures_of_all_classes(run: registry.Run, folder: Path) -> None:
    page = opened(run)
    entries = dataset_pictures.entries(f"folder:{folder}", "data")
    assert sorted(name.split("/")[0] for name, _ in entries) == ["dark", "dark", "light", "light"]
    for name, key in entries:
        assert uploaded_pictures.find(key) == (folder / name).read_bytes()
    assert page.query_params["upload"] == entries[0][0] and page.query_params["picture"] == entries[0][1]
    assert "pictures" in page.query_params


def test_selected_picture_is_shown(run: registry.Run) -> None:
    assert "picture" not in opened(run, sample="horse").query_params


def test_deleted_pictures_are_stored_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIT_PICTURES", str(tmp_path / "pictures"))
    first = dataset_pictures.entries(f"folder:{folder}", "data")
    for file in (tmp_path / "pictures").iterdir():
        file.unlink()
    assert dataset_pictures.entries(f"folder:{folder}", "data") == first
    assert all(uploaded_pictures.is_stored(key) for _, key in first)


def test_run_without_its_pictures_opens_with_a_sample(run: registry.Run, folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    page = opened(run)
    assert page.query_params["sample"] == first_view.SAMPLE and "picture" not in page.query_params


def test_stranger_does_not_see_pictures_of_a_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "may_train", lambda: False)
    assert dataset_pictures.entries(f"folder:{folder}", "data") == []


def test_checkpoint_of_a_waiting_run_is_kept(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    (tmp_path / "runs").mkdir()
    run = write_dead_run(tmp_path / "runs")
    config = train_config(data="shapes", size="shapes", init_from="mine")
    (run / "config.json").write_text(config.model_dump_json(exclude={"image_size", "patch_size", "dim"}))
    models.register()
    trained_models.check_not_awaited("mine")  # it is no waiting run
    (tmp_path / "runs" / ".queue").mkdir()
    (tmp_path / "runs" / ".queue" / "queue.json").write_text(json.dumps({"waiting": [run.name], "held": {}}))
    run_records.forget()
    with hold_run(run), pytest.raises(UserError, match="The waiting run 'dead' starts from it"):
        trained_models.check_not_awaited("mine")
