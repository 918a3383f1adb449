"""Page Compare: two viewers with one cursor, their difference, and contact sheets."""

import csv
import io
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Page, expect
from tiny import fill

import vit
from vit.checkpoints.save import save_checkpoint
from vit.data.shapes import SHAPES
from vit.explain.components import components, patch_features
from vit.images import samples
from vit.images.encode import encode_image
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer

from .files import download, upload
from .serving import ROOT, VIEWERS
from .waiting import Conversation


@pytest.fixture(scope="module")
def url(serve: Callable[..., str], tmp_path_factory: pytest.TempPathFactory) -> str:
    """The app with the shipped checkpoint and a coarser one."""
    folder = tmp_path_factory.mktemp("compare")
    shutil.copytree(ROOT / "checkpoints" / "cifar10", folder / "cifar10")
    config = ViTConfig(image_size=(32, 32), patch_size=8, num_classes=4, dim=64, depth=2, heads=2, mlp_dim=128)
    save_checkpoint(folder / "coarse", fill(VisionTransformer(config)), SHAPES, Preprocess((32, 32)))
    return serve(ROOT / "app.py", VIT_CHECKPOINTS=str(folder), VIT_RUNS=str(folder / "runs"))


@pytest.fixture
def open_page(page: Page, url: str) -> Iterator[Callable[[str], Page]]:
    """Return `open_page(query)`, which opens the page and waits for both viewers."""
    errors: list[str] = []
    page.set_viewport_size({"width": 1280, "height": 1600})
    page.on("pageerror", lambda error: errors.append(str(error)))

    def opened(query: str = "") -> Page:
        page.goto(f"{url}/compare{query}")
        page.wait_for_function(f"() => {VIEWERS}.filter((viewer) => viewer.payload).length === 2")
        return page

    yield opened
    assert errors == []


def evaluate(page: Page, code: str) -> Any:
    """Evaluate a JavaScript expression of the viewers `a` and `b`."""
    return page.evaluate(f"() => {{ const [a, b] = {VIEWERS}; return {code}; }}")


def wait(page: Page, code: str) -> None:
    page.wait_for_function(f"() => {{ const [a, b] = {VIEWERS}; return {code}; }}")


def at(page: Page, which: int, row: int, col: int) -> tuple[float, float]:
    """Return the middle of a patch of a viewer's picture."""
    over = page.locator("canvas.over").nth(which)
    over.scroll_into_view_if_needed()
    area = over.bounding_box()
    rows, cols = evaluate(page, f"[{'ab'[which]}.payload.rows, {'ab'[which]}.payload.cols]")
    return area["x"] + (col + 0.5) / cols * area["width"], area["y"] + (row + 0.5) / rows * area["height"]


def test_hovering_and_pinning_on_the_left_moves_the_right_and_the_difference(
    open_page: Callable[..., Page], conversation: Conversation
) -> None:
    page = open_page()
    expect(page.get_by_text("attention, block 6, mean of heads")).to_be_visible()
    page.mouse.move(*at(page, 0, 2, 5))
    wait(page, "a.query === 1 + 2 * 8 + 5 && b.query === a.query")
    before = page.get_by_test_id("stMetricValue").inner_text()
    page.mouse.click(*at(page, 0, 2, 5))
    wait(page, "b.selection.pinned && b.selection.token === 1 + 2 * 8 + 5")
    assert evaluate(page, "[a.selection.view, b.selection.view]") == ["attention", "relevance"]
    expect(page.get_by_test_id("stMetricValue")).not_to_have_text(before)
    expect(page).to_have_url(re.compile(r"token=22"))
    conversation.finish()
    assert evaluate(page, "[a, b].map((viewer) => viewer.selection.pinned && viewer.selection.token)") == [22, 22]
    # the right viewer leads as well, in its own view
    page.locator(".grid").nth(1).scroll_into_view_if_needed()
    page.get_by_role("button", name="Rollout").nth(1).click()
    wait(page, "b.selection.view === 'rollout' && a.selection.view === 'attention'")
    expect(page.get_by_text(re.compile(r"right map \(rollout\)"))).to_be_visible()
    expect(page).to_have_url(re.compile(r"b_view=rollout"))
    page.get_by_role("button", name="Rollout").first.click()
    wait(page, "a.selection.view === 'rollout'")
    expect(page.get_by_text("Both maps are the same.")).to_be_visible()


