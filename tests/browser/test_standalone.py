"""The viewer as a file: opened from the disk, without a server and without a network."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, expect

from vit.errors import UserError
from vit.explain.record import AttentionRecord, record
from vit.images.preprocess import Preprocess
from vit.model.transformer import VisionTransformer
from vit.view import standalone_page as module
from vit.view.map_view import MapView
from vit.view.overlay import COLORMAPS
from vit.view.payload import pack, pack_chain, pack_features, pack_masks
from vit.view.selection import Selection
from vit.view.standalone_page import standalone

from .offline import OfflineFile
from .serving import FIND
from .synthetic import mask_drops

HOSTILE = """</title></h1><script>window.hurt = 1</script><img src=x onerror="window.hurt = 1"> "quoted" & 照片"""


@pytest.fixture
def kept(build: Callable[..., VisionTransformer], preprocess: Preprocess) -> AttentionRecord:
    """A record of 17 tokens."""
    return record(build(), preprocess(photo()))


def photo() -> Image.Image:
    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (32, 32, 3), dtype=np.uint8))


def packed(kept: AttentionRecord) -> bytes:
    return pack(kept, photo(), (0, 0, 32, 32), COLORMAPS)


class File(OfflineFile):
    """A viewer's file."""

    def __init__(self, browser: Browser, folder: Path, **options: Any):
        super().__init__(browser, viewport={"width": 1200, "height": 900}, **options)
        self.folder = folder

    def open(self, content: bytes) -> "File":
        path = self.folder / "viewer.html"
        path.write_bytes(content)
        self.page.goto(path.as_uri())
        expect(self.page.locator("canvas.over")).to_be_visible()
        self.wait_until_idle()
        return self

    def wait_until_idle(self) -> None:
        self.page.wait_for_function(f"() => {FIND}.settled")

    def evaluate(self, code: str) -> Any:
        return self.page.evaluate(f"() => {{ const viewer = {FIND}; return {code}; }}")

    def map(self) -> str:
        return self.page.locator("canvas.over").evaluate("canvas => canvas.toDataURL()")

    def hover(self, row: int, col: int) -> None:
        area = self.page.locator("canvas.over").bounding_box()
        assert area
        self.page.mouse.move(area["x"] + (col + 0.5) / 4 * area["width"], area["y"] + (row + 0.5) / 4 * area["height"])
        self.wait_until_idle()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Any:
    file = File(browser, tmp_path)
    yield file
    file.close()


def test_hovering_changes_the_map(opened: File, kept: AttentionRecord) -> None:
    opened.open(standalone(packed(kept), Selection(), "A picture"))
    expect(opened.page).to_have_title("A picture")
    before = opened.map()
    opened.hover(1, 2)
    assert opened.map() != before
    assert opened.evaluate("viewer.query") == 1 + 1 * 4 + 2


def test_file_opens_with_the_saved_selection(opened: File, kept: AttentionRecord) -> None:
    chosen = Selection(block=1, head="max", token=7, pinned=True, direction="to", colormap="magma", opacity=0.4)
    opened.open(standalone(packed(kept), chosen, "A picture"))
    assert opened.evaluate("viewer.selection") == asdict(chosen) | {"hidden": [], "after_block": 1}
    values = opened.evaluate("[...viewer.engine.values.slice(viewer.engine.offset(2, 0)).slice(0, 17)]")
    assert np.allclose(values, kept.weights(7, 1, "max", "to"), atol=0.002)


@pytest.mark.parametrize("cell", ["", "view-1"])
def test_presentation_fills_the_window_and_leaves_the_page_as_it_was(
    opened: File, kept: AttentionRecord, cell: str
) -> None:
    opened.open(standalone(packed(kept), Selection(), "A picture", ["A fact"], cell=cell))
    opened.page.evaluate("delete Element.prototype.requestFullscreen")  # as in a frame that does not allow it
    main, viewer = opened.page.locator("main"), opened.page.locator(".vit")
    before, place = main.bounding_box(), viewer.bounding_box()
    opened.page.locator("canvas.over").press("v")
    assert viewer.bounding_box() == {"x": 0, "y": 0, "width": 1200, "height": 900}
    stage = opened.page.locator(".stage").bounding_box()
    assert stage and stage["height"] > 0.8 * 900 and stage["y"] + stage["height"] <= 900
    after = main.bounding_box()
    assert before and after and after["height"] >= before["height"]  # a notebook's frame has the page's height
    for name in (".bar", ".legend", ".side"):
        expect(opened.page.locator(name)).to_be_hidden()
    opened.hover(1, 2)
    assert opened.evaluate("viewer.query") == 1 + 1 * 4 + 2
    opened.page.get_by_role("button", name="End the presentation").click()
    assert (main.bounding_box(), viewer.bounding_box()) == (before, place)
    expect(opened.page.locator(".legend")).to_be_visible()


