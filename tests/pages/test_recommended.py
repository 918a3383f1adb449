"""Recommended checkpoints of the Hub, one click away; without a network it says so."""

from pathlib import Path

import pytest
from streamlit.testing.v1 import AppTest

from pages.shared.escape import plain
from tests.pages.controls import app_page
from vit.checkpoints.hub import models as hub
from vit.checkpoints.hub.recommended import RECOMMENDED
from vit.errors import UserError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def page(shipped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AppTest:
    for name, folder in (("CHECKPOINTS", shipped), ("RUNS", tmp_path / "runs"), ("DOWNLOADS", tmp_path / "downloads")):
        monkeypatch.setenv(f"VIT_{name}", str(folder))
    return app_page("checkpoints")


@pytest.mark.parametrize("one", RECOMMENDED, ids=lambda one: one.title)
def test_each_is_pinned_to_a_commit(one: object) -> None:
    name = hub.parse(one.name)  # type: ignore[attr-defined]
    assert name is not None and name.pinned and not name.torchvision


def test_all_are_offered_with_size_and_licence(page: AppTest) -> None:
    assert not page.exception
    buttons = [one.key for one in page.button if (one.key or "").startswith("recommended ")]
    assert buttons == [f"recommended {one.repository}" for one in RECOMMENDED]
    captions = [one.value for one in page.caption]
    for one in RECOMMENDED:
        assert f"{one.megabytes:,} MB · {plain(one.licence)}" in captions


def test_click_fetches_the_pinned_commit(page: AppTest, monkeypatch: pytest.MonkeyPatch) -> None:
    fetched = []

    def unreachable(name: str, *_: object) -> None:
        fetched.append(name)
        raise UserError("huggingface.co cannot be reached.")

    monkeypatch.setattr(hub, "fetch", unreachable)
    page.button(key=f"recommended {RECOMMENDED[1].repository}").click().run()
    assert fetched == [RECOMMENDED[1].name]
    assert [one.value for one in page.error] == [plain("huggingface.co cannot be reached.")]
    assert not page.exception