def test_sides_have_their_names_where_columns_are_stacked(open_page: Callable[..., Page]) -> None:
    page = open_page()
    for name in ("Left", "Right"):
        expect(page.get_by_text(name, exact=True)).to_have_count(2)
        expect(page.get_by_text(name, exact=True).filter(visible=True)).to_have_count(0)
    page.set_viewport_size({"width": 390, "height": 844})
    for name in ("Left", "Right"):
        expect(page.get_by_text(name, exact=True).filter(visible=True)).to_have_count(2)


@pytest.mark.exhaustive
def test_another_checkpoint_on_the_right_has_the_same_cursor_and_scale(
    open_page: Callable[..., Page], conversation: Conversation
) -> None:
    page = open_page("?a_view=attention&b_view=attention")
    expect(page.get_by_role("img", name="Left map minus right map")).to_be_visible()
    conversation.finish()
    page.get_by_role("combobox", name=re.compile("Right checkpoint")).click()
    page.get_by_role("option", name="coarse").click()
    wait(page, "b.payload.rows === 4")
    expect(page.get_by_text(re.compile("There is no difference map"))).to_be_visible()
    page.mouse.move(*at(page, 0, 7, 0))
    wait(page, "b.query === 1 + 3 * 4")
    assert evaluate(page, "a.group.sharedTop(a.query, 'from') === b.group.sharedTop(b.query, 'from')")
    page.mouse.click(*at(page, 1, 1, 2))
    wait(page, "a.selection.pinned && a.selection.token === 1 + 3 * 8 + 5")
    expect(page).to_have_url(re.compile(r"token=30"))
    conversation.finish()
    assert evaluate(page, "[a.selection.token, b.selection.token]") == [30, 1 + 1 * 4 + 2]
    page.reload()
    page.wait_for_function(f"() => {VIEWERS}.filter((viewer) => viewer.payload).length === 2")
    wait(page, "b.payload.rows === 4 && a.selection.token === 30 && b.selection.token === 7")


def test_maps_of_one_kind_share_a_scale(open_page: Callable[..., Page]) -> None:
    page = open_page("?a_view=relevance&b_view=relevance&b_sample=horse")
    wait(page, "a.group.ownMap.top > 0 && b.group.ownMap.top > 0 && a.group.ownMap.view === b.group.ownMap.view")
    assert evaluate(page, "a.group.ownMap.top !== b.group.ownMap.top")
    wait(page, "a.page.find('.legend').ariaLabel === b.page.find('.legend').ariaLabel")
    expect(page.get_by_role("img", name=re.compile("One scale for both maps"))).to_have_count(2)
    page.locator(".display summary").first.click()
    page.get_by_role("button", name="Own scales").first.click()
    wait(page, "a.page.find('.legend').ariaLabel !== b.page.find('.legend').ariaLabel")


@pytest.mark.exhaustive
def test_maps_and_contact_sheet_download_as_numbers(open_page: Callable[[str], Page], url: str) -> None:
    page = open_page("?a_sample=cat&b_sample=horse&apart=1")
    rows = list(csv.DictReader(io.StringIO(download(page, "Difference as CSV").decode())))
    assert len(rows) == 64 and sum(float(row["difference_of_shares"]) for row in rows) == pytest.approx(0, abs=1e-4)
    page.goto(f"{url}/compare?mode=many&m_count=60")
    looks = page.get_by_role("button", name="Look at 8 pictures")
    expect(looks.or_(page.get_by_role("button", name="Sheet as CSV")).first).to_be_visible()
    if looks.is_visible():  # a busy machine
        looks.click()
    rows = list(csv.DictReader(io.StringIO(download(page, "Sheet as CSV").decode())))
    assert len(rows) == len(samples.SAMPLES) and {row["prediction"] for row in rows} & {"cat", "horse"}