@pytest.mark.parametrize("cell", ["", "view-1"])
@pytest.mark.parametrize("javascript", [True, False])
def test_browser_that_is_too_old_gets_one_sentence(
    browser: Browser, tmp_path: Path, kept: AttentionRecord, cell: str, javascript: bool
) -> None:
    (tmp_path / "viewer.html").write_bytes(standalone(packed(kept), Selection(), "A picture", ["A fact"], cell=cell))
    context = browser.new_context(java_script_enabled=javascript)
    page = context.new_page()
    page.add_init_script("delete window.DecompressionStream")  # as before Safari 16.4
    page.goto((tmp_path / "viewer.html").as_uri())
    sentence = "This page needs JavaScript, and at least Safari 16.4, Chrome 111, Edge 111 or Firefox 113."
    expect(page.locator("main")).to_have_text(f"A picture\n\n{sentence}", use_inner_text=True)
    context.close()


@pytest.mark.parametrize(("scheme", "colours"), [("light", ["rgb(255, 255, 255)", "rgb(27, 35, 38)"]),
                                                 ("dark", ["rgb(18, 24, 26)", "rgb(230, 236, 236)"])])  # fmt: skip
@pytest.mark.parametrize("function", ["light-dark", "unknown"])  # Safari has light-dark since 17.5
def test_colours_follow_the_system(
    browser: Browser, tmp_path: Path, kept: AttentionRecord, scheme: Any, colours: list[str], function: str
) -> None:
    file = File(browser, tmp_path, color_scheme=scheme)
    file.open(standalone(packed(kept), Selection(), "A picture").replace(b"light-dark(", function.encode() + b"("))
    style = "(body) => (({ backgroundColor, color }) => [backgroundColor, color])(getComputedStyle(body))"
    assert file.page.locator("body").evaluate(style) == colours
    pressed = file.page.locator(".switch [aria-pressed=true]").first
    assert pressed.evaluate("(button) => getComputedStyle(button).backgroundColor") == colours[0]
    file.close()


def test_maps_are_judged_in_the_file(opened: File, kept: AttentionRecord) -> None:
    masks, drops = mask_drops(kept, 64)
    planted = pack_masks(masks, drops, kept.grid, HOSTILE, ceiling=1.0, decidable=True)
    opened.open(standalone(packed(kept), Selection(block=1, head=0), "A picture", masks=planted))
    readings = opened.page.locator(".faithfulness dd")
    expect(readings.first).to_have_text("1.00")
    expect(readings.last).to_have_text("better than chance · removal map 1.00")
    opened.hover(1, 2)
    expect(readings.first).not_to_have_text("1.00")
    assert opened.page.evaluate("window.hurt") is None


def test_faithfulness_is_called_an_estimate_while_masks_are_measured(opened: File, kept: AttentionRecord) -> None:
    masks, drops = mask_drops(kept, 64)
    first = pack_masks(masks, drops, kept.grid, "cat", ceiling=1.0, decidable=True, complete=False)
    opened.open(standalone(packed(kept), Selection(block=1, head=0), "A picture", masks=first))
    expect(opened.page.locator(".faithfulness dt")).to_have_text("Faithful to “cat”, by 64 masks so far")
    expect(opened.page.locator(".faithfulness dd").first).to_have_text("≈ 1.00")


def test_foreign_text_is_escaped(opened: File, kept: AttentionRecord) -> None:
    renamed = replace(kept, prefix=("<script>window.hurt = 1</script>",))
    selection = replace(Selection(), colormap="</script><script>window.hurt = 1</script>")
    opened.open(standalone(packed(renamed), selection, HOSTILE, [HOSTILE, "Second."]))
    expect(opened.page).to_have_title(HOSTILE)
    expect(opened.page.locator("h1")).to_have_text(HOSTILE)
    expect(opened.page.locator(".facts").first).to_have_text(HOSTILE)
    expect(opened.page.locator(".facts").last).to_have_text("Second.")
    assert opened.page.evaluate("window.hurt") is None
    assert opened.page.locator("main img").count() == 1


def test_injected_script_would_not_run(opened: File, kept: AttentionRecord) -> None:
    content = standalone(packed(kept), Selection(), "A picture")
    opened.open(content.replace(b"<main>", b"<main><script>window.hurt = 1</script>"))
    assert opened.page.evaluate("window.hurt") is None
    assert opened.wrong and all("Content Security Policy" in text for text in opened.wrong)
    opened.wrong.clear()


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_theme_follows_the_reader(
    browser: Browser, tmp_path: Path, kept: AttentionRecord, scheme: str, dark: bool
) -> None:
    file = File(browser, tmp_path, color_scheme=scheme).open(standalone(packed(kept), Selection(), "A picture"))
    color = file.page.evaluate("getComputedStyle(document.body).backgroundColor")
    brightness = sum(map(int, re.findall(r"\d+", color)[:3]))
    assert (brightness < 200) is dark, color
    file.context.close()


