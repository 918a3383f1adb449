"""What people take away from the page: every file, as a browser gets it."""

import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Page, expect

from vit.images import Preprocess, count_frames, decode_frames
from vit.model import VisionTransformer
from vit.probes import ProbeWriter

from .serving import FIND
from .test_explore import PATIENCE, ROOT, App

TOKEN, BLOCK, HEAD = 1 + 3 * 8 + 4, 2, 1
LINK = f"?sample=cat&block={BLOCK}&head={HEAD}&token={TOKEN}&pinned=1"


@pytest.fixture
def app(page: Page, serve: Callable[..., str]) -> Iterator[App]:
    page.set_viewport_size({"width": 1280, "height": 1000})
    yield (app := App(page, serve(ROOT / "app.py")))
    assert not app.errors and not app.foreign


def more(app: App) -> None:
    app.page.get_by_role("button", name="More ways to take it away").click()
    expect(app.page.get_by_role("button", name="Numbers as JSON")).to_be_visible()


def choose(app: App, *names: str) -> None:
    for name in names:
        app.page.get_by_test_id("stPopoverBody").get_by_role("radio", name=name).click()
        app.still()


def test_numbers_blocks_page_and_code_are_of_the_view_that_is_shown(app: App, tmp_path: Path) -> None:
    app.open(LINK)
    more(app)
    told = json.loads(app.download("Numbers as JSON"))
    assert told["view"] == {"method": "attention", "block": BLOCK, "head": HEAD, "query": TOKEN, "direction": "from"}
    assert told["picture"]["name"] == "cat.jpg" and len(told["values"]) == 65
    assert count_frames(app.download("Blocks as GIF")) == 6

    file = tmp_path / "viewer.html"
    file.write_bytes(app.download(re.compile("Viewer as HTML")))  # type: ignore[arg-type]
    app.page.keyboard.press("Escape")
    app.page.get_by_role("button", name="Copy as code").click()
    program = app.page.get_by_test_id("stPopoverBody").locator("code").inner_text()
    left: dict[str, Any] = {}
    exec(program, left)
    assert np.allclose(left["weights"], told["values"], atol=1e-6)

    app.page.goto(file.as_uri())
    expect(app.page.locator("canvas.over")).to_be_visible()
    assert app.ask("[viewer.selection.block, viewer.selection.head, viewer.selection.token]") == [BLOCK, HEAD, TOKEN]
    expect(app.page.locator("h1")).to_have_text("cat.jpg · cifar10")
    app.foreign.clear()  # the file itself


@pytest.mark.parametrize("pinned", [True, False])
def test_the_map_of_a_class_is_taken_away_as_it_is_shown(app: App, tmp_path: Path, pinned: bool) -> None:
    app.open("?sample=cat&view=relevance" + (f"&token={TOKEN}&pinned=1" if pinned else ""))
    app.page.wait_for_function(f"() => {FIND}?.traced")
    shown, said = app.ask("[...viewer.relevance]"), app.page.locator(".sentence").first.inner_text()
    more(app)
    told = json.loads(app.download("Numbers as JSON"))
    assert np.allclose(told["values"], shown, atol=0.002) and told["sentence"] == said
    assert told["view"]["target"] == "cat" and told["view"].get("query") == (TOKEN if pinned else None)
    assert told["scale"]["unit"] == "share"
    file = tmp_path / "viewer.html"
    file.write_bytes(app.download(re.compile("Viewer as HTML")))  # type: ignore[arg-type]
    app.page.goto(file.as_uri())
    expect(app.page.locator(".sentence")).to_have_text(said)
    assert np.allclose(app.ask("[...viewer.relevance]"), shown, atol=1e-5)
    app.foreign.clear()  # the file itself


def test_figures_come_as_asked_for(app: App) -> None:
    app.open(LINK)
    more(app)
    picture = Image.open(io.BytesIO(app.download("Figure")))
    assert picture.format == "PNG" and picture.width == pytest.approx(85 / 25.4 * 300, abs=1)
    choose(app, "All heads", "SVG", "180 mm")
    drawing = app.download("Figure").decode()
    assert "<svg" in drawing and "Every head of every block" in drawing and 'width="510.2' in drawing
    assert "Chelsea the cat by Stefan van der Walt, CC0 1.0" in re.sub(r"<[^>]+>|\s+", " ", drawing).replace("  ", " ")
    choose(app, "PDF")
    assert app.download("Figure").startswith(b"%PDF")


def test_an_animation_is_shown_by_frame_and_taken_away_as_a_whole(app: App) -> None:
    app.open()
    noise = np.random.default_rng(0).integers(0, 256, (3, 90, 120, 3), dtype=np.uint8)
    frames = [Image.fromarray(pixels) for pixels in noise]
    out = io.BytesIO()
    frames[0].save(out, "GIF", save_all=True, append_images=frames[1:], duration=[100, 200, 300])
    upload = {"name": "wheel.gif", "mimeType": "image/gif", "buffer": out.getvalue()}
    app.page.locator('[data-testid="stFileUploader"] input[type="file"]').set_input_files(upload)
    app.shows("header.picture.width", 120)
    app.still()
    before = app.ask("viewer.payloadId")
    app.page.get_by_role("slider", name="Frame").press("ArrowRight")
    app.page.wait_for_function(f"() => {FIND}?.payloadId !== {json.dumps(before)}")
    app.still()
    more(app)
    app.page.get_by_role("button", name="Animate all frames").click()
    expect(app.page.get_by_role("button", name="Frames as GIF")).to_be_visible(timeout=PATIENCE)
    made = app.download("Frames as GIF")
    assert [frame.duration for frame in decode_frames(made, range(count_frames(made)))] == [100, 200, 300]


def test_the_epochs_of_a_run_come_as_one_animation(
    page: Page,
    serve: Callable[..., str],
    tmp_path: Path,
    build: Callable[..., VisionTransformer],
    labels: tuple[str, ...],
) -> None:
    run = tmp_path / "20260101-120000-tiny-aaaa"
    run.mkdir()
    (run / "config.json").write_text("{}")
    (run / "about.json").write_text('{"name": "Tiny"}')
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    writer = ProbeWriter(run / "probes", images, [4, 0], labels, Preprocess((32, 32)))
    for epoch in range(1, 4):
        writer.store(epoch, build(epoch))
    app = App(page, serve(ROOT / "app.py", VIT_RUNS=str(tmp_path)))
    page.goto(f"{app.url}/runs?run={run.name}&view=Attention")
    expect(page.locator("canvas.over")).to_be_visible(timeout=PATIENCE)
    app.still()
    assert count_frames(app.download("Epochs as GIF")) == 3
    assert not app.errors and not app.foreign
