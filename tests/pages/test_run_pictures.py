"""A trained model opens on page Explore with pictures of its test split."""

from pathlib import Path

import pytest
from PIL import Image
from streamlit.testing.v1 import AppTest

from pages.looking import run_pictures
from pages.server import access, uploaded_pictures
from tests.pages.controls import app_page
from vit.training.loop.presets import train_config
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
    entries = run_pictures.entries(run)
    assert sorted(name.split(",")[0] for name, _ in entries) == ["dark", "dark", "light", "light"]
    for name, key in entries:
        label, _, file = name.partition(", ")
        assert uploaded_pictures.find(key) == (folder / label / file).read_bytes()
    assert page.query_params["upload"] == entries[0][0] and page.query_params["picture"] == entries[0][1]
    assert "pictures" in page.query_params


def test_selected_picture_is_shown(run: registry.Run) -> None:
    assert "picture" not in opened(run, sample="horse").query_params


def test_deleted_pictures_are_stored_again(run: registry.Run, tmp_path: Path) -> None:
    first = run_pictures.entries(run)
    for file in (tmp_path / "pictures").iterdir():
        file.unlink()
    assert run_pictures.entries(run) == first
    assert all(uploaded_pictures.is_stored(key) for _, key in first)


def test_run_without_its_pictures_opens_with_a_sample(run: registry.Run, folder: Path) -> None:
    folder.rename(folder.with_name("elsewhere"))
    page = opened(run)
    assert page.query_params["sample"] == first_view.SAMPLE and "picture" not in page.query_params


def test_stranger_does_not_see_pictures_of_a_folder(run: registry.Run, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.setattr(access, "may_train", lambda: False)
    assert run_pictures.entries(run) == []
