"""Share and Present on page Explore: link, picture with caption, picture and grid on the full screen."""

import io
import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Locator, expect

from vit.images import samples

from .explorer import App
from .files import photo, upload
from .serving import FIND

HIDDEN = [f".vit .{name}" for name in ("bar", "invite", "tokens", "legend", "side", "note", "aside")]


def link(app: App) -> str:
    return app.page.get_by_test_id("stPopoverBody").locator("code").inner_text().replace("\n", "")


def test_link_opens_the_view_it_was_copied_from(app: App) -> None:
    app.open("?sample=cat&view=rollout")
    app.page.mouse.click(*app.at(2, 5))
    app.wait_until_idle()
    app.open_share()
    copied, here = urlsplit(link(app)), urlsplit(app.page.url)
    assert (copied.scheme, copied.netloc, copied.path) == (here.scheme, here.netloc, here.path)
    assert parse_qs(copied.query) == parse_qs(here.query)
    assert parse_qs(copied.query)["token"] == [str(1 + 2 * 8 + 5)]
    chosen = app.evaluate("viewer.selection")
    app.page.goto("about:blank")
    app.page.goto(copied.geturl())
    expect(app.page.locator("canvas.over")).to_be_visible()
    app.wait_until_idle()
    assert app.evaluate("viewer.selection") == chosen


def test_share_of_an_own_picture_says_who_can_open_it(app: App) -> None:
    app.open()
    app.open_share()
    expect(app.page.get_by_test_id("stPopoverBody")).not_to_contain_text("The server keeps them")
    app.page.keyboard.press("Escape")
    upload(app.page, {"mine.jpg": photo(600, 900)})
    app.wait_for_payload("header.picture.height", 900)
    app.open_share()
    expect(app.page.get_by_test_id("stPopoverBody")).to_contain_text("The server keeps your pictures for a day.")
    assert "mine.jpg" in link(app)


def test_picture_has_twice_the_screens_size_and_a_caption_of_the_class(app: App) -> None:
    captions = []
    for target in ("cat", "dog"):
        app.open(f"?sample=cat&view=relevance&target={target}")
        app.page.wait_for_function(f"() => {FIND}?.map?.relevanceKey")
        app.open_share()
        picture = Image.open(io.BytesIO(app.download("Picture as PNG"))).convert("L")
        side = min(Image.open(samples.SAMPLES["cat"].path).size)  # the model sees a square
        assert 1200 <= picture.width <= 1236 and picture.height > picture.width and side < 1200
        captions.append(np.asarray(picture.crop((0, picture.width, *picture.size))))
        assert (captions[-1] < 100).any()
        app.page.keyboard.press("Escape")
    assert captions[0].shape != captions[1].shape or (captions[0] != captions[1]).any()


def box(part: Locator) -> dict[str, Any]:
    area = part.bounding_box()
    assert area
    return dict(area)


@pytest.mark.parametrize("width", [1280, 1000, 900, 390])
def test_share_covers_nothing_and_leaves_the_picture_in_place(app: App, width: int) -> None:
    app.page.set_viewport_size({"width": width, "height": 800})
    app.open()
    share, stage = app.page.locator(".st-key-share button"), app.page.locator(".stage")
    before = box(stage)["y"]
    area = box(share)
    if width >= 1000:
        assert area["y"] + area["height"] <= box(app.page.locator(".display summary"))["y"]
        assert area["x"] + area["width"] == pytest.approx(width - 32, abs=1)
    else:
        assert area["y"] >= box(app.page.locator(".mosaic"))["y"] + box(app.page.locator(".mosaic"))["height"]
    for other in app.page.locator("[data-testid=stMain] button:visible").all():
        if "Share" not in other.inner_text():
            there = box(other)
            across = min(area["x"] + area["width"], there["x"] + there["width"]) - max(area["x"], there["x"])
            down = min(area["y"] + area["height"], there["y"] + there["height"]) - max(area["y"], there["y"])
            assert across <= 0 or down <= 0, other.inner_text()
    share.evaluate("(button) => button.closest('.st-key-share').parentElement.remove()")
    assert box(stage)["y"] == before
    app.page.goto("about:blank")  # the removed element does not return by itself


