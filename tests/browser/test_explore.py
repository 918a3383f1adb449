"""Page Explore as a visitor uses it: upload a photo, see its attention, and share a link to the view."""

import base64
import io
import re

import pytest
from PIL import Image
from playwright.sync_api import expect

from vit.images import samples
from vit.images.encode import encode_image

from .explorer import App
from .files import photo, upload
from .serving import FIND

PASTE = """(encoded) => {
  const bytes = Uint8Array.from(atob(encoded), (c) => c.charCodeAt(0));
  const files = new DataTransfer();
  files.items.add(new File([bytes], "pasted.png", { type: "image/png" }));
  document.dispatchEvent(new ClipboardEvent("paste", { clipboardData: files, bubbles: true, cancelable: true }));
}"""


def test_invitation_is_for_a_picture_that_follows_the_pointer(app: App) -> None:
    invitation = app.page.locator(".invite")
    app.open("?sample=cat&token=5&pinned=1")
    expect(invitation).to_be_hidden()
    app.page.locator("canvas.over").first.press("Escape")
    expect(invitation).to_be_visible()
    app.page.locator("canvas.over").first.hover()
    expect(invitation).to_be_hidden()


@pytest.mark.exhaustive
def test_chosen_input_size_is_kept_for_the_next_upload(app: App) -> None:
    app.open()
    upload(app.page, {"first.jpg": photo(600, 900)})
    app.wait_for_payload("header.picture.height", 900)
    app.page.goto(f"{app.page.url}&size=64")
    app.wait_for_payload("tokens", 257)
    upload(app.page, {"second.jpg": photo(500, 700)})
    app.wait_for_payload("header.picture.height", 700)
    expect(app.page).to_have_url(re.compile("size=64"))
    app.wait_for_payload("tokens", 257)


def test_pasted_picture_is_explained(app: App) -> None:
    app.open()
    pasted = encode_image(Image.new("RGB", (333, 222), "olive"))
    app.page.evaluate(PASTE, base64.b64encode(pasted).decode())
    app.wait_for_payload("header.picture.width", 333)
    assert app.size() == [333, 222]


def test_sample_pin_and_head_are_restored_from_the_link(app: App) -> None:
    app.open()
    app.sample("Raccoon")
    width, height = Image.open(samples.SAMPLES["raccoon"].path).size
    app.wait_for_payload("header.picture.width", width)
    app.page.mouse.click(*app.at(2, 5))
    app.page.locator("canvas.over").press("PageUp")
    app.wait_until_idle()
    chosen = app.evaluate("viewer.selection")
    assert chosen["token"] == 1 + 2 * 8 + 5 and chosen["pinned"]
    expect(app.page).to_have_url(re.compile(r"sample=raccoon"))
    expect(app.page).to_have_url(re.compile(rf"token={chosen['token']}"))
    expect(app.page).to_have_url(re.compile(rf"block={chosen['block']}"))
    link = app.page.url

    app.page.goto("about:blank")
    app.open(link.partition("/?")[2] and "?" + link.partition("/?")[2])
    again = app.evaluate("viewer.selection")
    assert {key: again[key] for key in chosen} == chosen
    assert app.size() == [width, height]


@pytest.mark.exhaustive
def test_two_downloads_in_a_row_both_arrive(app: App) -> None:
    app.open("?size=128&view=rollout&token=631&pinned=1")
    for _ in range(2):
        app.open_share()
        assert Image.open(io.BytesIO(app.download("Picture as PNG"))).width > 100
        app.page.keyboard.press("Escape")
        assert Image.open(io.BytesIO(app.download("All heads as PNG"))).width > 100


def test_escape_unpins_wherever_the_focus_is(app: App) -> None:
    app.open()
    chip = app.page.get_by_role("button", name=re.compile("Class token"))
    chip.click()
    chip.press("Escape")
    assert not app.evaluate("viewer.selection.pinned")