def test_patch_is_matched_in_the_other_picture(open_page: Callable[[str], Page], conversation: Conversation) -> None:
    page = open_page("?a_sample=cat&b_sample=raccoon&a_view=similar&b_view=similar&apart=1")
    conversation.finish()
    wait(page, "a.settled && b.settled && a.state.view === 'similar' && b.state.view === 'similar'")
    before = conversation.runs
    page.locator("canvas.over").first.hover(position={"x": 150, "y": 120})
    wait(page, "a.settled && b.settled && b.map.cosineFeatures[1] === a.features && b.map.cosineToken === a.query")
    own, other = evaluate(page, "[[...a.map.nearest], [...b.map.nearest]]")
    assert own != other and conversation.runs == before  # no message
    expect(page.get_by_text("of the other picture, after the last block; a double line")).to_have_count(1)
    outlined = "[...b.root.querySelectorAll('.near:not([hidden])')].length"
    assert evaluate(page, outlined) == 5
    assert evaluate(page, "b.root.querySelectorAll('.near.mutual').length") == sum(evaluate(page, "[...b.map.mutual]"))
    page.locator("canvas.over").last.hover(position={"x": 100, "y": 100})
    wait(page, "a.settled && a.map.cosineFeatures[1] === b.features && b.map.cosineFeatures[1] === b.features")


@pytest.mark.exhaustive
def test_back_from_an_uploaded_picture_leads_to_the_sheet(page: Page, url: str) -> None:
    page.goto(f"{url}/compare?mode=many&m_from=upload")
    upload(page, {"mine.png": encode_image(Image.linear_gradient("L").convert("RGB"))})
    page.get_by_role("button", name="Open in Explore").click()
    expect(page).to_have_url(re.compile(r"/\?.*upload=mine.png"))
    expect(page.locator("canvas.over")).to_be_visible()
    page.go_back()
    expect(page).to_have_url(re.compile("/compare.*mode=many"))
    expect(page.get_by_role("button", name="Open in Explore")).to_be_visible()


COLOURS = "[a, b].map((viewer) => [...viewer.features.colours])"


@pytest.mark.exhaustive
def test_components_of_both_pictures_share_one_basis(
    open_page: Callable[[str], Page], conversation: Conversation
) -> None:
    page = open_page("?a_sample=cat&b_sample=raccoon&a_view=components&b_view=components&apart=1&after_block=2")
    conversation.finish()
    wait(page, "a.settled && b.settled && a.map.colours && b.map.colours && a.features.block === 2")
    checkpoint = vit.load_checkpoint("cifar10")
    pictures = [checkpoint.preprocess(vit.decode_image(samples.read(name))) for name in ("cat", "raccoon")]
    truth = components([patch_features(checkpoint.model, one, 2) for one in pictures])
    for drawn, colours in zip(evaluate(page, COLOURS), truth.colours, strict=True):
        assert np.abs(np.array(drawn) / 255 - colours.numpy().ravel()).max() <= 1 / 255
    before = conversation.runs
    page.locator("canvas.over").first.hover(position={"x": 150, "y": 120})
    wait(page, "a.settled && b.settled && b.map.cosineFeatures[1] === a.features && b.map.cosineToken === a.query")
    expect(page.get_by_text("of the other picture, after block 3; a double line")).to_have_count(1)
    assert conversation.runs == before  # no message
    assert evaluate(page, "(a.useFeatures('of another picture'), a.features)") is None  # not those of the previous one
    page.get_by_text("Display", exact=True).first.click()
    page.get_by_label("Features after block").first.fill("6")
    page.get_by_label("Features after block").first.press("Enter")
    wait(page, "a.settled && b.settled && a.map.colours && b.map.colours && b.features.block === 5")
