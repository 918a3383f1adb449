"""Checkpoints from elsewhere: uploaded or downloaded, opened, completed, exported, renamed, deleted."""

import io
import re
import shutil
import tomllib
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import timm
import torch
import transformers
from hub_server import HubServer
from playwright.sync_api import Locator, Page, expect
from tiny import fill

from vit import load_checkpoint
from vit.checkpoints import manage
from vit.model.cpu import has_bfloat16

from .explorer import open_model
from .files import download, upload
from .serving import FIND

ROOT = Path(__file__).parents[2]
WEIGHTS, CONFIG = "model.safetensors", "config.json"


class Places(NamedTuple):
    """Folders for this file's tests, the Hub that the server uses, and a published transformers model."""

    shelf: Path
    downloads: Path
    published: Path
    hub: HubServer


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Places]:
    root = tmp_path_factory.mktemp("checkpoints")
    small = dict(hidden_size=64, num_hidden_layers=2, num_attention_heads=4, intermediate_size=96, layer_norm_eps=1e-6)
    config = transformers.ViTConfig(**small, image_size=32, patch_size=8, num_labels=3)
    fill(transformers.ViTForImageClassification(config)).save_pretrained(root / "published")
    with HubServer().running() as hub:
        yield Places(root / "shelf", root / "downloads", root / "published", hub)


@pytest.fixture
def url(places: Places, serve: Callable[..., str], page: Page) -> str:
    """The app with an empty shelf and no downloads."""
    for folder in (places.shelf, places.downloads):
        shutil.rmtree(folder, ignore_errors=True)
    page.set_viewport_size({"width": 1280, "height": 1000})
    return serve(
        ROOT / "app.py",
        OMP_NUM_THREADS="1",
        HF_HUB_OFFLINE="0",
        HF_ENDPOINT=places.hub.url,
        VIT_CHECKPOINTS=str(places.shelf),
        VIT_DOWNLOADS=str(places.downloads),
        VIT_RUNS=str(places.shelf.parent / "runs"),
    )


@pytest.fixture
def kept(url: str, places: Places) -> str:
    """The published model's name, which is on the shelf."""
    files = {file: io.BytesIO((places.published / file).read_bytes()) for file in (WEIGHTS, CONFIG)}
    return manage.add(files, "tiny", places.shelf).name


def add(page: Page, files: dict[str, bytes]) -> None:
    upload(page, files)
    page.get_by_role("button", name="Add", exact=True).dblclick()  # clicks again without waiting


def row(page: Page, name: str) -> Locator:
    """Return a checkpoint's row of the table in the accessibility tree; the visible one is a canvas."""
    return page.locator("canvas tbody tr").filter(has=page.locator("td").get_by_text(name, exact=True))


def expect_map(page: Page, **payload: int) -> None:
    """Wait until the viewer has a payload of these sizes and has drawn its map."""
    page.wait_for_function(
        """sizes => {
            const viewer = VIEWER;
            if (!viewer?.payload || Object.entries(sizes).some(([name, size]) => viewer.payload[name] !== size)) return;
            const { width, height } = viewer.page.over;
            const seen = width && viewer.page.over.getContext("2d").getImageData(0, 0, width, height).data;
            return seen && seen.some((value, i) => i % 4 === 3 && value);
        }""".replace("VIEWER", FIND),
        arg=payload,
    )


def choose(page: Page, label: str, option: str | re.Pattern[str]) -> None:
    page.get_by_role("combobox", name=re.compile(label)).click()
    page.get_by_role("option", name=option).click()


