"""Back and Forward on page Explore: each action is one history entry, and leads back to the same view."""

import re

import pytest
from PIL import Image
from playwright.sync_api import expect

from vit.images import samples
from vit.view import first_view

from .explorer import App
from .files import photo, upload


@pytest.mark.exhaustive
def test_back_from_an_upload_leads_to_the_previous_view(app: App) -> None:
    app.open()
    upload(app.page, {"phone.jpg": photo(600, 900)})
    expect(app.page).to_have_url(re.compile("upload=phone.jpg.*picture="))
    app.wait_until_idle()
    app.page.go_back()
    expect(app.page).to_have_url(re.compile(r"\?sample=cat&checkpoint=cifar10$"))
    app.wait_until_idle()
    assert "upload=" not in app.page.url
    assert app.size() == list(Image.open(samples.SAMPLES["cat"].path).size)
    app.page.go_forward()
    app.wait_for_payload("header.picture.height", 900)
    expect(app.page).to_have_url(re.compile("upload=phone.jpg.*picture="))


@pytest.mark.exhaustive
def test_first_view_is_a_history_entry(app: App) -> None:
    app.page.goto("about:blank")
    before = app.page.evaluate("() => history.length")
    app.page.goto(f"{app.url}/")
    app.wait_for_payload("tokens", 257)
    first = app.page.url
    assert "view=relevance" in first and app.page.evaluate("() => history.length") == before + 1
    upload(app.page, {"phone.jpg": photo(600, 900)})
    app.wait_for_payload("header.picture.height", 900)
    app.page.go_back()
    app.wait_for_payload("header.picture.height", Image.open(samples.SAMPLES[first_view.SAMPLE].path).height)
    assert app.page.url == first
    app.page.go_back()
    app.page.wait_for_url("about:blank")


def test_each_action_is_one_history_entry(app: App) -> None:
    app.open()
    steps = "() => history.length"
    before = app.page.evaluate(steps)
    upload(app.page, {"phone.jpg": photo(600, 900)})
    app.wait_for_payload("header.picture.height", 900)
    assert app.page.evaluate(steps) == before + 1
    app.page.mouse.click(*app.at(2, 5))
    expect(app.page).to_have_url(re.compile("pinned=1"))
    app.wait_until_idle()
    assert app.page.evaluate(steps) == before + 2
    app.sample("Raccoon")
    expect(app.page).to_have_url(re.compile("sample=raccoon"))
    app.wait_until_idle()
    assert app.page.evaluate(steps) == before + 3

    app.page.go_back()
    app.wait_for_payload("header.picture.height", 900)
    expect(app.page).to_have_url(re.compile("upload=phone.jpg.*pinned=1"))
    app.page.go_back()
    expect(app.page).to_have_url(re.compile(r"upload=phone.jpg(?!.*pinned)"))
    app.wait_until_idle()
    assert app.size() == [600, 900]
    app.page.go_back()
    expect(app.page).to_have_url(re.compile(r"\?sample=cat&checkpoint=cifar10$"))
    app.wait_for_payload("header.picture.height", Image.open(samples.SAMPLES["cat"].path).height)


def test_each_upload_is_one_history_entry_and_the_picture_has_its_name(app: App) -> None:
    app.open()
    steps, before = "() => history.length", app.page.evaluate("() => history.length")
    files = {"first.jpg": photo(600, 900), "broken.png": b"", "second.jpg": photo(500, 700)}
    heights = {"first.jpg": 900, "broken.png": 900, "second.jpg": 700}
    for name, content in files.items():
        upload(app.page, {name: content})
        if not content:
            expect(app.page.get_by_test_id("stAlert")).to_contain_text(name)
        app.wait_for_payload("header.picture.height", heights[name])
    assert app.page.evaluate(steps) == before + 2

    def expect_picture(name: str) -> None:
        app.wait_for_payload("header.picture.height", heights[name])
        expect(app.page.get_by_test_id("stCaptionContainer").get_by_text(name, exact=True)).to_be_visible()
        expect(app.page).to_have_url(re.compile(f"upload={name}"))
        expect(app.page.get_by_test_id("stFileUploaderFileName")).to_have_count(0)  # no other name beside it

    expect_picture("second.jpg")
    app.page.go_back()
    expect_picture("first.jpg")
    app.page.reload()
    expect_picture("first.jpg")
    app.page.go_forward()
    expect_picture("second.jpg")
    app.sample("Raccoon")
    expect(app.page).to_have_url(re.compile("sample=raccoon"))
    app.wait_until_idle()
    app.page.go_back()
    expect_picture("second.jpg")


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    "there",
    ["Train", *(pytest.param(page, marks=pytest.mark.exhaustive) for page in ("Compare", "Checkpoints", "Runs"))],
)
def test_another_page_and_the_way_back_are_one_history_entry_each(app: App, there: str) -> None:
    app.open("?sample=raccoon&view=similar")
    steps = [app.page.url]
    before = app.page.evaluate("() => history.length")
    for name in (there, "Explore"):
        app.page.get_by_role("link", name=name, exact=True).first.click()
        expect(app.page).to_have_url(re.compile(f"/{there.lower()}" if name == there else "sample=raccoon"))
        app.wait_until_idle()
        steps.append(app.page.url)
    assert app.page.evaluate("() => history.length") == before + 2
    assert not re.search("[?&]sample=", steps[1]) and steps[2] == steps[0]
    for address in (steps[1], steps[0]):
        app.page.go_back()
        app.wait_until_idle()
        assert app.page.url == address
    app.wait_for_payload("header.picture.width", Image.open(samples.SAMPLES["raccoon"].path).width)
    for address in (steps[1], steps[2]):
        app.page.go_forward()
        app.wait_until_idle()
        assert app.page.url == address


@pytest.mark.exhaustive
def test_returning_from_another_page_restores_everything(app: App) -> None:
    app.open("?sample=raccoon&view=similar&token=30&pinned=1")
    app.open_display()
    app.page.get_by_role("button", name="Own scales").first.click()
    app.wait_until_idle()
    upload(app.page, {"mine.png": photo(333, 222)})
    app.wait_for_payload("header.picture.width", 333)
    app.page.get_by_role("link", name="Runs").click()
    expect(app.page).to_have_url(re.compile("/runs"))
    app.wait_until_idle()
    app.page.get_by_role("link", name="Explore").click()
    app.wait_for_payload("header.picture.width", 333)
    chosen = app.evaluate("viewer.selection")
    assert (chosen["view"], chosen["token"], chosen["scale"], chosen["pinned"]) == ("similar", 30, "own", True)
    for part in ("sample=raccoon", "view=similar", "scale=own", "upload=mine.png"):
        expect(app.page).to_have_url(re.compile(part))
    app.page.goto(app.page.url)
    app.wait_for_payload("header.picture.width", 333)
