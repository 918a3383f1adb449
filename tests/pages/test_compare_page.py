"""Page Compare without a browser, side by side: empty, normal and error state."""

import json
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from streamlit.testing.v1 import AppTest

from pages.looking.comparison import side_by_side
from pages.server import access
from tests.pages.compare_page import png, show, write_checkpoints
from tests.pages.controls import app_page, control, run, texts
from tests.pages.offered import payload, sent_to
from vit import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.data.shapes import SHAPES, shapes
from vit.images import samples
from vit.images.preprocess import Preprocess
from vit.training.loop.config import TrainConfig
from vit.training.loop.snapshot_writer import SnapshotWriter


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Callable[..., Any]) -> Path:
    """A folder with the shipped checkpoint, one of another grid, and one without classes; no runs, no data."""
    return write_checkpoints(tmp_path, monkeypatch, build)


@pytest.fixture
def stored_run(checkpoints: Path, build: Callable[..., Any]) -> str:
    """A run with two stored epochs."""
    folder = checkpoints.parent / "runs" / "20260101-120000-shapes-abcd"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(TrainConfig(epochs=2).model_dump_json())
    (folder / "about.json").write_text(json.dumps({"name": "Two <b> epochs", "created": time.time()}))
    drawn, _ = shapes(3, 32, seed=2)
    writer = SnapshotWriter(folder / "probes", drawn.images, drawn.labels.tolist(), SHAPES, Preprocess((32, 32)))
    for epoch in (1, 2):
        writer.store(epoch, build(epoch, num_classes=4))
    return folder.name


def grids(page: AppTest) -> list[list[int]]:
    """Return the grids of the browser's two payloads."""
    return [payload(page, f"{side} feeder")[0]["grid"] for side in "ab"]


def views(page: AppTest) -> list[dict[str, Any]]:
    """Return the data sent to the two viewers."""
    return [sent_to(page, f"{side} viewer") for side in "ab"]


def test_page_opens_with_attention_beside_relevance_of_one_picture(checkpoints: Path) -> None:
    page = show()
    assert not page.error
    assert grids(page) == [[8, 8], [8, 8]]
    left, right = views(page)
    assert (left["seed"]["view"], right["seed"]["view"]) == ("attention", "relevance")
    assert left["group"] == right["group"] and left["ownView"]
    assert -1 <= float(page.metric[0].value.replace("−", "-")) <= 1
    assert "Red" in texts(page) and "attention, block 6, mean of heads" in texts(page)


def test_link_chooses_both_sides(checkpoints: Path) -> None:
    page = show(b_sample="temple", b_method="legrad", a_view="rollout", b_target="cat", token="9", pinned="1")
    assert not page.error
    assert page.selectbox(key="b_sample").value == "temple" and page.selectbox(key="b_target").value == 3
    left, right = views(page)
    assert left["seed"]["view"] == "rollout" and right["method"]["title"] == "LeGrad"
    assert [side["seed"]["token"] for side in (left, right)] == [9, 9]
    assert "the left one is shown" in texts(page)


@pytest.fixture
def twin(checkpoints: Path, build: Callable[..., Any]) -> str:
    """Save another checkpoint with the shipped one's classes in another order."""
    labels = list(reversed(load_checkpoint("cifar10").labels))
    save_checkpoint(checkpoints / "twin", build(num_classes=len(labels)), labels, Preprocess((32, 32)))
    return "twin"


def test_two_checkpoints_share_picture_class_and_view(checkpoints: Path, twin: str) -> None:
    page = show(b_checkpoint=twin, a_sample="horse", a_target="horse", a_method="legrad", a_view="relevance")
    assert not page.error
    left, right = views(page)
    assert [side["seed"]["view"] for side in (left, right)] == ["relevance", "relevance"] and not left["ownView"]
    assert [(side["method"]["title"], side["method"]["target"]) for side in (left, right)] == [("LeGrad", "horse")] * 2
    pictures = [payload(page, f"{side} feeder")[1]["picture"].tobytes() for side in "ab"]
    assert pictures[0] == pictures[1]
    keys = {one.key for one in page.selectbox}
    assert "a_sample" in keys and "b_sample" not in keys and "b_target" not in keys
    page.selectbox(key="a_sample").set_value("temple").run()
    changed = [payload(page, f"{side} feeder")[1]["picture"].tobytes() for side in "ab"]
    assert changed[0] == changed[1] != pictures[0]


def test_class_unknown_to_the_other_checkpoint_is_chosen_there(checkpoints: Path) -> None:
    page = show(b_checkpoint="coarse")
    assert page.selectbox(key="b_target").value in range(4)


