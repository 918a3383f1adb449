"""Downloads: every file of the page, as a browser receives it."""

import csv
import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Page, expect

from vit.checkpoints.load import load_checkpoint
from vit.exports.animation import encode, over_frames
from vit.images.encode import encode_image
from vit.images.files.decode import count_frames, decode_frames
from vit.images.preprocess import Preprocess
from vit.model.transformer import VisionTransformer
from vit.training.loop.snapshot_writer import SnapshotWriter
from vit.view.selection import Selection

from .explorer import App
from .files import upload
from .serving import FIND, ROOT

TOKEN, BLOCK, HEAD = 1 + 3 * 8 + 4, 2, 1
LINK = f"?sample=cat&block={BLOCK}&head={HEAD}&token={TOKEN}&pinned=1"


def more(app: App) -> None:
    app.page.get_by_role("button", name="More files").click()
    expect(app.page.get_by_role("button", name="Attention over blocks as GIF")).to_be_visible()


def numbers(app: App) -> tuple[np.ndarray, dict[str, Any]]:
    """Download the displayed map's values of patches, one after another, and its facts."""
    with np.load(io.BytesIO(app.download("All attention as NPZ"))) as arrays:
        return arrays["heatmap"].ravel(), json.loads(str(arrays["meta"]))


def html(app: App, folder: Path) -> str:
    """Download the viewer as a file; return its address."""
    app.open_share()
    (folder / "viewer.html").write_bytes(app.download("Viewer as HTML"))
    return (folder / "viewer.html").as_uri()


def choose(app: App, *names: str) -> None:
    for name in names:
        app.page.get_by_test_id("stPopoverBody").get_by_role("radio", name=name).click()
        app.wait_until_idle()


@pytest.mark.exhaustive
def test_panels_download_their_numbers(app: App) -> None:
    app.open("?sample=cat&panel=heads")
    rows = list(csv.DictReader(io.StringIO(app.download("Heads as CSV").decode())))
    assert len(rows) == 24 and all(float(row["entropy"]) <= 1 for row in rows)
    app.open("?sample=cat&panel=layers")
    rows = list(csv.DictReader(io.StringIO(app.download("Layers as CSV").decode())))
    assert len(rows) == 6 * 10
    app.open("?sample=cat&panel=features")
    with np.load(io.BytesIO(app.download("Colours as NPZ"))) as arrays:
        assert arrays["colours_0"].shape[2] == 3
    assert count_frames(app.download("Colours over blocks as GIF")) == 6


@pytest.mark.exhaustive
def test_numbers_blocks_page_and_code_are_of_the_displayed_view(app: App, tmp_path: Path) -> None:
    app.open(LINK)
    values, told = numbers(app)
    named = {"block": f"Block {BLOCK + 1}", "head": f"Head {HEAD + 1}"}
    asked = {"method": "attention", "block": BLOCK, "head": HEAD, "query": TOKEN, "direction": "from"}
    told["view"].pop("faithfulness", None)  # present if the map of this picture was judged on this server
    assert told["view"] == asked | {"page": named}
    more(app)
    assert (
        count_frames(app.download("Attention over blocks as GIF"))
        == count_frames(app.download("Attention over blocks as MP4"))
        == 6
    )

    app.page.keyboard.press("Escape")
    file = html(app, tmp_path)
    app.page.keyboard.press("Escape")
    app.page.get_by_role("button", name="Copy as code").click()
    program = app.page.get_by_test_id("stPopoverBody").locator("code").inner_text()
    left: dict[str, Any] = {}
    exec(program, left)
    assert np.allclose(left["heatmap"].flatten(), values, atol=1e-6)

    app.page.goto(file)
    expect(app.page.locator("canvas.over")).to_be_visible()
    assert app.evaluate("[viewer.selection.block, viewer.selection.head, viewer.selection.token]") == [
        BLOCK,
        HEAD,
        TOKEN,
    ]
    expect(app.page.locator("h1")).to_have_text("cat.jpg · cifar10")
    expect(app.page.locator(".answers")).to_contain_text("It knows 10 classes.")
    app.foreign.clear()  # the file itself


@pytest.mark.exhaustive
@pytest.mark.parametrize("method", ["relevance", "gradcam"])
def test_page_saved_while_attention_is_shown_has_the_map_of_the_class(app: App, tmp_path: Path, method: str) -> None:
    link = f"?sample=cat&method={method}"
    app.open(f"{link}&view=relevance")
    app.page.wait_for_function(f"() => {FIND}?.map?.relevanceKey")
    relevance = app.evaluate("[...viewer.map.relevance]")
    app.open(f"{link}&view=attention&block=2")
    file = html(app, tmp_path)
    app.page.goto(file)
    expect(app.page.locator("canvas.over")).to_be_visible()
    assert app.evaluate("viewer.selection.view") == "attention"
    app.page.locator("[data-value=relevance]").click()
    app.page.wait_for_function(f"() => {FIND}?.map?.relevanceKey")
    assert np.allclose(app.evaluate("[...viewer.map.relevance]"), relevance, atol=1e-5)
    app.foreign.clear()  # the file itself


