"""The numbers behind the viewer's colours equal the record's in Python, in every view and for every query."""

import re

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import expect

from vit.explain.faithfulness_correlation import correlations
from vit.explain.maps import mass_threshold, otsu_threshold
from vit.exports.map_pictures import paint_heatmap
from vit.images.geometry import Box
from vit.view.selection import Selection

from . import synthetic
from .serving import FIND, VIEWERS
from .synthetic import ALIKE

SMALL = ((3, 2, (4, 6), ("cls", "reg1", "reg2"), 16), 27)


def test_displayed_weight_is_exact(open_viewer):
    viewer = open_viewer("case=small&block=1&head=1&token=19&pinned=1")
    record = synthetic.record(*SMALL[0])
    row = record.rows(1, [19])[1, 0]
    viewer.point(0, 0)
    rank = int((row > row[3]).sum()) + 1
    reading = viewer.page.locator(".folded .readings > div").nth(3)
    expect(reading).to_contain_text(f"of {SMALL[1]}")
    assert float(reading.locator("dd").first.inner_text().removeprefix("≈ ").split("%")[0]) == pytest.approx(
        float(100 * row[3]), abs=0.4
    )
    assert abs(int(re.search(r"(\d+)(st|nd|rd|th)", reading.inner_text())[1]) - rank) <= 1


def test_rollout_settings_appear_with_rollout_and_take_effect_at_once(open_viewer):
    viewer = open_viewer("case=small")
    stays = viewer.page.get_by_label("Share of the residual")
    viewer.page.get_by_text("Display", exact=True).click()
    expect(stays).to_be_hidden()
    viewer.page.get_by_role("button", name="Rollout").click()
    viewer.expect_selection("view=rollout")
    viewer.page.get_by_text("Display", exact=True).click()
    expect(stays).to_be_visible()
    expect(viewer.page.get_by_label("First block")).to_be_hidden()
    before, runs = viewer.pixels(".over"), viewer.page.get_by_text("runs ").inner_text()
    stays.evaluate("(slider) => { slider.value = 0.2; slider.dispatchEvent(new Event('input')); }")
    viewer.expect_sentence("Rollout through all blocks (residual 20%): tokens that contribute to the class token.")
    assert viewer.pixels(".over") != before
    assert viewer.page.get_by_text("runs ").inner_text() == runs
    stays.fill("0.3")
    viewer.page.get_by_label("Combine the heads of a block by").select_option("max")
    viewer.expect_selection("residual=0.3", "fusion=max")
    np.testing.assert_allclose(
        viewer.evaluate("[...viewer.map.rollout]"),
        synthetic.record(*SMALL[0]).rollout(0, 0.3, "from", "max"),
        atol=2e-3,
    )


def test_relevance_starts_at_the_selected_block(open_viewer):
    viewer = open_viewer("case=small&method=chain&view=relevance&token=12&pinned=1")
    first = viewer.page.get_by_label("First block")
    viewer.page.get_by_text("Display", exact=True).click()
    expect(viewer.page.get_by_label("Share of the residual")).to_be_hidden()
    first.fill("3")
    first.press("Enter")
    viewer.expect_selection("start_block=2")
    viewer.expect_sentence(
        "Relevance (from block 3 on) for “<b>cat</b>”: tokens that patch (row 2, col 4) received information from."
    )
    matrices, start = synthetic.chain(synthetic.record(*SMALL[0]))
    truth = synthetic.traced(matrices[2:], torch.eye(len(start))[12], "from")
    np.testing.assert_allclose(viewer.evaluate("[...viewer.map.relevance]"), truth, rtol=0.005, atol=1e-6)
    first.fill("99")
    first.press("Enter")
    expect(first).to_have_value("3")


@pytest.mark.parametrize("view", ["attention", "rollout", "relevance", "similar"])
def test_painted_order_equals_the_order_of_values(open_viewer, view):
    """The opacity of each patch grows with its value, so their orders agree."""
    viewer = open_viewer(f"case=alike&method=chain&view={view}&token=10&pinned=1")
    code = """(() => {
      const { payload, map } = viewer;
      const canvas = viewer.page.find(".over");
      const context = canvas.getContext("2d");
      const cover = [];
      for (let patch = 0; patch < payload.patches; patch++) {
        const x = ((patch % payload.cols) + 0.5) / payload.cols;
        const y = (Math.floor(patch / payload.cols) + 0.5) / payload.rows;
        cover.push(context.getImageData(x * canvas.width, y * canvas.height, 1, 1).data[3]);
      }
      const { r, c } = viewer.cell;
      const at = viewer.engine.offset(r, c);
      const values = { rollout: map.rollout, relevance: map.relevance, similar: map.similar }[args[0]]
        ?? viewer.engine.values.slice(at, at + payload.tokens);
      return [cover, [...values].slice(payload.split)];
    })()"""
    cover, values = map(np.asarray, viewer.evaluate(code, view))
    assert cover.max() - cover.min() > 60
    order = np.argsort(values)
    assert (np.diff(cover[order]) >= -1).all()