def test_sides_separate_with_their_shared_picture_and_rejoin(checkpoints: Path, twin: str) -> None:
    page = show(b_checkpoint=twin, a_sample="horse")
    page.toggle(key="apart").set_value(True).run()
    assert not page.exception and page.selectbox(key="b_sample").value == "horse"
    page.selectbox(key="b_sample").set_value("temple").run()
    control(page.selectbox, "b_target").set_value(3).run()
    assert views(page)[0]["ownView"] and page.query_params["apart"] in ("1", ["1"])
    page.toggle(key="apart").set_value(False).run()
    assert not page.exception and not [name for name in page.query_params if name in side_by_side.OWN]
    assert not views(page)[0]["ownView"] and "b_sample" not in {one.key for one in page.selectbox}


def test_link_to_a_class_that_the_model_lacks_is_explained(checkpoints: Path) -> None:
    page = show(a_target="moa")
    assert "cifar10 has no class “moa”" in texts(page)
    assert "has no class" not in texts(show(a_target="cat"))


def test_older_links_without_shared_sides_show_the_same(checkpoints: Path, twin: str) -> None:
    page = show(b_checkpoint=twin, b_view="relevance")
    assert [side["seed"]["view"] for side in views(page)] == ["attention", "relevance"]
    assert page.toggle(key="apart").value


@pytest.mark.parametrize(("view", "other"), [("relevance", "attention"), ("rollout", "relevance"), ("", "relevance")])
def test_page_initially_shows_the_selection_of_explore(checkpoints: Path, view: str, other: str) -> None:
    chosen = {"sample": "temple", "target": "cat", "method": "legrad", "token": "9", "pinned": "1"}
    page = app_page(**chosen, **({"view": view} if view else {}))
    page.query_params.clear()
    page.switch_page("pages/compare.py").run()
    assert not page.exception and not page.error
    assert page.selectbox(key="a_sample").value == "temple" and page.selectbox(key="a_target").value == 3
    sides = views(page)
    assert [side["seed"]["view"] for side in sides] == [view or "attention", other]
    assert [side["seed"]["token"] for side in sides] == [9, 9] and sides[0]["method"]["title"] == "LeGrad"
    page.selectbox(key="a_sample").set_value("horse").run()
    page.query_params.clear()
    page.switch_page("pages/explore.py").run()
    page.query_params.clear()
    page.switch_page("pages/compare.py").run()
    assert page.selectbox(key="a_sample").value == "horse"  # as it was left


def test_two_equal_maps_are_reported_as_equal(checkpoints: Path) -> None:
    page = show(b_view="attention")
    assert "Both maps are the same" in texts(page) and page.metric[0].value == "1.00"


def test_different_grids_have_viewers_and_a_reason_for_no_difference(checkpoints: Path) -> None:
    page = show(b_checkpoint="coarse", token="12", pinned="1")
    assert not page.error and not page.metric
    assert grids(page) == [[8, 8], [4, 4]]
    assert "8 × 8" in page.info[0].value and "4 × 4" in page.info[0].value
    assert [side["seed"]["token"] for side in views(page)] == [12, 1 + 0 * 4 + 1]  # row 2, col 4 of 8 x 8


def test_each_side_has_its_own_input_size(checkpoints: Path) -> None:
    page = show(b_size="64")
    assert not page.error
    assert grids(page) == [[8, 8], [16, 16]]
    assert page.selectbox(key="a_size").value == (32, 32)


def test_model_without_classes_is_compared_by_its_attention(checkpoints: Path) -> None:
    page = show(a_checkpoint="bare", b_checkpoint="coarse")
    assert not page.error
    assert "no classes" in texts(page, "caption")
    assert views(page)[0]["method"] is None and page.metric


def test_selected_checkpoint_is_kept_in_the_link(checkpoints: Path) -> None:
    page = show()
    page.selectbox(key="b_checkpoint").set_value("coarse").run()
    assert not page.exception
    assert page.query_params["b_checkpoint"] == "coarse" and grids(page)[1] == [4, 4]


def test_uploaded_picture_is_explained_and_a_broken_one_is_replaced_by_a_sample(checkpoints: Path) -> None:
    page = show(a_sample="upload")
    page.file_uploader(key="a_upload").upload("photo.png", png(300, 200)).run()
    assert not page.exception and not page.error
    assert payload(page, "a feeder")[0]["picture"]["width"] == 300
    page.file_uploader(key="a_upload").upload("photo.png", b"no picture").run()
    assert not page.exception and len(page.error) == 1 and "\n" not in page.error[0].value
    assert next(iter(samples.SAMPLES.values())).credit in texts(page, "caption")


@pytest.mark.parametrize("name", ["../../etc/passwd", "<img src=x>", "999", "-1", ""])
def test_hostile_links_show_the_defaults(checkpoints: Path, stored_run: str, name: str) -> None:
    own = ("checkpoint", "sample", "target", "method", "view", "from", "run", "probe", "epoch")
    shared = ("mode", "block", "head", "token", "pinned", "direction", "colormap", "opacity")
    page = show(**{f"{side}_{part}": name for side in "ab" for part in own}, **dict.fromkeys(shared, name))
    assert not page.error
    assert grids(page) == [[8, 8], [8, 8]]
    assert [side["seed"]["view"] for side in views(page)] == ["attention", "relevance"]


