"""Accessibility of the pages for screen readers and keyboards."""

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

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