def test_rollout_follows_the_pointer(open_viewer):
    viewer = open_viewer("case=small&view=rollout")
    viewer.expect_sentence("Rollout through all blocks: tokens that contribute to the class token.")
    before = viewer.pixels(".over")
    viewer.point(1, 1)
    viewer.expect_sentence(re.compile(r"contribute to patch \(row 2, col 2\)"))
    assert viewer.pixels(".over") != before


def test_rollout_of_a_large_model_is_computed_in_python(open_viewer):
    viewer = open_viewer("case=small-qk&view=rollout")
    viewer.click(3, 4)
    viewer.expect_selection("view=rollout", "token=59", "pinned=1")
    expect(viewer.page.locator(".note")).to_be_hidden()
    truth = synthetic.record(2, 2, (16, 18), ("cls",), 18).rollout(59)
    np.testing.assert_allclose(viewer.evaluate("[...viewer.map.rollout]"), truth, rtol=1e-4, atol=1e-7)


def test_class_map_follows_the_pointer_without_the_server(open_viewer):
    viewer = open_viewer("case=small&method=chain")
    viewer.page.get_by_role("button", name="Relevance").click()
    viewer.expect_selection("view=relevance")
    viewer.expect_sentence("Relevance: evidence for “<b>cat</b>”.")
    expect(viewer.page.locator(".query")).to_be_hidden()
    expect(viewer.page.locator(".labels .chosen")).to_have_count(0)  # it belongs to no block
    viewer.wait_until_idle()
    before, frames = viewer.pixels(".over"), viewer.conversation.runs
    viewer.point(1, 1)
    viewer.expect_sentence("Relevance for “<b>cat</b>”: tokens that patch (row 2, col 2) received information from.")
    assert viewer.pixels(".over") != before
    viewer.wait_until_idle()
    assert viewer.conversation.runs == frames
    viewer.click(1, 1)
    viewer.expect_selection("view=relevance", "pinned=1")
    viewer.page.get_by_role("button", name="Attended by").click()
    viewer.expect_sentence("Relevance for “<b>cat</b>”: tokens that received information from patch (row 2, col 2).")


def test_map_computed_in_python_is_of_the_class_alone(open_viewer):
    viewer = open_viewer("case=small&method=computed&view=relevance")
    viewer.expect_sentence("LeGrad: evidence for “cat”.")
    assert viewer.evaluate("[...viewer.map.relevance]") == list(range(27))
    viewer.point(1, 1)
    viewer.expect_sentence("LeGrad: evidence for “cat”.")
    expect(viewer.page.get_by_role("button", name="Attended by")).to_be_hidden()
    viewer.click(1, 1)  # a token is selected, which this method does not support
    viewer.expect_selection("view=attention", "pinned=1")


def test_no_class_map_without_a_method(open_viewer):
    viewer = open_viewer("case=small&view=relevance")
    viewer.expect_selection("view=relevance")
    expect(viewer.page.locator("[data-value=relevance]")).to_be_hidden()
    viewer.expect_sentence(re.compile("attention from the class token"))


@pytest.mark.parametrize("view", ["attention", "rollout"])
@pytest.mark.parametrize("kind", ["mass", "otsu"])
def test_outline_surrounds_the_same_patches_as_in_python(open_viewer, kind, view):
    viewer = open_viewer(f"case=alike&contour={kind}&view={view}&token=10&pinned=1")
    record = synthetic.record(*ALIKE)
    heatmap = record.heatmap(record.rollout(10) if view == "rollout" else record.weights(10))
    if kind == "mass":
        assert viewer.evaluate("[...viewer.map.marked]") == mass_threshold(heatmap, 0.6).flatten().int().tolist()
        viewer.open_display()
        viewer.page.get_by_label("Share inside the line").fill("0.3")
        viewer.expect_selection("mass=0.3")
    else:
        expect(viewer.page.locator(".mass")).to_be_hidden()
    wanted = mass_threshold(heatmap, 0.3) if kind == "mass" else otsu_threshold(heatmap)
    assert viewer.evaluate("[...viewer.map.marked]") == wanted.flatten().int().tolist()
    path = viewer.page.locator(".contour path").last.get_attribute("d")
    padded = np.pad(wanted.numpy(), 1).astype(int)
    assert path.count("h1") == np.abs(np.diff(padded, axis=0)).sum()
    assert path.count("v1") == np.abs(np.diff(padded, axis=1)).sum()
    viewer.open_display()
    viewer.page.get_by_label("Outline").select_option("none")
    viewer.expect_selection("contour=none")
    assert viewer.page.locator(".contour path").last.get_attribute("d") == ""


