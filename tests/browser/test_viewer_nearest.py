"""View *Nearest patches* of the viewer: its cosines equal the record's in Python."""

import re

import numpy as np
import pytest
from playwright.sync_api import expect

from . import synthetic
from .synthetic import ALIKE


def test_nearest_patches_follow_the_pointer_without_the_server(open_viewer):
    viewer = open_viewer("case=alike")
    frames = viewer.conversation.runs
    viewer.page.get_by_role("button", name="Nearest patches").click()
    viewer.expect_selection("view=similar")
    viewer.expect_sentence("Patches most like the class token, by their features after the last block.")
    viewer.wait_until_idle()
    over, frames = viewer.pixels(".over"), viewer.conversation.runs
    viewer.point(1, 2)
    viewer.expect_sentence(re.compile(r"most like patch \(row 2, col 3\)"))
    assert viewer.pixels(".over") != over
    viewer.wait_until_idle()
    assert viewer.conversation.runs == frames


def test_nearest_other_patches_are_outlined_and_the_first_is_named(open_viewer):
    viewer = open_viewer("case=alike&view=similar&token=10&pinned=1")
    cosines = synthetic.record(*ALIKE).similarity(10)[2:]
    cosines[8] = -2  # itself
    best = cosines.topk(5).indices.tolist()
    assert viewer.evaluate("[...viewer.map.nearest]") == [2 + patch for patch in best]
    near = viewer.page.locator(".near:visible")
    assert near.count() == 5
    area, first = viewer.over.bounding_box(), near.first.bounding_box()
    assert (first["x"] - area["x"]) / area["width"] * 6 == pytest.approx(best[0] % 6, abs=0.05)
    assert (first["y"] - area["y"]) / area["height"] * 4 == pytest.approx(best[0] // 6, abs=0.05)
    strongest = viewer.page.locator(".folded .readings > div").nth(2)
    expect(strongest).to_contain_text(f"row {best[0] // 6 + 1}, col {best[0] % 6 + 1}")
    expect(strongest).to_contain_text(f"cosine {float(cosines.max()):.2f}")
    viewer.point(best[0] // 6, best[0] % 6)
    expect(viewer.page.locator(".folded .readings > div").nth(3)).to_contain_text("1st of 23 other patches")
    caret = viewer.evaluate("parseFloat(viewer.page.find('.caret').style.left)")
    assert caret == pytest.approx(100 * float(cosines.max()), abs=1)
    viewer.page.get_by_role("button", name="Attention", exact=True).click()
    expect(near).to_have_count(0)


def test_colours_of_nearest_patches_span_0_to_1_or_the_range_of_values(open_viewer):
    viewer = open_viewer("case=alike&view=similar&token=10&pinned=1&opacity=1&cover=film&colormap=gray")
    cosines = synthetic.record(*ALIKE).similarity(10).numpy()[2:]
    assert cosines.min() < 0
    painted = "[...viewer.picture.overlay.plain.pixels].map((pixel) => pixel & 255)"
    np.testing.assert_allclose(viewer.evaluate(painted), np.clip(cosines, 0, 1) * 255, atol=2)
    legend = viewer.page.locator(".legend")
    expect(legend).to_have_attribute("aria-label", re.compile("^Colour scale from 0.00 to 1.00. One scale"))
    viewer.open_display()
    viewer.page.get_by_role("button", name="Own scales").click()
    others = np.delete(cosines, 8)
    expect(legend).to_have_attribute("aria-label", re.compile(f"to {others.max():.2f}. This map alone"))
    levels = np.asarray(viewer.evaluate(painted))
    assert levels[8] == 255 and levels[cosines == others.max()] == 255 and levels[cosines == others.min()] == 0


def test_nearest_patches_have_no_direction(open_viewer):
    viewer = open_viewer("case=alike&view=similar")
    expect(viewer.page.get_by_role("button", name="Attended by")).to_be_hidden()
    viewer.over.focus()
    viewer.page.keyboard.press("d")
    viewer.page.keyboard.press("n")
    viewer.expect_sentence("Block 3, mean of heads: attention from the class token.")
    expect(viewer.page.get_by_role("button", name="Attended by")).to_be_enabled()
    viewer.page.keyboard.press("n")
    viewer.expect_selection("view=similar", "direction=from")
    viewer.expect_sentence(re.compile("^Patches most like"))
    expect(viewer.page.locator(".live")).to_contain_text("Most similar patch row")