def test_two_epochs_of_a_run_are_compared(checkpoints: Path, stored_run: str) -> None:
    page = show(a_from="epoch", b_from="epoch")
    assert not page.error
    assert [page.select_slider(key=f"{side}_epoch").value for side in "ab"] == [1, 2]
    assert grids(page) == [[4, 4], [4, 4]] and page.metric
    assert page.metric[0].value != "1.00"
    page.select_slider(key="b_epoch").set_value(1).run()
    assert not page.exception and page.query_params["b_epoch"] == "1"


def test_epoch_can_be_compared_with_a_checkpoint(checkpoints: Path, stored_run: str) -> None:
    page = show(a_from="epoch", b_checkpoint="coarse")
    assert not page.error and page.metric
    assert "it is circle" in texts(page, "caption")


def test_damaged_epoch_is_one_sentence(checkpoints: Path, stored_run: str) -> None:
    (checkpoints.parent / "runs" / stored_run / "probes" / "epoch-00001.zip").write_bytes(b"PK")
    page = show(a_from="epoch")
    assert len(page.error) == 1 and "damaged" in page.error[0].value


def test_page_without_checkpoints_says_how_to_get_one(checkpoints: Path) -> None:
    shutil.rmtree(checkpoints)
    for mode in ("two", "many"):
        page = show(mode=mode)
        assert "python -m vit train" in page.info[0].value


def test_reload_restores_a_sides_upload(checkpoints: Path) -> None:
    page = show(a_sample="upload")
    page.file_uploader(key="a_upload").upload("photo.png", png(300, 200)).run()
    again = show(**page.query_params)
    assert payload(again, "a feeder")[0]["picture"]["width"] == 300
    assert "Showing the uploaded photo\\.png" in texts(again, "caption")


def test_pictures_of_others_are_offered_to_users_who_may_train(
    checkpoints: Path, stored_run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoints.parent / "data" / "uploads" / "faces-0123abcd"
    for name in ("ada", "eve"):
        (folder / name).mkdir(parents=True)
        (folder / name / "1.png").write_bytes(png(40, 40))
    config = checkpoints.parent / "runs" / stored_run / "config.json"
    config.write_text(TrainConfig(epochs=2, data=f"folder:{folder}").model_dump_json())
    spec = f"folder:{folder}"

    def offered(**link: str) -> str:
        page = show(**link)
        return " ".join(" ".join(box.options) for box in (*page.selectbox, *page.get("button_group")))

    assert "faces" in offered(mode="many") and "An epoch of a run" in offered()
    monkeypatch.setattr(access, "may_train", lambda: False)
    assert "faces" not in offered(mode="many", m_from=spec)
    assert "An epoch of a run" not in offered(a_from="epoch")


def test_uploaded_pictures_of_a_side_are_stepped_through(checkpoints: Path) -> None:
    page = show(a_sample="upload")
    files = [(f"{width}.png", png(width, 200), "image/png") for width in (300, 400)]
    page.file_uploader(key="a_upload").set_value(files).run()
    widths = [payload(page, f"{side} feeder")[0]["picture"]["width"] for side in "ab"]
    assert widths == [300, 300] and page.button(key="a_picture previous").disabled
    page.button(key="a_picture next").click().run()
    again = show(**page.query_params)
    for each in (page, again):
        assert not each.exception
        widths = [payload(each, f"{side} feeder")[0]["picture"]["width"] for side in "ab"]
        assert widths == [400, 400] and each.button(key="a_picture next").disabled


def test_unreadable_upload_is_named_and_the_others_are_shown(checkpoints: Path) -> None:
    page = show(a_sample="upload")
    page.file_uploader(key="a_upload").set_value([("notes.7z", b"7z\xbc\xaf\x27\x1c", "application/x-7z")]).run()
    assert not page.exception and "notes\\.7z\\: This is a 7z archive" in page.error[0].value
    files = [("notes.7z", b"7z\xbc\xaf\x27\x1c", "application/x-7z"), ("300.png", png(300, 200), "image/png")]
    page.file_uploader(key="a_upload").set_value(files).run()
    assert not page.exception and "notes\\.7z" in page.error[0].value
    assert payload(page, "a feeder")[0]["picture"]["width"] == 300


@pytest.mark.parametrize("which", ["99", "0", "<b>"])
def test_link_to_a_picture_beyond_those_of_a_side(checkpoints: Path, which: str) -> None:
    page = show(a_sample="upload")
    files = [(f"{width}.png", png(width, 200), "image/png") for width in (300, 400)]
    page.file_uploader(key="a_upload").set_value(files).run()
    run(page, a_which=which)
    assert payload(page, "a feeder")[0]["picture"]["width"] == (400 if which == "99" else 300)
