"""Page Compare without a browser: empty, normal and error state."""

import io
import json
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
import torch
from patience import PATIENCE
from PIL import Image
from streamlit.testing.v1 import AppTest

from pages.comparison import contact_sheet, side_by_side
from pages.server import access
from tests.pages.controls import control
from tests.pages.offered import payload_of, sent_to
from vit import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.data.shapes import SHAPES, shapes
from vit.explain.methods import Subject, heatmap_of
from vit.images import samples
from vit.images.decode import decode_image
from vit.images.preprocess import Preprocess
from vit.training.config import TrainConfig
from vit.training.snapshot_writer import SnapshotWriter
from vit.view.contact_sheet import FEW_PICTURES, WITHOUT_CLASSES
from vit.view.payload import unpack

ROOT = Path(__file__).parents[2]


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Callable[..., Any]) -> Path:
    """A folder with the shipped checkpoint, one of another grid, and one without classes; no runs, no data."""
    folder = tmp_path / "checkpoints"
    shutil.copytree(ROOT / "checkpoints" / "cifar10", folder / "cifar10")
    save_checkpoint(folder / "coarse", build(num_classes=4), SHAPES, Preprocess((32, 32)))
    save_checkpoint(folder / "bare", build(num_classes=0), (), Preprocess((32, 32)))
    monkeypatch.setenv("VIT_CHECKPOINTS", str(folder))
    monkeypatch.setenv("VIT_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("VIT_DATA_ROOTS", str(tmp_path / "data"))
    return folder


@pytest.fixture
def run(checkpoints: Path, build: Callable[..., Any]) -> str:
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


def show(**link: str) -> AppTest:
    page = AppTest.from_file(str(ROOT / "app.py"), default_timeout=PATIENCE).switch_page("pages/compare.py")
    for name, value in link.items():
        page.query_params[name] = value
    return page.run()


def texts(page: AppTest, *kinds: str) -> str:
    every = kinds or ("caption", "markdown", "info", "warning", "error")
    return " ".join(str(found.value) for kind in every for found in page.get(kind))


def grids(page: AppTest) -> list[list[int]]:
    """Return the grids of the browser's two payloads."""
    return [unpack(payload_of(page, f"{side} feeder"))[0]["grid"] for side in "ab"]


def views(page: AppTest) -> list[dict[str, Any]]:
    """Return the data sent to the two viewers."""
    return [sent_to(page, f"{side} viewer") for side in "ab"]


def png(*size: int) -> bytes:
    out = io.BytesIO()
    Image.linear_gradient("L").resize(size).convert("RGB").save(out, "PNG")
    return out.getvalue()


# --- Side by side ---------------------------------------------------------------------------------------------------


def test_page_opens_with_attention_beside_relevance_of_one_picture(checkpoints: Path) -> None:
    page = show()
    assert not page.exception and not page.error
    assert grids(page) == [[8, 8], [8, 8]]
    left, right = views(page)
    assert (left["seed"]["view"], right["seed"]["view"]) == ("attention", "relevance")
    assert left["group"] == right["group"] and left["ownView"]
    assert -1 <= float(page.metric[0].value.replace("−", "-")) <= 1
    assert "Red" in texts(page) and "attention, block 6, mean of heads" in texts(page)


def test_link_chooses_both_sides(checkpoints: Path) -> None:
    page = show(b_sample="temple", b_method="legrad", a_view="rollout", b_target="3", token="9", pinned="1")
    assert not page.exception and not page.error
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
    page = show(b_checkpoint=twin, a_sample="horse", a_target="7", a_method="legrad", a_view="relevance")
    assert not page.exception and not page.error
    assert load_checkpoint("cifar10").labels[7] == "horse"
    left, right = views(page)
    assert [side["seed"]["view"] for side in (left, right)] == ["relevance", "relevance"] and not left["ownView"]
    assert [(side["method"]["title"], side["method"]["target"]) for side in (left, right)] == [("LeGrad", "horse")] * 2
    pictures = [unpack(payload_of(page, f"{side} feeder"))[1]["picture"].tobytes() for side in "ab"]
    assert pictures[0] == pictures[1]
    keys = {one.key for one in page.selectbox}
    assert "a_sample" in keys and "b_sample" not in keys and "b_target" not in keys
    page.selectbox(key="a_sample").set_value("temple").run()
    changed = [unpack(payload_of(page, f"{side} feeder"))[1]["picture"].tobytes() for side in "ab"]
    assert changed[0] == changed[1] != pictures[0]


def test_class_unknown_to_the_other_checkpoint_is_chosen_there(checkpoints: Path) -> None:
    page = show(b_checkpoint="coarse")
    assert not page.exception and page.selectbox(key="b_target").value in range(4)


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


def test_older_links_without_shared_sides_show_the_same(checkpoints: Path, twin: str) -> None:
    page = show(b_checkpoint=twin, b_view="relevance")
    assert [side["seed"]["view"] for side in views(page)] == ["attention", "relevance"]
    assert page.toggle(key="apart").value


@pytest.mark.parametrize(("view", "other"), [("relevance", "attention"), ("rollout", "relevance"), ("", "relevance")])
def test_page_initially_shows_the_selection_of_explore(checkpoints: Path, view: str, other: str) -> None:
    page = AppTest.from_file(str(ROOT / "app.py"), default_timeout=PATIENCE)
    chosen = {"sample": "temple", "target": "3", "method": "legrad", "token": "9", "pinned": "1"}
    page.query_params |= chosen | ({"view": view} if view else {})
    page.run()
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
    assert not page.exception and not page.error and not page.metric
    assert grids(page) == [[8, 8], [4, 4]]
    assert "8 × 8" in page.info[0].value and "4 × 4" in page.info[0].value
    assert [side["seed"]["token"] for side in views(page)] == [12, 1 + 0 * 4 + 1]  # row 2, col 4 of 8 x 8


def test_each_side_has_its_own_input_size(checkpoints: Path) -> None:
    page = show(b_size="64")
    assert not page.exception and not page.error
    assert grids(page) == [[8, 8], [16, 16]]
    assert page.selectbox(key="a_size").value == (32, 32)


def test_model_without_classes_is_compared_by_its_attention(checkpoints: Path) -> None:
    page = show(a_checkpoint="bare", b_checkpoint="coarse")
    assert not page.exception and not page.error
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
    assert unpack(payload_of(page, "a feeder"))[0]["picture"]["width"] == 300
    page.file_uploader(key="a_upload").upload("photo.png", b"no picture").run()
    assert not page.exception and len(page.error) == 1 and "\n" not in page.error[0].value
    assert samples.SAMPLES["cat"].title in texts(page, "caption")


@pytest.mark.parametrize("name", ["../../etc/passwd", "<img src=x>", "999", "-1", ""])
def test_hostile_links_show_the_defaults(checkpoints: Path, run: str, name: str) -> None:
    own = ("checkpoint", "sample", "target", "method", "view", "from", "run", "probe", "epoch")
    shared = ("mode", "block", "head", "token", "pinned", "direction", "colormap", "opacity")
    page = show(**{f"{side}_{part}": name for side in "ab" for part in own}, **dict.fromkeys(shared, name))
    assert not page.exception and not page.error
    assert grids(page) == [[8, 8], [8, 8]]
    assert [side["seed"]["view"] for side in views(page)] == ["attention", "relevance"]


def test_two_epochs_of_a_run_are_compared(checkpoints: Path, run: str) -> None:
    page = show(a_from="epoch", b_from="epoch")
    assert not page.exception and not page.error
    assert [page.select_slider(key=f"{side}_epoch").value for side in "ab"] == [1, 2]
    assert grids(page) == [[4, 4], [4, 4]] and page.metric
    assert page.metric[0].value != "1.00"
    page.select_slider(key="b_epoch").set_value(1).run()
    assert not page.exception and page.query_params["b_epoch"] == "1"


def test_epoch_can_be_compared_with_a_checkpoint(checkpoints: Path, run: str) -> None:
    page = show(a_from="epoch", b_checkpoint="coarse")
    assert not page.exception and not page.error and page.metric
    assert "it is circle" in texts(page, "caption")


def test_damaged_epoch_is_one_sentence(checkpoints: Path, run: str) -> None:
    (checkpoints.parent / "runs" / run / "probes" / "epoch-00001.zip").write_bytes(b"PK")
    page = show(a_from="epoch")
    assert not page.exception and len(page.error) == 1 and "damaged" in page.error[0].value


def test_page_without_checkpoints_says_how_to_get_one(checkpoints: Path) -> None:
    shutil.rmtree(checkpoints)
    for mode in ("two", "many"):
        page = show(mode=mode)
        assert not page.exception and "python -m vit train" in page.info[0].value


# --- Many pictures --------------------------------------------------------------------------------------------------


def test_every_sample_is_on_the_sheet_and_links_to_the_explorer(checkpoints: Path) -> None:
    page = show(mode="many")
    assert not page.exception and not page.error
    assert len(page.get("image")) == len(samples.SAMPLES) == len(page.get("page_link"))
    assert "sample=horse" in page.get("page_link")[1].proto.query_string


def test_entries_are_sorted_by_confidence(checkpoints: Path) -> None:
    page = show(mode="many", m_sort="confidence")
    shown = [int(found.value.rpartition(" ")[2].rstrip("%")) for found in page.markdown]
    assert shown == sorted(shown, reverse=True) and len(shown) == len(samples.SAMPLES)
    page = show(mode="many", m_sort="confidence", m_first="lowest")
    assert [int(found.value.rpartition(" ")[2].rstrip("%")) for found in page.markdown] == shown[::-1]


def test_computed_sheet_stays_when_the_machine_becomes_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    page = show(mode="many")
    monkeypatch.setattr(contact_sheet, "ASK_ABOVE", 0.0)  # recomputing would exceed the limit
    page.query_params["m_sort"] = "confidence"
    page.run()
    assert not page.exception and len(page.markdown) == len(samples.SAMPLES)
    assert not [one for one in page.button if one.label.startswith("Look at")]


def test_maps_are_judged_on_request_and_pictures_sorted_by_that(checkpoints: Path) -> None:
    page = show(mode="many")
    assert "faithful" not in texts(page, "caption").lower() and "Faithfulness" not in str(page.get("button_group"))
    page = show(mode="many", m_true="1", m_sort="faithfulness")
    assert not page.exception and not page.error
    found = [
        re.search(r"faithful (−?\d\.\d\d): (better|no better|cannot)", one.value.replace("\\", ""))
        for one in page.caption
    ]
    values = [float(one[1].replace("−", "-")) for one in found if one]
    assert len(values) == len(samples.SAMPLES) and values == sorted(values, reverse=True)


def dataset(root: Path, *classes: str) -> str:
    """Write a picture of each class in each split; return its name in settings and in links."""
    for split in ("train", "test"):
        for name in classes:
            (root / split / name).mkdir(parents=True)
            (root / split / name / "one.png").write_bytes(png(40, 40))
    return f"folder:{root}"


def test_correct_and_wrong_answers_on_a_dataset_are_distinguished(checkpoints: Path) -> None:
    page = show(mode="many", m_from="shapes", m_checkpoint="coarse")
    assert not page.exception and not page.error
    assert len(page.get("image")) == FEW_PICTURES
    table = page.markdown[0].value
    assert "✓ Right" in table and "✗ Wrong" in table
    wrong = show(mode="many", m_from="shapes", m_checkpoint="coarse", m_show="wrong")
    assert 0 < len(wrong.get("image")) < FEW_PICTURES
    assert all(found.value.startswith("**✗") for found in wrong.markdown[1:])
    assert all("is " in found.value for found in wrong.caption[: len(wrong.get("image"))])


def test_more_pictures_are_loaded_in_parts(checkpoints: Path) -> None:
    link = {"mode": "many", "m_from": "shapes", "m_checkpoint": "coarse", "m_count": "200", "m_sort": "confidence"}
    page = show(**link)
    assert not page.exception and not page.error and len(page.get("image")) == contact_sheet.PAGE
    parts = control(page.selectbox, "m_page").options
    assert parts == ["1 to 60 of 200", "61 to 120 of 200", "121 to 180 of 200", "181 to 200 of 200"]
    last = show(**link, m_page="3")
    assert len(last.get("image")) == 20

    def confidences(one: AppTest) -> list[int]:
        return [int(found[1]) for text in one.markdown if (found := re.search(r"\*\* (\d+)%$", text.value))]

    assert min(confidences(page)) >= max(confidences(last))
    assert len(show(**link, m_page="99").get("image")) == contact_sheet.PAGE


def test_any_head_is_the_map_of_the_sheet(checkpoints: Path) -> None:
    page = show(mode="many", m_method="attention", m_block="2", m_head="1")
    assert not page.exception and not page.error and len(page.get("image")) == len(samples.SAMPLES)
    assert (control(page.selectbox, "m_block").value, control(page.selectbox, "m_head").value) == (2, 1)
    links = [str(one.proto) for one in page.get("page_link")]
    assert links and all("block" in one and "head" in one for one in links)
    assert not show(mode="many", m_method="attention", m_block="99", m_head="x").exception


def test_unknown_classes_are_neither_correct_nor_wrong(checkpoints: Path, tmp_path: Path) -> None:
    page = show(mode="many", m_from=dataset(tmp_path / "data" / "mine", "unknown", "stranger"))
    assert not page.exception and "does not know the classes" in texts(page, "caption")
    assert not any("✓" in found.value or "✗" in found.value for found in page.markdown)


def test_model_without_classes_shows_attention(checkpoints: Path) -> None:
    page = show(mode="many", m_checkpoint="bare", m_sort="confidence")
    assert not page.exception and not page.error
    assert page.selectbox(key="m_method").options == ["Raw attention", "Rollout"]
    assert len(page.get("image")) == len(samples.SAMPLES)


@pytest.mark.parametrize("pool", ["cls", "mean", "map"])
@pytest.mark.parametrize("classes", [4, 0])
def test_explore_shows_the_map_of_the_sheet(
    checkpoints: Path, build: Callable[..., Any], pool: str, classes: int
) -> None:
    """The attention of a head without a class token belongs to no token."""
    model = build(num_classes=classes, pool=pool, prefix=("cls",) if pool == "cls" else ())
    folder = save_checkpoint(checkpoints / "other", model, SHAPES[:classes], Preprocess((32, 32)))
    checkpoint = load_checkpoint(folder)
    subject = Subject.without_class(checkpoint.model, checkpoint.preprocess(decode_image(samples.read("cat"))))
    for method in WITHOUT_CLASSES:
        sheet = show(mode="many", m_checkpoint="other", m_method=method)
        link = dict(parse_qsl(sheet.get("page_link")[0].proto.query_string))
        assert link["sample"] == "cat"
        page = AppTest.from_file(str(ROOT / "app.py"), default_timeout=PATIENCE)
        page.query_params.update(link)
        page.run()
        assert not page.exception and not page.error
        sent = sent_to(page)
        wanted = heatmap_of(subject, method)
        if pool == "cls":  # of the viewer's default token
            assert (sent["seed"]["view"], sent["seed"]["token"], sent["computed"]) == (method, 0, None)
            assert (sent["seed"]["block"], sent["seed"]["head"]) == (model.config.depth - 1, "mean")
        else:
            assert sent["seed"]["view"] == "relevance" and sent["method"]["target"] == ""
            found = subject.record.heatmap(torch.tensor(sent["computed"]["values"]))
            torch.testing.assert_close(found / found.sum(), wanted / wanted.sum(), rtol=1e-4, atol=1e-6)


def test_folder_in_the_data_folder_is_offered(checkpoints: Path, tmp_path: Path) -> None:
    page = show(mode="many", m_from=dataset(tmp_path / "data" / "mine", *SHAPES[:2]), m_checkpoint="coarse")
    assert not page.exception and not page.error
    assert len(page.get("image")) == 2


@pytest.mark.parametrize("name", ["../../etc/passwd", "folder:/etc", "cifar100", "<img src=x>", ""])
def test_hostile_links_to_contact_sheets_show_the_defaults(checkpoints: Path, name: str) -> None:
    parts = ("checkpoint", "from", "method", "sort", "first", "show")
    page = show(mode="many", **{f"m_{part}": name for part in parts})
    assert not page.exception and not page.error
    assert page.selectbox(key="m_from").value == "samples" and len(page.get("image")) == len(samples.SAMPLES)


def test_uploads_are_shown_and_broken_ones_named(checkpoints: Path) -> None:
    page = show(mode="many", m_from="upload")
    assert not page.exception and not page.get("image")
    page.file_uploader(key="m_upload").set_value(
        [("a.png", png(60, 40), "image/png"), ("b.png", b"no picture", "image/png")]
    ).run()
    assert not page.exception
    assert len(page.get("image")) == 1 and "a\\.png" in texts(page, "caption")
    assert page.error[0].value == "A picture could not be read." and "b.png" in page.code[0].value


def reloaded(page: AppTest) -> AppTest:
    """Open the same link in a new session."""
    return show(**dict(page.query_params))


def test_reload_restores_uploads_or_says_that_they_are_gone(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIT_PICTURES", str(tmp_path / "pictures"))
    page = show(mode="many", m_from="upload")
    files = [(f"{side}.png", png(side, 40), "image/png") for side in (60, 70)]
    page.file_uploader(key="m_upload").set_value(files).run()
    again = reloaded(page)
    assert not again.exception and not again.info and len(again.get("image")) == 2
    assert "These are the 2 pictures that were uploaded" in texts(again, "caption")
    link_of_two = dict(page.query_params)
    page.file_uploader(key="m_upload").set_value(files[:1]).run()
    assert len(page.get("image")) == 1
    page.query_params.update(link_of_two)  # the browser's Back
    assert len(page.run().get("image")) == 2 and "These are the 2 pictures" in texts(page, "caption")
    for path in (tmp_path / "pictures").iterdir():
        path.unlink()
    gone = reloaded(page)
    assert not gone.exception and "not here any more" in gone.info[0].value and not gone.get("image")


def test_reload_restores_a_sides_upload(checkpoints: Path) -> None:
    page = show(a_sample="upload")
    page.file_uploader(key="a_upload").upload("photo.png", png(300, 200)).run()
    again = reloaded(page)
    assert not again.exception and unpack(payload_of(again, "a feeder"))[0]["picture"]["width"] == 300
    assert "photo\\.png, which was uploaded" in texts(again, "caption")


def test_pictures_of_others_are_offered_to_users_who_may_train(
    checkpoints: Path, run: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = checkpoints.parent / "data" / "uploads" / "faces-0123abcd"
    for name in ("ada", "eve"):
        (folder / name).mkdir(parents=True)
        (folder / name / "1.png").write_bytes(png(40, 40))
    config = checkpoints.parent / "runs" / run / "config.json"
    config.write_text(TrainConfig(epochs=2, data=f"folder:{folder}").model_dump_json())
    spec = f"folder:{folder}"

    def offered(**link: str) -> str:
        page = show(**link)
        assert not page.exception
        return " ".join(" ".join(box.options) for box in (*page.selectbox, *page.get("button_group")))

    assert "faces" in offered(mode="many") and "An epoch of a run" in offered()
    monkeypatch.setattr(access, "may_train", lambda: False)
    assert "faces" not in offered(mode="many", m_from=spec)
    assert "An epoch of a run" not in offered(a_from="epoch")


def test_uploaded_pictures_of_a_side_are_stepped_through(checkpoints: Path) -> None:
    page = show(a_sample="upload")
    files = [(f"{width}.png", png(width, 200), "image/png") for width in (300, 400)]
    page.file_uploader(key="a_upload").set_value(files).run()
    widths = [unpack(payload_of(page, f"{side} feeder"))[0]["picture"]["width"] for side in "ab"]
    assert widths == [300, 300] and page.button(key="a_picture previous").disabled
    page.button(key="a_picture next").click().run()
    again = reloaded(page)
    for each in (page, again):
        assert not each.exception
        widths = [unpack(payload_of(each, f"{side} feeder"))[0]["picture"]["width"] for side in "ab"]
        assert widths == [400, 400] and each.button(key="a_picture next").disabled


@pytest.mark.parametrize("which", ["99", "0", "<b>"])
def test_link_to_a_picture_beyond_those_of_a_side(checkpoints: Path, which: str) -> None:
    page = show(a_sample="upload")
    files = [(f"{width}.png", png(width, 200), "image/png") for width in (300, 400)]
    page.file_uploader(key="a_upload").set_value(files).run()
    page.query_params["a_which"] = which
    page.run()
    assert not page.exception
    assert unpack(payload_of(page, "a feeder"))[0]["picture"]["width"] == (400 if which == "99" else 300)
