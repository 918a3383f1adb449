"""What people do with the app, in Firefox; what each thing does in detail is tested in Chromium."""

from pathlib import Path

from PIL import Image

from tests.browser.journeys import *  # noqa: F403

from .window import Window


def test_an_uploaded_picture_is_explained_and_a_reload_shows_it_again(window: Window, tmp_path: Path) -> None:
    window.open("?sample=cat")
    Image.linear_gradient("L").resize((600, 900)).convert("RGB").save(tmp_path / "phone.jpg")
    window.upload(tmp_path / "phone.jpg")
    window.until("a?.payload?.header.picture.height === 900")
    window.until_link("upload=phone.jpg.*picture=")
    window.open(window.address.removeprefix(f"{window.url}/"))
    assert window.ask("[a.payload.header.picture.width, a.payload.header.picture.height]") == [600, 900]


def test_the_page_is_dark_where_the_system_is(window: Window) -> None:
    brightness = "getComputedStyle({}).{}.match(/\\d+/g).reduce((sum, one) => sum + Number(one), 0)"
    ground = brightness.format("document.querySelector('[data-testid=stApp]')", "backgroundColor")
    words = brightness.format("a.root", "color")
    window.open("?sample=cat")
    assert window.ask(f"{ground} > 600 && {words} < 300")
    window.set_dark(True)
    window.open("?sample=cat")
    assert window.ask(f"{ground} < 200 && {words} > 600")