@pytest.mark.parametrize("query", ["case=small-qk", pytest.param("case=qk", marks=pytest.mark.exhaustive)])
def test_every_map_of_a_large_model_is_painted_for_the_query(open_viewer, query):
    """The row for the large map is computed first, and is also painted in the grid."""
    viewer = open_viewer(query)
    code = """(() => {
      const before = viewer.mosaic.pixels.slice();
      for (let row = 0; row <= viewer.payload.lines; row++) viewer.grid.paintRow(row);
      return [viewer.engine.token, before.every((pixel, i) => pixel === viewer.mosaic.pixels[i])];
    })()"""
    for place in (None, (1, 2), (3, 5)):
        if place:
            viewer.point(*place)
        viewer.page.wait_for_function(f"!{FIND}.root.hasAttribute('data-busy') && {FIND}.engine.complete")
        viewer.wait_until_idle()
        token, same = viewer.evaluate(code)
        assert same and (place is None or token > 0)


def test_scale_shows_that_values_exceed_it(open_viewer):
    viewer = open_viewer("case=maps&head=0")
    beyond = viewer.page.locator(".beyond")
    strongest = """(() => {
      const { payload } = viewer, out = new Float32Array(payload.tokens), top = payload.top(0, "from");
      const reach = (head) => {
        payload.fill(11, head, 0, "from", out, 0);
        return Math.max(...out.slice(payload.split));
      };
      return [...Array(payload.heads).keys()].map((head) => reach(head) > top * 1.005);
    })()"""
    over = viewer.evaluate(strongest)
    assert True in over and False in over
    for head in (over.index(True), over.index(False)):
        viewer.evaluate(f"viewer.change({{ block: 11, head: {head} }})")
        viewer.expect_selection(f"head={head}")
        expect(beyond).to_be_visible() if over[head] else expect(beyond).to_be_hidden()
    viewer.evaluate(f"viewer.change({{ head: {over.index(True)} }})")
    viewer.open_display()
    viewer.page.get_by_role("button", name="Own scales").click()
    viewer.expect_selection("scale=own")
    expect(beyond).to_be_hidden()


def test_large_map_of_weak_attention_ends_at_its_strongest_patch(open_viewer):
    viewer = open_viewer("case=maps&head=0")
    shares = []
    for head in range(viewer.evaluate("viewer.payload.heads")):
        viewer.evaluate(f"viewer.change({{ block: 11, head: {head} }})")
        viewer.expect_selection(f"head={head}")
        viewer.wait_until_idle()
        top, strongest, shared = viewer.evaluate(
            "[viewer.map.top, viewer.map.strongest(-1), viewer.payload.top(viewer.query, 'from')]"
        )
        assert top == min(strongest, shared)
        shares.append(strongest / shared)
    assert min(shares) < 0.7  # on the grid's scale, this map would be dark


@pytest.mark.parametrize("query", ["", "&cover=film&opacity=0.9", "&view=similar&token=5&pinned=1", "&scale=own"])
def test_colours_over_the_picture_equal_those_of_files(open_viewer, query):
    viewer = open_viewer("case=small" + query)
    overlay = viewer.evaluate(
        "[[...viewer.picture.overlay.plain.pixels], [...(viewer.selection.view === 'similar' ? viewer.map.similar"
        " : viewer.engine.values.subarray(viewer.engine.offset(viewer.cell.r, viewer.cell.c)))]"
        ".slice(viewer.payload.split, viewer.payload.tokens), viewer.selection, [viewer.map.low, viewer.map.top]]"
    )
    colours, values, chosen, (low, top) = overlay
    rgba = np.asarray(colours, np.uint32)[:, None] >> np.array([0, 8, 16, 24]) & 255
    cover = rgba[:, 3:] / 255
    on_white = np.rint(rgba[:, :3] * cover + 255 * (1 - cover)).reshape(4, 6, 3)
    chosen = Selection.from_query(chosen, 3, 2, 27)
    assert chosen.cover == ("film" if "film" in query else "weight")
    heatmap = np.asarray(values, np.float32).reshape(4, 6)
    drawn = paint_heatmap(Image.new("RGB", (6, 4), "white"), heatmap, Box(0, 0, 6, 4), chosen, low, top)
    assert np.abs(np.asarray(drawn).astype(int) - on_white).max() <= 3 and on_white.std() > 5
    clear = np.asarray(drawn).min(-1) == 255
    assert (clear.sum() == 0) if "film" in query else (clear.mean() > 0.3 and (~clear).mean() > 0.1)