def opened(model: Any, checkpoint: Path) -> None:
    """Assert that another library's model gives our logits."""
    images = torch.randn(2, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        theirs = model.eval()(images)
        ours = load_checkpoint(checkpoint).model(images).logits
    assert torch.allclose(getattr(theirs, "logits", theirs), ours, atol=1e-5)


def test_uploaded_model_is_listed_and_opens_with_one_click(page: Page, url: str, places: Places) -> None:
    page.goto(f"{url}/checkpoints")
    expect(page.get_by_text("There is no checkpoint yet.")).to_be_visible()
    add(page, {name: (places.published / name).read_bytes() for name in (WEIGHTS, CONFIG)})
    expect(row(page, "vit")).to_contain_text("transformers")  # follows the values from its config
    expect(page.get_by_test_id("stAlert")).not_to_be_attached()
    page.get_by_role("link", name="Open in Explore").click()
    expect(page).to_have_url(re.compile("checkpoint=vit"))
    expect_map(page, blocks=2, heads=4, tokens=17)


@pytest.mark.exhaustive
def test_converted_checkpoint_downloads_and_opens_in_other_libraries(
    page: Page, url: str, places: Places, kept: str, tmp_path: Path
) -> None:
    page.goto(f"{url}/?checkpoint={kept}")
    expect_map(page, heads=4)
    open_model(page)
    page.get_by_role("button", name="For another library").click()
    for library in ("transformers", "timm"):
        if library == "timm":
            choose(page, "Library", library)
            expect(page.get_by_text("timm.create_model")).to_be_visible()
        zipfile.ZipFile(io.BytesIO(download(page, "Download", exact=True))).extractall(tmp_path / library)
    opened(
        transformers.ViTForImageClassification.from_pretrained(tmp_path / "transformers" / kept), places.shelf / kept
    )
    opened(timm.create_model(f"local-dir:{tmp_path / 'timm' / kept}", pretrained=True), places.shelf / kept)


def test_model_is_downloaded_by_name_with_a_progress_bar(page: Page, url: str, places: Places) -> None:
    commit = places.hub.publish("ada/tiny", places.published)
    places.hub.gate.clear()
    try:
        page.goto(f"{url}/checkpoints")
        page.get_by_role("textbox", name=re.compile("Hugging Face Hub")).fill("ada/tiny")
        page.get_by_role("button", name="Fetch").click()
        bar = page.get_by_test_id("stProgress")
        expect(bar).to_contain_text("Downloading ada/tiny")
        expect(bar.get_by_role("progressbar")).to_have_attribute("aria-valuenow", re.compile(r"^(4\d|50)$"))
    finally:
        places.hub.gate.set()
    expect(row(page, f"ada/tiny@{commit[:7]}")).to_be_attached()
    expect(bar).not_to_be_attached()
    page.get_by_role("link", name="Open in Explore").click()
    expect_map(page, heads=4)


@pytest.mark.exhaustive
def test_fast_pass_is_in_the_link_and_shows_another_map(page: Page, url: str, kept: str) -> None:
    """It is offered where the processor is faster at it; a link enables it anywhere, and it can be disabled there."""
    page.goto(f"{url}/?checkpoint={kept}")
    expect_map(page, tokens=17)
    exact = page.evaluate(f"() => {FIND}.payloadId")
    toggle = page.get_by_text("Fast, slightly inexact")
    expect(toggle).to_have_count(1 if has_bfloat16() else 0)
    page.goto(f"{url}/?checkpoint={kept}&precision=bfloat16")
    expect_map(page, tokens=17)
    assert page.evaluate(f"() => {FIND}.payloadId") != exact
    open_model(page)
    toggle.click()
    expect(page).not_to_have_url(re.compile("precision"))
    page.wait_for_function(f"exact => {FIND}.payloadId === exact", arg=exact)


def test_uploader_states_the_servers_limit(page: Page, url: str) -> None:
    """Streamlit's text has no decimals, and is in GB from 500 MB on."""
    with (ROOT / ".streamlit" / "config.toml").open("rb") as file:
        most = tomllib.load(file)["server"]["maxUploadSize"]
    page.goto(f"{url}/checkpoints")
    expect(page.get_by_text("per file")).to_contain_text(f"{most / 1000:g}GB per file")