def test_panorama_shows_patches_large_enough_to_point_at(app: App) -> None:
    app.open()
    upload(app.page, {"panorama.png": encode_image(Image.linear_gradient("L").resize((6000, 400)))})
    app.wait_for_payload("header.picture.width", 6000)
    area = app.page.locator("canvas.over").bounding_box()
    assert area and min(area["width"], area["height"]) > 100


def test_tall_picture_and_its_legend_fit_a_laptops_screen(app: App) -> None:
    app.page.set_viewport_size({"width": 1280, "height": 800})
    app.open()
    upload(app.page, {"tall.png": encode_image(Image.linear_gradient("L").resize((600, 800)))})
    app.wait_for_payload("header.picture.height", 800)
    area = app.page.locator(".legend:visible").bounding_box()
    assert area and area["y"] + area["height"] <= 800
    app.page.set_viewport_size({"width": 1280, "height": 1000})


def test_first_click_on_the_class_map_shows_it(app: App) -> None:
    """The required data is sent, and the viewer stays mounted."""
    app.open()
    app.page.evaluate(f"() => {{ window.first = {FIND}; }}")
    app.page.get_by_role("button", name="AttnLRP", exact=True).first.click()
    app.page.wait_for_function(f"() => {FIND}?.map?.relevance.some((value) => value > 0)")
    expect(app.page.locator(".sentence")).to_have_text("AttnLRP: evidence for “cat” in red, against it in blue.")
    app.wait_until_idle()
    assert app.evaluate("viewer === window.first && viewer.selection.view") == "relevance"
    app.page.get_by_role("button", name="Rollout", exact=True).first.click()
    app.wait_until_idle()
    expect(app.page.locator(".sentence")).to_have_text(re.compile("^Rollout"))
    assert app.evaluate("viewer === window.first && viewer.selection.view") == "rollout"


def test_second_bar_asks_why_the_first_class_and_not_that_one(app: App) -> None:
    app.open("?sample=cat")
    other = app.page.locator(".answers button").first
    name, sentence = other.locator("span").inner_text(), app.page.locator(".sentence")
    other.focus()
    app.page.keyboard.press("Enter")
    expect(sentence).to_have_text(f"AttnLRP: evidence for “cat rather than {name}” in red, against it in blue.")
    expect(other).to_have_attribute("aria-pressed", "true")
    expect(other).to_be_focused()
    app.wait_until_idle()
    other.click()
    expect(sentence).to_have_text("AttnLRP: evidence for “cat” in red, against it in blue.")
    app.wait_until_idle()
    app.page.go_back()  # to the question
    expect(sentence).to_have_text(f"AttnLRP: evidence for “cat rather than {name}” in red, against it in blue.")


def test_selected_class_is_the_explained_class(app: App) -> None:
    """Streamlit does not relabel a control by itself."""
    app.open("?view=relevance")
    popover = app.page.get_by_role("button", name="Class and method")
    field = app.page.locator('[data-testid="stSelectbox"]', has_text=re.compile("^Class")).first
    for name, label in (("horse", "horse"), ("temple", "bird"), ("cat", "cat")):
        app.sample(samples.SAMPLES[name].title)
        app.page.wait_for_function(f"() => !{FIND}.root.hasAttribute('data-waiting')")
        app.wait_until_idle()
        heading = app.page.locator(".sentence").inner_text()
        explained = re.search("“(.+)”", heading)
        assert explained and explained[1] == label
        popover.click()
        shown = field.locator("input").input_value() or field.inner_text()
        popover.click()
        assert explained[1] in shown, (name, shown)
        assert "target" not in app.page.url
    for name in ("raccoon", "horse", "flower", "temple", "cat"):
        app.sample(samples.SAMPLES[name].title)
        app.page.wait_for_timeout(60)
    app.wait_until_idle()
    assert "target" not in app.page.url and app.page.get_by_test_id("stException").count() == 0