@pytest.mark.exhaustive
def test_figures_have_the_requested_format(app: App) -> None:
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


def test_animation_is_shown_by_frame_and_downloaded_whole(app: App) -> None:
    app.open()
    noise = np.random.default_rng(0).integers(0, 256, (3, 90, 120, 3), dtype=np.uint8)
    frames = [Image.fromarray(pixels) for pixels in noise]
    wheel = encode_image(frames[0], "GIF", save_all=True, append_images=frames[1:], duration=[100, 200, 300])
    upload(app.page, {"wheel.gif": wheel})
    app.wait_for_payload("header.picture.width", 120)
    before = app.evaluate("viewer.payloadId")
    app.page.get_by_role("slider", name="Frame").press("ArrowRight")
    app.page.wait_for_function(f"() => {FIND}?.payloadId !== {json.dumps(before)}")
    app.wait_until_idle()
    more(app)
    app.page.get_by_role("button", name="Animate all frames").click()
    expect(app.page.get_by_role("button", name="Frames as GIF")).to_be_visible()
    made = app.download("Frames as GIF")
    assert [frame.duration for frame in decode_frames(made, range(count_frames(made)))] == [100, 200, 300]


@pytest.mark.exhaustive
def test_video_is_shown_by_frame_and_class_maps_are_downloaded_for_all(app: App) -> None:
    app.open("?sample=cat&view=relevance&target=dog&method=gradient-rollout")
    data = turned_video(6)
    upload(app.page, {"IMG_0001.MOV": data})
    app.wait_for_payload("header.picture.height", 120)  # upright
    before = app.evaluate("viewer.payloadId")
    app.page.get_by_role("slider", name="Frame").press("ArrowRight")
    app.page.wait_for_function(f"() => {FIND}?.payloadId !== {json.dumps(before)}")
    app.wait_until_idle()
    assert "target=dog" in app.page.url  # the class is kept, with another probability
    expect(app.page.locator(".sentence").first).to_contain_text("dog")
    more(app)
    app.page.get_by_role("button", name="Animate all frames").click()
    expect(app.page.get_by_role("button", name="Frames as MP4")).to_be_visible()
    shown = pictures(app.download("Frames as MP4"))
    film = over_frames(
        load_checkpoint("cifar10"), data, Selection(view="relevance"), (32, 32), target=5, method="gradient-rollout"
    )
    assert len(shown) == 6
    for found, truth in zip(shown, pictures(encode(film, "MP4")), strict=True):
        assert np.abs(found - truth).mean() < 1


def pictures(data: bytes) -> list[np.ndarray]:
    """Return the frames of an MP4, each (height, width, 3)."""
    with av.open(io.BytesIO(data)) as container:
        return [np.asarray(frame.to_image()).astype(int) for frame in container.decode(video=0)]


def turned_video(count: int) -> bytes:
    """Write noise as a phone does: 120 x 90 with a rotation."""
    blocks = np.random.default_rng(0).integers(0, 256, (count, 9, 12, 3), dtype=np.uint8)
    out = io.BytesIO()
    with av.open(out, "w", format="mov") as container:
        stream = container.add_stream("libx264", rate=10)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height, stream.pix_fmt = 120, 90, "yuv420p"
        stream.set_display_rotation(-90)
        for few in blocks:
            picture = Image.fromarray(few).resize((120, 90), Image.Resampling.NEAREST)
            container.mux(stream.encode(av.VideoFrame.from_image(picture)))
        container.mux(stream.encode(None))
    return out.getvalue()


@pytest.mark.exhaustive
def test_epochs_of_a_run_download_as_one_animation(
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
    writer = SnapshotWriter(run / "probes", images, [4, 0], labels, Preprocess((32, 32)))
    for epoch in range(1, 4):
        writer.store(epoch, build(epoch))
    app = App(page, serve(ROOT / "app.py", VIT_RUNS=str(tmp_path)))
    page.goto(f"{app.url}/runs?run={run.name}&view=attention")
    expect(page.locator("canvas.over")).to_be_visible()
    app.wait_until_idle()
    assert count_frames(app.download("Epochs as GIF")) == count_frames(app.download("Epochs as MP4")) == 3
    assert not app.errors and not app.foreign
