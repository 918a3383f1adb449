"""Interaction with the viewer: pointer, keyboard, touch, links, narrow screens."""

import re

import pytest
from playwright.sync_api import expect

from .serving import FIND, VIEWERS
from .viewer import PAGE, Viewer

OTHER = f"{VIEWERS}[1]"


def test_hovering_redraws_everything_without_requests(open_viewer):
    viewer = open_viewer()
    over, grid, frames = viewer.pixels(".over"), viewer.pixels(".grid"), viewer.conversation.runs
    viewer.point(1, 2)
    viewer.expect_sentence("Block 3, mean of heads: attention from patch (row 2, col 3).")
    assert viewer.pixels(".over") != over
    assert viewer.pixels(".grid") != grid
    viewer.leave()
    viewer.expect_sentence("Block 3, mean of heads: attention from the class token.")
    assert viewer.pixels(".over") == over
    viewer.wait_until_idle()
    assert viewer.conversation.runs == frames


def test_click_pins_and_escape_unpins(open_viewer):
    viewer = open_viewer()
    viewer.click(2, 4)
    viewer.expect_selection("token=19", "pinned=1")
    viewer.point(0, 0)
    viewer.expect_sentence(re.compile("row 3, col 5"))
    expect(viewer.page.locator(".folded .readings")).to_contain_text("Patch (row 1, col 1)")
    viewer.over.focus()
    viewer.page.keyboard.press("Escape")
    viewer.expect_selection("token=0", "pinned=0")
    viewer.leave()
    viewer.expect_sentence(re.compile("the class token"))


def test_clicking_the_pinned_patch_unpins_it(open_viewer):
    viewer = open_viewer()
    viewer.click(1, 1)
    viewer.expect_selection("pinned=1")
    viewer.click(1, 1)
    viewer.expect_selection("pinned=0")


def test_pointing_at_a_map_previews_it_and_a_click_selects_it(open_viewer):
    viewer = open_viewer()
    frames = viewer.conversation.runs
    viewer.point_at_map(1, 2)
    viewer.expect_sentence("Block 1, head 2: attention from the class token.")
    assert viewer.conversation.runs == frames
    viewer.page.mouse.down()
    viewer.page.mouse.up()
    viewer.expect_selection("block=0", "head=1")
    viewer.leave()
    viewer.expect_sentence("Block 1, head 2: attention from the class token.")


def test_direction_can_be_switched(open_viewer):
    viewer = open_viewer()
    viewer.page.get_by_role("button", name="Attended by").click()
    viewer.expect_sentence("Block 3, mean of heads: attention to the class token.")
    viewer.expect_selection("direction=to")


def test_everything_is_reached_by_keyboard(open_viewer):
    viewer = open_viewer()
    viewer.over.focus()
    press = viewer.page.keyboard.press
    press("ArrowRight")  # from the class token into the middle
    viewer.expect_sentence(re.compile(r"row 3, col 4"))
    press("ArrowUp")
    press("ArrowLeft")
    viewer.expect_sentence(re.compile(r"row 2, col 3"))
    press("Enter")
    viewer.expect_selection("token=11", "pinned=1")
    press("PageUp")
    press("]")
    viewer.expect_sentence(re.compile("^Block 2, head 1"))
    press("d")
    viewer.expect_sentence(re.compile("attention to patch"))
    viewer.expect_selection("block=1", "head=0", "direction=to")
    press("c")
    viewer.expect_sentence(re.compile("the class token"))
    viewer.expect_selection("token=0", "pinned=0")
    expect(viewer.page.locator(".live")).to_contain_text("attention to the class token")
    viewer.page.locator("canvas.grid").focus()
    press("ArrowUp")
    viewer.expect_selection("block=0")


def test_link_opens_the_copied_view(open_viewer):
    viewer = open_viewer("case=small&block=0&head=1&token=20&pinned=1&direction=to&colormap=magma&smooth=1")
    viewer.expect_sentence("Block 1, head 2: attention to patch (row 3, col 6).")
    expect(viewer.page.get_by_label("Colours")).to_have_value("magma")
    expect(viewer.page.get_by_label("Smooth")).to_be_checked()


def test_hostile_link_opens_the_default(open_viewer):
    viewer = open_viewer("case=small&block=<script>&head=1e9&token=-7&pinned=1&colormap=../x&opacity=nan")
    viewer.expect_sentence("Block 3, mean of heads: attention from the class token.")


def test_python_sets_the_selection_and_the_browser_continues_from_it(open_viewer):
    viewer = open_viewer()
    viewer.click(2, 4)
    viewer.expect_selection("pinned=1")
    viewer.page.get_by_role("button", name="Go to block 2, head 1").click()
    viewer.expect_sentence(re.compile("^Block 2, head 1"))
    viewer.expect_selection("block=1", "head=0")
    viewer.page.get_by_role("button", name="Attended by").click()
    viewer.expect_selection("direction=to", "block=1")