@pytest.mark.exhaustive
def test_simultaneous_clicks_all_count(app: App) -> None:
    """One is in the viewer's fragment, one outside; Streamlit then reruns only the fragment."""
    app.open("?sample=cat")
    width, _ = Image.open(samples.SAMPLES["raccoon"].path).size
    app.page.evaluate("""() => {
        const find = (root, matches) => {
            for (const element of root.querySelectorAll("*")) {
                if (element.tagName === "BUTTON" && matches(element)) return element;
                const inside = element.shadowRoot && find(element.shadowRoot, matches);
                if (inside) return inside;
            }
        };
        find(document, (button) => button.textContent.trim() === "Heads").click();
        find(document, (button) => /Raccoon/.test(button.getAttribute("aria-label"))).click();
    }""")
    app.wait_for_payload("header.picture.width", width)
    expect(app.page).to_have_url(re.compile("panel=heads"))
    expect(app.page).to_have_url(re.compile("sample=raccoon"))


@pytest.mark.exhaustive
def test_computation_over_many_pictures_can_be_stopped(app: App) -> None:
    app.open("?panel=heads&size=128")
    main = app.page.get_by_test_id("stMain")
    main.get_by_text("many pictures", exact=True).click()
    app.wait_until_idle()  # an open list closes when the page scrolls, which it does as it gets shorter
    main.get_by_test_id("stSelectbox").filter(has_text="Pictures").last.locator("input").click()
    app.page.get_by_role("option").filter(has_text="Shapes").click()
    main.get_by_role("button", name=re.compile(r"Look at 128 pictures \(.+\)")).click()
    main.get_by_role("button", name="Stop", exact=True).click()
    expect(main.get_by_text("Stopped after")).to_be_visible()
    expect(main.get_by_role("button", name="Go on")).to_be_visible()
    app.wait_until_idle()  # and the browser does not request the rest


@pytest.mark.exhaustive
def test_several_pictures_can_be_stepped_through_here_and_on_compare(app: App) -> None:
    app.open()
    heights = {"first.jpg": 900, "second.jpg": 700, "third.jpg": 800}
    upload(app.page, {name: photo(600, height) for name, height in heights.items()})

    def expect_picture(name: str) -> None:
        app.wait_for_payload("header.picture.height", heights[name])
        expect(app.page.get_by_test_id("stCaptionContainer").get_by_text(name, exact=True)).to_be_visible()
        expect(app.page.get_by_role("button", name=name)).to_have_attribute("aria-pressed", "true")

    expect_picture("first.jpg")
    expect(app.page.get_by_role("button", name="Previous")).to_be_disabled()
    app.page.get_by_role("button", name="Next").click()
    expect_picture("second.jpg")
    app.page.get_by_role("button", name="third.jpg").click()
    expect_picture("third.jpg")
    app.page.reload()
    expect_picture("third.jpg")
    app.page.go_back()
    expect_picture("second.jpg")
    app.sample("Raccoon")
    expect(app.page.get_by_text("3 pictures")).to_be_visible()  # none of them is shown
    app.page.go_back()
    expect_picture("second.jpg")
    app.page.get_by_role("link", name="Compare").click()
    expect(app.page).to_have_url(re.compile("a_picture=[0-9a-f]+&a_which=2"))
    expect(app.page.get_by_text("2 of 3")).to_be_visible()
    app.page.get_by_role("button", name="Next").click()
    expect(app.page).to_have_url(re.compile("a_which=3"))


def test_every_view_fits_a_phones_screen(app: App) -> None:
    app.page.set_viewport_size({"width": 390, "height": 844})
    app.open("?sample=cat")
    buttons = app.page.locator("[data-field=view] button:visible")
    expect(buttons.last).to_have_text("Components")
    for area in [button.bounding_box() for button in buttons.all()]:
        assert area and area["x"] >= 0 and area["x"] + area["width"] <= 390
    app.page.set_viewport_size({"width": 1280, "height": 1000})