@pytest.mark.parametrize("view", ["similar", "pool"])
def test_views_without_data_are_not_offered(open_viewer, view):
    viewer = open_viewer(f"case=small&view={view}")
    viewer.expect_sentence("Block 3, mean of heads: attention from the class token.")
    for name in ("Nearest patches", "Pooling query"):
        expect(viewer.page.locator(".switch button", has_text=name)).to_be_hidden()
    viewer.over.focus()
    viewer.page.keyboard.press("n")
    viewer.page.keyboard.press("p")
    viewer.expect_sentence("Block 3, mean of heads: attention from the class token.")
    assert viewer.page.get_by_text("Pooling", exact=True).count() == 0


@pytest.mark.exhaustive
def test_small_model_cancels_the_painting_of_a_large_one(open_viewer):
    """Otherwise a small model's maps that arrive while a large one's are painted would leave the grid pale."""
    viewer = open_viewer("case=huge&pair=small")
    busy = "viewer.root.matches('[data-busy]')"
    assert viewer.evaluate(f"(viewer.change({{ token: 9, pinned: true }}), viewer.draw(), {busy})")
    assert not viewer.evaluate(f"(viewer.setPayload({VIEWERS}[1].payload), viewer.draw(), {busy})")


def test_all_maps_of_a_large_model_are_drawn_in_time(open_viewer):
    viewer = open_viewer("case=small-qk")
    viewer.point(2, 2)
    viewer.page.wait_for_function(f"() => {FIND}.engine.complete")
    record = synthetic.record(2, 2, (16, 18), ("cls",), 18)
    token = 1 + 2 * 18 + 2
    truth = record.rows(0, [token])[:, 0].mean(0)
    values = viewer.evaluate(
        "[...viewer.engine.values.subarray(viewer.engine.offset(1, 0), viewer.engine.offset(1, 1))]"
    )
    np.testing.assert_allclose(values, truth, rtol=0.02, atol=1e-6)


def test_map_under_the_pointer_is_judged_without_the_server(open_viewer):
    viewer = open_viewer("case=small&masks=1")
    box, marks = viewer.page.locator(".faithfulness"), viewer.page.locator(".marks i")
    expect(box.locator("dt")).to_have_text("Faithful to “<b>cat</b>”")
    viewer.page.wait_for_function(f"{FIND}.masks?.count === 256")  # it had 32 at first
    record = synthetic.record(*SMALL[0])
    masks, drops = synthetic.mask_drops(record, 256)
    planted = r"better than chance · removal map 0\.90"

    def judged(heatmap, words):
        value = float(correlations(heatmap[len(record.prefix) :], masks, drops))
        assert viewer.evaluate("viewer.faithfulnessBox.value") == pytest.approx(value, abs=0.02)  # maps arrive in steps
        expect(box.locator("dd").first).to_have_text(f"{value:.2f}".replace("-", "−"))
        expect(box.locator("dd").last).to_have_text(re.compile(words))

    viewer.evaluate("viewer.change({ block: 1, head: 0 })")
    viewer.expect_selection("block=1", "head=0")
    judged(record.weights(0, 1, 0), planted)
    expect(marks).not_to_have_count(0)
    runs = viewer.conversation.runs
    planted_title = viewer.page.locator('.marks i[title="Faithful: 1.00, better than chance"]')
    expect(planted_title).to_have_count(1)
    place, cell = planted_title.bounding_box(), viewer.page.locator(".mark.selected").bounding_box()
    assert place == pytest.approx(cell, abs=1)
    viewer.point(2, 3)
    judged(record.weights(record.tokens - 24 + 2 * 6 + 3, 1, 0), r"chance|decided")
    expect(planted_title).to_have_count(0)  # other maps have arrived
    assert viewer.conversation.runs == runs
    viewer.page.mouse.move(0, 0)
    viewer.page.get_by_role("button", name="Attended by").click()
    viewer.expect_selection("direction=to")
    judged(record.weights(0, 1, 0, "to"), r"chance|decided")
    assert viewer.errors == []


def test_masks_of_another_grid_are_ignored(open_viewer):
    viewer = open_viewer("case=small&masks=1")
    says = viewer.page.locator(".faithfulness dd").last
    expect(says).to_contain_text("removal map")
    viewer.evaluate("viewer.useMasks('masks of nothing')")
    viewer.evaluate("viewer.request()")
    expect(says).to_have_text("not measured yet")
    expect(viewer.page.locator(".marks")).to_be_hidden()