def test_view_may_arrive_before_its_data(open_page):
    viewer = open_page("case=small&view-first=1")
    viewer.expect_sentence(re.compile("attention from the class token"))


def test_viewers_of_a_group_move_together_and_share_a_scale(open_viewer):
    viewer = open_viewer("case=small&pair=finer")
    viewer.page.wait_for_function(f"{OTHER}?.payload")
    viewer.point(1, 2)  # of 4 x 6; the other one has 8 x 12
    viewer.expect_sentence(re.compile(r"patch \(row 2, col 3\)"))
    viewer.page.wait_for_function(f"{OTHER}.query === {OTHER}.payload.split + 3 * 12 + 5")
    tops = viewer.page.evaluate(
        f"""(() => {{
          const pair = [{FIND}, {OTHER}], [{{ payload, query }}] = pair;
          return [...pair.map((viewer) => viewer.group.sharedTop(viewer.query, "from")), payload.top(query, "from")];
        }})()"""
    )
    assert tops[0] == pytest.approx(tops[1]) and tops[0] >= tops[2]
    viewer.click(0, 0)
    viewer.expect_selection("token=3", "pinned=1")
    viewer.page.wait_for_function(f"{OTHER}.selection.pinned && {OTHER}.selection.token === {OTHER}.payload.split + 13")
    viewer.page.get_by_role("button", name="Rollout").first.click()
    viewer.page.wait_for_function(f"{OTHER}.selection.view === 'rollout'")
    assert viewer.errors == []


def test_answer_without_the_patch_under_the_pointer_is_shown(open_viewer):
    viewer = open_viewer("case=small&occlusion=1")
    answer = viewer.page.locator(".occlusion")
    expect(answer).to_have_text("Point at a patch to replace it.")
    frames = viewer.conversation.runs
    viewer.point(0, 2)
    expect(answer).to_have_text("Without the patch (row 1, col 3): “cat” 48% (−2.0 points).")
    assert viewer.conversation.runs == frames
    viewer.evaluate("viewer.change({ hidden: [7] })")
    viewer.point(1, 1)
    expect(answer).to_have_text("This patch is hidden already.")
    viewer.point(0, 5)
    expect(answer).to_have_text(
        "Without the patch (row 1, col 6): “cat” 45% (−5.0 points). The answer becomes “<b>dog</b>”."
    )
    viewer.click(1, 1)
    viewer.expect_selection("pinned=1")
    viewer.point(0, 2)
    expect(answer).to_have_text("Without the patch (row 1, col 3): “cat” 48% (−2.0 points).")


def test_answer_after_a_change_is_shown_until_the_next_change(open_viewer):
    viewer = open_viewer("case=small&paint=1&ablation=1&hidden=7-8")
    answer = viewer.page.locator(".ablation")
    expect(answer).to_have_text("After the change: “cat” 34% (−16.0 points). The answer becomes “<b>dog</b>”.")
    viewer.page.get_by_role("button", name="Show all").click()
    expect(answer).to_be_hidden()
    viewer.page.wait_for_function(f"{FIND}.settled")
    viewer.evaluate("viewer.change({ hidden: [7, 8] })")
    expect(answer).to_be_visible()


def test_share_of_the_shown_map_on_hidden_patches_follows_the_map(open_viewer):
    viewer = open_viewer("case=small&paint=1&method=chain")
    text = viewer.page.locator(".region")
    expect(text).to_be_hidden()
    viewer.evaluate("viewer.change({ hidden: [7, 8, 9] })")
    expect(text).to_contain_text("The hidden patches are 13% of the picture and hold ")
    before = text.inner_text()
    viewer.point(3, 3)
    expect(text).not_to_have_text(before)
    viewer.evaluate("viewer.change({ hidden: [...Array(24).keys()], view: 'rollout' })")
    expect(text).to_have_text("The hidden patches are 100% of the picture and hold 100% of the map, with its maximum.")
    viewer.evaluate("viewer.change({ view: 'similar' })")
    expect(text).to_be_hidden()  # cosines are no shares


def test_dragging_hides_patches_and_shows_them_again(open_viewer):
    viewer = open_viewer("case=small&paint=1")
    page = viewer.page
    page.get_by_label("Hide patches by dragging").check()
    viewer.over.scroll_into_view_if_needed()
    box = viewer.over.bounding_box()

    def drag(first, last, row):
        xs = [box["x"] + (col + 0.5) * box["width"] / 6 for col in (first, last)]
        y = box["y"] + (row + 0.5) * box["height"] / 4
        page.mouse.move(xs[0], y)
        page.mouse.down()
        page.mouse.move(xs[1], y, steps=12)
        page.mouse.up()

    drag(1, 3, 1)
    viewer.expect_selection("hidden=7-9", "pinned=0")
    drag(2, 2, 1)
    viewer.expect_selection("hidden=7.9")
    drag(5, 5, 3)
    viewer.expect_selection("hidden=7.9.23")
    page.get_by_role("button", name="Keep only these").click()
    viewer.expect_selection("hidden=0-6.8.10-22")
    page.get_by_role("button", name="Show all").click()
    viewer.expect_selection("hidden=")
    expect(page.get_by_role("button", name="Keep only these")).to_be_hidden()
    viewer.over.focus()
    for key in ("ArrowUp", "Enter", "ArrowLeft", "Space"):
        viewer.over.press(key)
    viewer.expect_selection("hidden=14-15", "pinned=0")  # from the middle
    page.get_by_label("Hide patches by dragging").uncheck()
    viewer.click(1, 1)
    viewer.expect_selection("pinned=1")