def test_data_from_python_is_shown_and_nothing_is_pending(
    opened: File, build: Callable[..., VisionTransformer], tmp_path: Path
) -> None:
    large = record(build(), Preprocess((160, 160))(photo()))  # 401 tokens: no rollout in the browser
    computed = {"view": "rollout", "token": 30, "direction": "from", "values": large.rollout(30).tolist()}
    selection = Selection(view="rollout", token=30, pinned=True)
    computed["settings"] = selection.settings()
    opened.open(standalone(packed(large), selection, "A picture", computed=computed))
    assert np.allclose(opened.evaluate("[...viewer.map.rollout]"), large.rollout(30), rtol=1e-5)
    assert opened.page.locator(".note").is_hidden()
    opened.page.get_by_role("button", name="Attended by").click()
    opened.wait_until_idle()
    expect(opened.page.locator(".note")).to_have_text("Only the app can compute this map")


def test_chain_of_a_class_is_included(opened: File, kept: AttentionRecord) -> None:
    matrices = [kept.full(block).mean(0) for block in range(2)]
    chain = pack_chain(matrices, kept.rows(1, [0]).mean(0)[0])
    method = {"title": "Method", "target": "cat", "chain": "elsewhere", "tokens": True, "settings": []}
    opened.open(standalone(packed(kept), Selection(view="relevance"), "A picture", method=method, chain=chain))
    expect(opened.page.locator(".sentence")).to_have_text("Method: evidence for “cat”.")
    assert opened.evaluate("viewer.map.relevance.reduce((a, b) => a + b)") == pytest.approx(1, abs=0.01)


def test_components_are_included(opened: File, kept: AttentionRecord) -> None:
    assert kept.features is not None
    colours = torch.rand(4, 4, 3)
    features = pack_features(kept.features, kept.grid, 0, colours, (0.5, 0.3, 0.1))
    chosen = Selection(view="components", after_block=0, opacity=1.0)
    opened.open(standalone(packed(kept), chosen, "A picture", features=features))
    expect(opened.page.locator(".sentence")).to_contain_text("Components of the features after block 1 as colours")
    expect(opened.page.get_by_text("Red 50%, green 30%, blue 10% of how the patches differ")).to_be_visible()
    pixels = np.array(opened.evaluate("[...viewer.page.over.getContext('2d').getImageData(0, 0, 4, 4).data]"))
    assert np.abs(pixels.reshape(4, 4, 4)[..., :3] / 255 - colours.numpy()).max() <= 1 / 255
    opened.page.get_by_text("Display", exact=True).click()
    opened.page.get_by_label("Features after block").fill("2")  # unavailable in the file
    opened.page.get_by_label("Features after block").press("Enter")
    expect(opened.page.get_by_text("Only the app can compute this map")).to_be_visible()


def test_no_components_without_features(opened: File, kept: AttentionRecord) -> None:
    opened.open(standalone(packed(kept), Selection(view="components"), "A picture"))
    expect(opened.page.get_by_role("button", name="Components")).to_be_hidden()
    assert opened.evaluate("viewer.state.view") == "attention"


SELECTIONS = [
    Selection(block=0, head=1, token=6),
    Selection(block=-1, head="max", token=0, direction="to"),
    Selection(block="min", head=0, token=2),
    Selection(block="mean", head="mean", token=5),
    Selection(block="max", head="min", token=1, direction="to"),
    Selection(view="rollout", token=3),
    Selection(view="rollout", token=0, direction="to"),
    Selection(view="similar", token=9),
]


def test_sentences_equal_the_viewers(
    opened: File, build: Callable[..., VisionTransformer], preprocess: Preprocess
) -> None:
    kept = record(build(prefix=("cls", "dist", "reg1")), preprocess(photo()))
    opened.open(standalone(packed(kept), Selection(), "A picture"))
    for selection in SELECTIONS:
        wanted = asdict(replace(selection, block=selection.block if selection.block != -1 else 1))
        chosen = f"Object.assign(viewer.selection, {json.dumps(wanted)})"
        opened.evaluate(f"({chosen}, viewer.fitSelection(), viewer.draw())")
        said = MapView.of(kept, selection).sentence
        expect(opened.page.locator(".sentence")).to_have_text(said)


def test_pooling_query_has_the_viewers_sentence(
    opened: File, build: Callable[..., VisionTransformer], preprocess: Preprocess
) -> None:
    kept = record(build(prefix=(), pool="map"), preprocess(photo()))
    for head in (1, "max"):
        selection = Selection(view="pool", head=head)
        opened.open(standalone(packed(kept), selection, "A picture"))
        expect(opened.page.locator(".sentence")).to_have_text(MapView.of(kept, selection).sentence)


def test_too_large_a_file_is_refused(kept: AttentionRecord, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_PAYLOAD", 1000)
    with pytest.raises(UserError, match="Choose a smaller input size"):
        standalone(packed(kept), Selection(), "A picture")


def test_invalid_payload_is_refused() -> None:
    with pytest.raises(ValueError, match="not a viewer payload"):
        standalone(b"nothing", Selection(), "A picture")