@pytest.fixture(params=["full screen", "window"])
def presented(app: App, request: pytest.FixtureRequest) -> Any:
    """Return `presented(width, height)`: the page in Present, also in browsers without full screen."""
    app.page.goto("about:blank")

    def begin(width: int, height: int) -> App:
        app.page.set_viewport_size({"width": width, "height": height})
        app.open("?sample=cat&view=relevance")
        app.page.wait_for_function(f"() => {FIND}?.map?.relevanceKey")
        if request.param == "window":
            app.page.evaluate("delete Element.prototype.requestFullscreen")
        app.open_display()
        app.page.get_by_role("button", name="Present", exact=True).click()
        app.page.wait_for_function(
            f"(full) => {FIND}.root.matches(':fullscreen') === full", arg=request.param != "window"
        )
        return app

    yield begin
    app.page.goto("about:blank")


@pytest.mark.parametrize(("width", "height"), [(1920, 1080), (1280, 720), (1024, 768)])
def test_present_fills_the_window_with_picture_and_grid(presented: Any, width: int, height: int) -> None:
    page = (app := presented(width, height)).page
    for name in HIDDEN:
        expect(page.locator(name)).to_be_hidden()
    assert box(page.locator(".vit")) == {"x": 0, "y": 0, "width": width, "height": height}
    assert page.evaluate("([x, y]) => document.elementFromPoint(x, y).shadowRoot !== null", [width / 2, 5])
    stage, grid, line = (box(page.locator(name)) for name in (".stage", ".mosaic", ".vit .line"))
    assert stage["y"] >= line["y"] + line["height"] and stage["height"] > 0.8 * height
    assert stage["y"] + stage["height"] == pytest.approx(height, abs=0.03 * height)
    assert stage["x"] + stage["width"] < grid["x"] and grid["x"] + grid["width"] <= width
    assert grid["y"] + grid["height"] <= height and grid["width"] > 0.2 * width
    assert app.evaluate("viewer.root.scrollHeight <= viewer.root.clientHeight")
    small = app.evaluate("getComputedStyle(viewer.page.find('.labels span')).fontSize")
    large = app.evaluate("getComputedStyle(viewer.page.find('.sentence')).fontSize")
    assert float(small[:-2]) >= 0.02 * height and float(large[:-2]) >= 0.028 * height
    said = app.evaluate("[...viewer.root.querySelectorAll('.says, .sentence')].map((one) => one.innerText)")
    assert re.fullmatch(r"It says \w+ \(\d+%\)", said[0]) and said[1].startswith("Relevance")
    page.mouse.move(*app.at(7, 7))
    expect(page.locator(".sentence")).to_contain_text("row 8, col 8")
    assert app.evaluate("viewer.page.find('.sentence').scrollWidth <= viewer.page.find('.sentence').clientWidth")
    assert box(page.locator(".stage")) == stage


def test_hover_pin_and_keys_work_in_present_and_escape_leaves_it(presented: Any) -> None:
    page = (app := presented(1280, 720)).page
    place, before = box(page.locator(".stage")), app.picture()
    page.mouse.move(*app.at(3, 3))
    expect(page.locator(".sentence")).to_contain_text("row 4, col 4")
    assert app.picture() != before and box(page.locator(".stage")) == place
    page.keyboard.press("PageUp")
    expect(page.locator(".sentence")).to_contain_text("Block 5")
    page.mouse.click(*app.at(3, 3))
    assert app.evaluate("viewer.selection.pinned")
    app.wait_until_idle()
    full = app.evaluate("viewer.root.matches(':fullscreen')")
    if not full:
        page.keyboard.press("Escape")
        assert not app.evaluate("viewer.selection.pinned")
        expect(page.locator(".vit .legend")).to_be_hidden()  # the first one releases the pin
        page.keyboard.press("Escape")
    else:  # a headless browser does not leave by itself, as one with a window does
        page.evaluate("document.exitFullscreen()")
    expect(page.locator(".vit .legend")).to_be_visible()
    expect(page.locator(".says")).to_be_hidden()
    page.keyboard.press("v")
    expect(page.locator(".vit .legend")).to_be_hidden()
    page.keyboard.press("v")
    expect(page.locator(".vit .legend")).to_be_visible()
    app.wait_until_idle()