def test_link_hides_patches(open_viewer):
    viewer = open_viewer("case=small&paint=1&hidden=0-2.23.99")
    assert viewer.evaluate("viewer.selection.hidden") == [0, 1, 2, 23]
    painted = viewer.evaluate(
        "[...viewer.page.find('.covered').getContext('2d').getImageData(0, 0, 6, 4).data].filter((_, i) => i % 4 === 3)"
    )
    assert [i for i, alpha in enumerate(painted) if alpha] == [0, 1, 2, 23]


def test_cropped_part_of_the_picture_is_outside_the_map(open_viewer):
    viewer = open_viewer("case=maps")
    stage, over = viewer.page.locator(".stage").bounding_box(), viewer.over.bounding_box()
    assert stage == over  # the model's input
    viewer.open_display()
    viewer.page.get_by_label("Whole photo").check()
    stage, over = viewer.page.locator(".stage").bounding_box(), viewer.over.bounding_box()
    assert stage["width"] / stage["height"] == pytest.approx(900 / 700, rel=0.01)
    assert (over["x"] - stage["x"]) / stage["width"] == pytest.approx(100 / 900, abs=0.005)
    assert over["width"] / stage["width"] == pytest.approx(700 / 900, abs=0.005)


def test_names_are_escaped(open_viewer):
    viewer = open_viewer("case=hostile")
    expect(viewer.page.locator(".tokens")).to_contain_text("<img src=x onerror=alert(1)>")
    expect(viewer.page.locator(".sentence")).to_contain_text("<img src=x onerror=alert(1)>")
    assert viewer.page.locator(".tokens img, .sentence img, .settings b").count() == 0
    assert viewer.dialogs == []


@pytest.mark.parametrize("case", ["small", "pooled"])
def test_narrow_screens_get_one_column(open_page, page, case):
    page.set_viewport_size({"width": 390, "height": 844})
    viewer = open_page(f"case={case}")
    picture, maps = page.locator(".stage").bounding_box(), page.locator(".maps").bounding_box()
    assert maps["y"] > picture["y"] + picture["height"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert viewer.over.bounding_box()["width"] > 300


# As in older browsers, such as Safari 18.2: clicks are no pointer events.
OLD_CLICKS = """
window.clicked = 0;
addEventListener("click", (event) => {
  Object.defineProperty(event, "pointerType", { value: undefined });
  window.clicked += 1;
}, true);
"""


@pytest.fixture
def phone(browser):
    context = browser.new_context(has_touch=True, viewport={"width": 390, "height": 844})
    yield Viewer(context.new_page())
    context.close()


def test_tap_pins(phone, serve):
    phone.open(serve(PAGE), "case=small")
    phone.page.touchscreen.tap(*phone.at(1, 1))
    phone.expect_selection("token=10", "pinned=1")


def test_tap_pins_where_clicks_do_not_name_their_pointer(phone, serve):
    phone.page.add_init_script(OLD_CLICKS)
    phone.open(serve(PAGE), "case=small")
    phone.page.touchscreen.tap(*phone.at(1, 1))
    phone.page.wait_for_function("() => window.clicked === 1")
    assert phone.evaluate("[viewer.selection.token, viewer.selection.pinned]") == [10, True]


def test_token_unpinned_with_the_mouse_stays_hovered_where_clicks_do_not_name_their_pointer(open_page, page):
    page.add_init_script(OLD_CLICKS)
    viewer = open_page()
    viewer.click(1, 1)
    assert viewer.evaluate("[viewer.selection.pinned, viewer.hovered]") == [True, 10]
    viewer.click(1, 1)
    assert viewer.evaluate("[viewer.selection.pinned, viewer.hovered]") == [False, 10]


def test_tap_on_a_token_off_the_picture_pins_it_and_the_next_unpins_it(phone, serve):
    phone.open(serve(PAGE), "case=small")
    for pinned in (True, False):
        phone.page.locator(".tokens button").nth(1).tap()
        chosen = [1, True] if pinned else [0, False]
        assert phone.evaluate("[viewer.selection.token, viewer.selection.pinned]") == chosen
        assert phone.evaluate("viewer.hovered") == -1  # no finger is on it any more


def test_theme_change_keeps_the_view(open_page, page):
    viewer = open_page()
    viewer.click(1, 1)
    viewer.expect_selection("pinned=1")
    page.emulate_media(color_scheme="dark")
    viewer.wait_until_idle()
    viewer.leave()
    viewer.expect_sentence(re.compile("row 2, col 2"))
