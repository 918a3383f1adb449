"""View *Pooling query* of the viewer: its weights equal the record's in Python."""

import re

import numpy as np
import pytest
import torch
from playwright.sync_api import expect

from . import synthetic
from .serving import FIND

POOLED = (3, 2, (4, 6), (), 16, 0, 48, True)
POOLED_LARGE = (2, 3, (16, 18), (), 18, 0, 50, True)


def test_pooling_query_is_shown_per_head_and_fused(open_viewer):
    viewer = open_viewer("case=pooled")
    pool = synthetic.record(*POOLED).pool_attention.numpy()
    viewer.page.get_by_role("button", name="Pooling query").click()
    viewer.expect_sentence("Pooling query after the last block, mean of heads: its attention.")
    viewer.expect_selection("view=pool")
    assert viewer.page.locator(".query").is_hidden()
    viewer.open_display()
    viewer.page.get_by_label("How to combine heads").select_option("max")
    viewer.expect_sentence("Pooling query after the last block, max of heads: its attention.")
    viewer.over.focus()
    viewer.page.keyboard.press("]")
    viewer.page.keyboard.press("]")
    viewer.expect_sentence("Pooling query after the last block, head 2: its attention.")
    viewer.expect_selection("view=pool", "head=1")
    best = int(pool[1].argmax())
    expect(viewer.page.locator(".folded .readings > div").nth(2)).to_contain_text(
        f"row {best // 6 + 1}, col {best % 6 + 1}"
    )
    before = viewer.pixels(".over")
    viewer.point(best // 6, best % 6)  # the selection is kept, and the weight is shown
    assert viewer.pixels(".over") == before
    reading = viewer.page.locator(".folded .readings > div").nth(3)
    expect(reading).to_contain_text("1st of 24")
    assert float(reading.locator("dd").first.inner_text().removeprefix("≈ ").split("%")[0]) == pytest.approx(
        100 * pool[1].max(), rel=0.05
    )


def test_last_row_of_maps_is_the_pooling_query(open_viewer):
    viewer = open_viewer("case=pooled")
    expect(viewer.page.locator(".labels.rows span").last).to_have_text("Pooling")
    viewer.point_at_map(4, 2)
    viewer.expect_sentence("Pooling query after the last block, head 2: its attention.")
    viewer.page.mouse.down()
    viewer.page.mouse.up()
    viewer.expect_selection("view=pool", "head=1", "block=2")
    viewer.page.locator("canvas.grid").focus()
    viewer.page.keyboard.press("ArrowUp")
    viewer.leave()
    viewer.expect_sentence(re.compile("^Block 3, head 2: attention from patch"))
    viewer.expect_selection("view=attention")
    viewer.page.keyboard.press("ArrowDown")
    viewer.expect_sentence(re.compile("^Pooling query"))


def test_selecting_a_patch_deselects_the_pooling_query(open_viewer):
    viewer = open_viewer("case=pooled&view=pool&head=0")
    viewer.expect_sentence("Pooling query after the last block, head 1: its attention.")
    viewer.click(2, 4)
    viewer.expect_sentence("Block 3, head 1: attention from patch (row 3, col 5).")
    viewer.expect_selection("view=attention", "token=16", "pinned=1")
    viewer.over.focus()
    viewer.page.keyboard.press("p")
    viewer.expect_sentence(re.compile("^Pooling query"))
    viewer.page.keyboard.press("Escape")
    viewer.expect_sentence("Block 3, head 1: attention from patch (row 3, col 5).")


def test_pooling_query_is_no_block_of_a_large_model(open_viewer):
    viewer = open_viewer("case=pooled-qk&view=pool&head=1&block=max")
    record = synthetic.record(*POOLED_LARGE)
    viewer.page.wait_for_function(f"() => {FIND}.engine.complete")
    values = "[...viewer.engine.values.subarray(viewer.engine.offset(args[0], 2), viewer.engine.offset(args[0], 3))]"
    np.testing.assert_allclose(viewer.evaluate(values, 3), record.pool_attention[1], atol=1e-6)
    fused = torch.stack([record.rows(block, [0])[1, 0] for block in range(2)]).amax(0)
    np.testing.assert_allclose(viewer.evaluate(values, 0), fused, rtol=0.02, atol=1e-6)
