"""Page Compare without a browser, many pictures: a sheet of samples, datasets and uploads."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
import torch
from streamlit.testing.v1 import AppTest

from pages.looking.comparison import contact_sheet
from pages.shared import long_passes
from tests.pages.compare_page import png, show, write_checkpoints
from tests.pages.controls import app_page, control, run, texts
from tests.pages.offered import sent_to
from vit import load_checkpoint
from vit.checkpoints.save import save_checkpoint
from vit.data.shapes import SHAPES
from vit.explain.methods import heatmap_of
from vit.explain.recorded_pass import RecordedPass
from vit.exports.contact_sheet import FEW_PICTURES, WITHOUT_CLASSES
from vit.images import samples
from vit.images.files.decode import decode_image
from vit.images.preprocess import Preprocess


@pytest.fixture
def checkpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, build: Callable[..., Any]) -> Path:
    """A folder with the shipped checkpoint, one of another grid, and one without classes; no runs, no data."""
    return write_checkpoints(tmp_path, monkeypatch, build)


def test_every_sample_is_on_the_sheet_and_links_to_the_explorer(checkpoints: Path) -> None:
    page = show(mode="many")
    assert not page.error
    assert len(page.get("image")) == len(samples.SAMPLES) == len(page.get("page_link"))
    assert f"sample={list(samples.SAMPLES)[1]}" in page.get("page_link")[1].proto.query_string


def test_entries_are_sorted_by_confidence(checkpoints: Path) -> None:
    page = show(mode="many", m_sort="confidence")
    percentages = [int(found.value.rpartition(" ")[2].rstrip("%")) for found in page.markdown]
    assert percentages == sorted(percentages, reverse=True) and len(percentages) == len(samples.SAMPLES)
    page = show(mode="many", m_sort="confidence", m_first="lowest")
    assert [int(found.value.rpartition(" ")[2].rstrip("%")) for found in page.markdown] == percentages[::-1]


def test_computed_sheet_stays_when_the_machine_becomes_busy(monkeypatch: pytest.MonkeyPatch) -> None:
    page = show(mode="many")
    monkeypatch.setattr(long_passes, "BUTTON_ABOVE_SECONDS", 0.0)  # recomputing would exceed the limit
    run(page, m_sort="confidence")
    assert len(page.markdown) == len(samples.SAMPLES)
    assert not [one for one in page.button if one.label.startswith("Look at")]


def test_maps_are_judged_on_request_and_pictures_sorted_by_that(checkpoints: Path) -> None:
    page = show(mode="many")
    assert "faithful" not in texts(page, "caption").lower() and "Faithfulness" not in str(page.get("button_group"))
    page = show(mode="many", m_true="1", m_sort="faithfulness")
    assert not page.error
    found = [
        re.search(r"faithful (−?\d\.\d\d): (better|no better|cannot)", one.value.replace("\\", ""))
        for one in page.caption
    ]
    values = [float(one[1].replace("−", "-")) for one in found if one]
    assert len(values) == len(samples.SAMPLES) and values == sorted(values, reverse=True)


def test_measurement_of_more_than_two_seconds_says_how_long_it_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contact_sheet, "measuring_seconds", lambda *_: 2.4)
    assert "Measure faithfulness (a few seconds)" in [one.label for one in show(mode="many").toggle]


def dataset(root: Path, *classes: str) -> str:
    """Write a picture of each class in each split; return its name in settings and in links."""
    for split in ("train", "test"):
        for name in classes:
            (root / split / name).mkdir(parents=True)
            (root / split / name / "one.png").write_bytes(png(40, 40))
    return f"folder:{root}"


def test_correct_and_wrong_answers_on_a_dataset_are_distinguished(checkpoints: Path) -> None:
    page = show(mode="many", m_from="shapes", m_checkpoint="coarse")
    assert not page.error
    assert len(page.get("image")) == FEW_PICTURES
    table = page.markdown[0].value
    assert "✓ Right" in table and "✗ Wrong" in table
    wrong = show(mode="many", m_from="shapes", m_checkpoint="coarse", m_show="wrong")
    assert 0 < len(wrong.get("image")) < FEW_PICTURES
    assert all(found.value.startswith("**✗") for found in wrong.markdown[1:])
    assert all("is " in found.value for found in wrong.caption[: len(wrong.get("image"))])


@pytest.mark.exhaustive
def test_more_pictures_are_loaded_in_parts(checkpoints: Path) -> None:
    link = {"mode": "many", "m_from": "shapes", "m_checkpoint": "coarse", "m_count": "200", "m_sort": "confidence"}
    page = show(**link)
    assert not page.error and len(page.get("image")) == contact_sheet.PAGE
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
    assert not page.error and len(page.get("image")) == len(samples.SAMPLES)
    assert (control(page.selectbox, "m_block").value, control(page.selectbox, "m_head").value) == (2, 1)
    links = [str(one.proto) for one in page.get("page_link")]
    assert links and all("block" in one and "head" in one for one in links)
    show(mode="many", m_method="attention", m_block="99", m_head="x")


def test_unknown_classes_are_neither_correct_nor_wrong(checkpoints: Path, tmp_path: Path) -> None:
    page = show(mode="many", m_from=dataset(tmp_path / "data" / "mine", "unknown", "stranger"))
    assert "does not have the classes" in texts(page, "caption")
    assert not any("✓" in found.value or "✗" in found.value for found in page.markdown)


def test_model_without_classes_shows_attention(checkpoints: Path) -> None:
    page = show(mode="many", m_checkpoint="bare", m_sort="confidence")
    assert not page.error
    assert page.selectbox(key="m_method").options == ["Raw attention", "Rollout"]
    assert len(page.get("image")) == len(samples.SAMPLES)


@pytest.mark.parametrize("pool", ["cls", "mean", "map"])
@pytest.mark.parametrize("classes", [4, 0])
def test_explore_shows_the_map_of_the_sheet(
    checkpoints: Path, build: Callable[..., Any], pool: str, classes: int
) -> None:
    """The attention of a head without a class token belongs to no token."""
    model = build(num_classes=classes, pool=pool, prefix=("cls",) if pool == "cls" else ())
    first = next(iter(samples.SAMPLES))
    folder = save_checkpoint(checkpoints / "other", model, SHAPES[:classes], Preprocess((32, 32)))
    checkpoint = load_checkpoint(folder)
    recorded = RecordedPass.without_class(checkpoint.model, checkpoint.preprocess(decode_image(samples.read(first))))
    for method in WITHOUT_CLASSES:
        sheet = show(mode="many", m_checkpoint="other", m_method=method)
        link = dict(parse_qsl(sheet.get("page_link")[0].proto.query_string))
        assert link["sample"] == first
        page = app_page(**link)
        assert not page.error
        sent = sent_to(page)
        wanted = heatmap_of(recorded, method)
        if pool == "cls":  # of the viewer's default token
            assert (sent["seed"]["view"], sent["seed"]["token"], sent["computed"]) == (method, 0, None)
            assert (sent["seed"]["block"], sent["seed"]["head"]) == (model.config.depth - 1, "mean")
        else:
            assert sent["seed"]["view"] == "relevance" and sent["method"]["target"] == ""
            found = recorded.record.heatmap(torch.tensor(sent["computed"]["values"]))
            torch.testing.assert_close(found / found.sum(), wanted / wanted.sum(), rtol=1e-4, atol=1e-6)


def test_folder_in_the_data_folder_is_offered(checkpoints: Path, tmp_path: Path) -> None:
    page = show(mode="many", m_from=dataset(tmp_path / "data" / "mine", *SHAPES[:2]), m_checkpoint="coarse")
    assert not page.error
    assert len(page.get("image")) == 2


@pytest.mark.parametrize("name", ["../../etc/passwd", "folder:/etc", "cifar100", "<img src=x>", ""])
def test_hostile_links_to_contact_sheets_show_the_defaults(checkpoints: Path, name: str) -> None:
    parts = ("checkpoint", "from", "method", "sort", "first", "show")
    page = show(mode="many", **{f"m_{part}": name for part in parts})
    assert not page.error
    assert page.selectbox(key="m_from").value == "samples" and len(page.get("image")) == len(samples.SAMPLES)


def test_uploads_are_shown_and_broken_ones_named(checkpoints: Path) -> None:
    page = show(mode="many", m_from="upload")
    assert not page.get("image")
    page.file_uploader(key="m_upload").set_value(
        [("a.png", png(60, 40), "image/png"), ("b.png", b"no picture", "image/png")]
    ).run()
    assert not page.exception
    assert len(page.get("image")) == 1 and "a\\.png" in texts(page, "caption")
    assert page.error[0].value == "A picture could not be read." and "b.png" in page.code[0].value


def test_reload_restores_uploads_or_says_that_they_are_gone(
    checkpoints: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VIT_PICTURES", str(tmp_path / "pictures"))
    page = show(mode="many", m_from="upload")
    files = [(f"{side}.png", png(side, 40), "image/png") for side in (60, 70)]
    page.file_uploader(key="m_upload").set_value(files).run()
    again = show(**page.query_params)
    assert not again.info and len(again.get("image")) == 2
    assert "Showing 2 uploaded pictures" in texts(again, "caption")
    link_of_two = dict(page.query_params)
    page.file_uploader(key="m_upload").set_value(files[:1]).run()
    assert len(page.get("image")) == 1
    page.query_params.update(link_of_two)  # the browser's Back
    assert len(page.run().get("image")) == 2 and "Showing 2 uploaded pictures" in texts(page, "caption")
    for path in (tmp_path / "pictures").iterdir():
        path.unlink()
    gone = show(**page.query_params)
    assert "were deleted" in gone.info[0].value and not gone.get("image")
