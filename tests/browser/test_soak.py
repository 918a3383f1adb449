"""A hasty visitor: clicks, uploads and page changes, faster than the server answers.

VIT_SOAK=600 runs it for ten minutes; VIT_SEED repeats a failed run.
"""

import os
import random
import time
from collections.abc import Callable
from contextlib import suppress

import numpy as np
import pytest
from PIL import Image
from playwright.sync_api import Error, Page, expect

from vit.images.encode import encode_image

from .files import upload
from .serving import ROOT

SECONDS = float(os.environ.get("VIT_SOAK", "8"))
SEED = int(os.environ.get("VIT_SEED", time.time_ns() % 10**6))
HASTE = 3000  # timeout [ms] of a click before another action is tried
pytestmark = pytest.mark.slow


def picture(seed: int) -> dict[str, bytes]:
    """Return a file that was not uploaded before, by name."""
    noise = np.random.default_rng(seed).integers(0, 256, (60, 80, 3), np.uint8)
    return {f"picture-{seed}.png": encode_image(Image.fromarray(noise))}


class Hasty:
    """A visitor with random actions."""

    def __init__(self, page: Page, chance: random.Random):
        self.page, self.chance, self.done = page, chance, 0

    def samples(self) -> None:
        for _ in range(self.chance.randint(1, 5)):
            self.page.get_by_text("Samples", exact=True).click(timeout=HASTE)
            self.page.locator(".others button").nth(self.chance.randrange(8)).click(timeout=HASTE)

    def upload(self) -> None:
        upload(self.page, picture(self.chance.randrange(10**6)), HASTE)

    def viewer(self) -> None:
        for _ in range(self.chance.randint(1, 4)):
            where = {"x": self.chance.randint(20, 200), "y": self.chance.randint(20, 200)}
            self.page.locator("canvas.over").first.click(position=where, timeout=HASTE)

    def panel(self) -> None:
        names = ("Faithfulness", "Ablation", "Heads", "Layers", "Weights")
        self.page.get_by_role("radio", name=self.chance.choice(names)).first.click(timeout=HASTE)

    def class_(self) -> None:
        self.page.get_by_role("button", name="Class and method").click(timeout=HASTE)
        self.page.get_by_test_id("stSelectbox").filter(has_text="Class").first.locator("input").click(timeout=HASTE)
        self.page.get_by_role("option").nth(self.chance.randrange(5)).click(timeout=HASTE)

    def leave(self) -> None:
        self.page.get_by_role("link", name=self.chance.choice(("Runs", "Compare", "Checkpoints"))).first.click(
            timeout=HASTE
        )
        self.page.get_by_role("link", name="Explore").first.click(timeout=HASTE)

    def act(self) -> None:
        """Perform a random action; skip it if the target cannot be clicked while the page changes."""
        kinds = (self.samples, self.samples, self.upload, self.viewer, self.viewer, self.panel, self.class_, self.leave)
        with suppress(Error):
            self.chance.choice(kinds)()
            self.done += 1
        self.page.wait_for_timeout(self.chance.choice((0, 20, 100, 400)))


@pytest.mark.exhaustive
def test_page_survives_a_hasty_visitor(page: Page, serve: Callable[..., str]) -> None:
    print(f"VIT_SEED={SEED}")
    page.goto(serve(ROOT / "app.py"))
    expect(page.locator("canvas.over").first).to_be_visible()
    page.evaluate("window.first = true")  # gone if the watchdog had to reload
    hasty, until = Hasty(page, random.Random(SEED)), time.monotonic() + SECONDS
    while time.monotonic() < until:
        hasty.act()
        assert page.evaluate("window.first"), "the page was given up, and reloaded"
    page.get_by_role("link", name="Explore").first.click()
    expect(page.locator("canvas.over").first).to_be_visible()
    app = page.get_by_test_id("stApp")
    expect(app).to_have_attribute("data-test-connection-state", "CONNECTED")
    expect(app).to_have_attribute("data-test-script-state", "notRunning")
    assert page.get_by_test_id("stException").count() == 0 and page.evaluate("window.first")
    print(f"{hasty.done} things done in {SECONDS:.0f} s")
    assert hasty.done > SECONDS / 10
