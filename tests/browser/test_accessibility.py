"""Accessibility of the pages for screen readers and keyboards."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect
from tiny import TINY, fill

from vit.checkpoints.save import save_checkpoint
from vit.images.preprocess import Preprocess
from vit.model.config import ViTConfig
from vit.model.transformer import VisionTransformer

from .axe import violations
from .serving import ROOT
from .waiting import Conversation

READY = {  # an element that each page shows when it is complete
    "": "canvas.over",
    "compare": "canvas.over",
    "checkpoints": "[data-testid=stFileUploader]",
    "train": ".st-key-start",
    "runs": "h1",
}
FOCUSED = """() => {
  let element = document.activeElement;
  while (element.shadowRoot?.activeElement) element = element.shadowRoot.activeElement;
  if (element === document.body) return null;
  const { left, top, right, bottom } = element.getBoundingClientRect();
  const scrolled = document.querySelector("h1").getBoundingClientRect().top; // focus scrolls the page
  const name = element.getAttribute("aria-label") || element.title || element.textContent;
  return { left, top: top - scrolled, right, bottom: bottom - scrolled, name: name.trim().slice(0, 40) };
}"""


@pytest.mark.parametrize(
    "path", [path if not path else pytest.param(path, marks=pytest.mark.exhaustive) for path in READY]
)
def test_axe_finds_nothing_serious(
    page: Page, conversation: Conversation, serve: Callable[..., str], path: str
) -> None:
    page.goto(f"{serve(ROOT / 'app.py')}/{path}")
    expect(page.locator(READY[path]).first).to_be_visible()
    conversation.finish()
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        assert violations(page) == []


def test_axe_finds_nothing_serious_in_share_and_present(
    page: Page, conversation: Conversation, serve: Callable[..., str]
) -> None:
    page.goto(f"{serve(ROOT / 'app.py')}/?sample=cat&checkpoint=cifar10")
    expect(page.locator("canvas.over")).to_be_visible()
    conversation.finish()
    for ready in ("Picture as PNG", "End the presentation"):
        if ready == "Picture as PNG":
            page.get_by_role("button", name="Share").click()
        else:
            page.keyboard.press("Escape")
            page.evaluate("delete Element.prototype.requestFullscreen")
            page.locator("canvas.over").press("v")
        expect(page.get_by_role("button", name=ready)).to_be_visible()
        for theme in ("light", "dark"):
            page.emulate_media(color_scheme=theme)
            assert violations(page) == []


@pytest.fixture(scope="session")
def estimator(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of checkpoints with a model that estimates four numbers with long names."""
    names = (
        "age of the animal [years]",
        "weight of the animal [kg]",
        "distance to the camera [mm]",
        "temperature [°C]",
    )
    config = ViTConfig(**TINY | {"num_classes": len(names)}, regression=True)
    root = tmp_path_factory.mktemp("estimator")
    save_checkpoint(root / "estimator", fill(VisionTransformer(config)), names, Preprocess(config.image_size))
    return root


@pytest.mark.parametrize(
    ("link", "ready"),
    [
        ("?view=relevance&method=best", "AttnLRP, corrected by|Masks make it truer"),
        ("?view=relevance&method=attnlrp&against=dog&panel=what-if&hidden=0-9", "The hidden patches are"),
        ("compare?mode=many&m_from=upload", "Masks"),
        ("?checkpoint=estimator&view=relevance&method=attnlrp&panel=heads", "Recommended heads"),
    ],
    ids=["best map", "rather than, region", "masks", "numbers"],
)
def test_axe_finds_nothing_serious_in_explanations(
    page: Page, conversation: Conversation, serve: Callable[..., str], estimator: Path, link: str, ready: str
) -> None:
    environment = {"VIT_CHECKPOINTS": str(estimator)} if "estimator" in link else {}
    model = "" if environment or "compare" in link else "&sample=cat&checkpoint=cifar10"
    page.goto(f"{serve(ROOT / 'app.py', **environment)}/{link}{model}")
    expect(page.get_by_text(re.compile(ready)).first).to_be_visible()
    conversation.finish()
    if ready == "Masks":
        page.get_by_role("button", name="Masks").click()
        expect(page.get_by_text("One for each picture")).to_be_visible()
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        assert violations(page) == []


def test_every_estimated_number_is_readable(
    page: Page, conversation: Conversation, serve: Callable[..., str], estimator: Path
) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(f"{serve(ROOT / 'app.py', VIT_CHECKPOINTS=str(estimator))}/?checkpoint=estimator")
    expect(page.locator(".answers span").first).to_be_visible()
    conversation.finish()
    for text in (page.locator(".st-key-answer p"), *page.locator(".answers span").all()):
        assert text.evaluate("text => text.scrollWidth <= text.clientWidth")


def test_keyboard_order_on_explore_is_the_visual_order(
    page: Page, conversation: Conversation, serve: Callable[..., str]
) -> None:
    page.set_viewport_size({"width": 1280, "height": 800})
    page.goto(f"{serve(ROOT / 'app.py')}/?sample=cat")
    expect(page.locator("canvas.over")).to_be_visible()
    conversation.finish()
    walked: list[dict[str, Any]] = []
    while len(walked) < 100:
        page.keyboard.press("Tab")
        one = page.evaluate(FOCUSED)
        if one is None or (walked and one == walked[0]):  # past the last one
            break
        walked.append(one)
    assert [one["name"] for one in walked if one["right"] < 0] == []  # in the closed sidebar
    names = [one["name"] for one in walked]
    start = names.index("Samples")
    assert {"Shareexpand_more", "Display", "Class and methodexpand_more"} <= set(names[start:])
    for before, after in zip(walked[start:], walked[start + 1 :], strict=False):
        assert after["top"] >= before["bottom"] or after["left"] >= before["right"], (before, after)
