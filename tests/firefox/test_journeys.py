"""What people do with the app, in Firefox; what each thing does in detail is tested in Chromium."""

from pathlib import Path

from PIL import Image

from .window import Window


def test_the_first_view_opens(window: Window) -> None:
    window.open()
    assert window.ask("a.payload.tokens") == 257  # as enlarged for newcomers
    window.until("a.stats.draws > 0 && a.page.find('.picture').naturalWidth > 0")
    window.until("document.body.innerText.includes('All attention as NPZ')")  # the whole page


def test_errors_of_a_page_are_noticed(window: Window) -> None:
    window.open("?sample=cat")
    window.run("console.error('said'); setTimeout(() => { throw new Error('thrown'); });")
    noticed: list[str] = []

    def both() -> bool:
        noticed.extend(window.errors())
        return len(noticed) >= 2

    window.wait(both, "two errors in the log")
    assert [word in one for word, one in zip(("said", "thrown"), noticed, strict=True)] == [True, True]


def test_hovering_draws_another_map_and_asks_nothing_of_the_server(window: Window) -> None:
    window.open("?sample=cat")
    before = window.drawn()
    window.point(2, 5)
    window.until("a.settled")
    assert window.drawn() != before
    assert window.marionette.get_url() == f"{window.url}/?sample=cat"


def test_a_pin_is_in_the_link_which_restores_it(window: Window) -> None:
    window.open("?sample=cat")
    patch = window.point(2, 5, click=True)
    window.until_link(f"token={patch}.*pinned=1|pinned=1.*token={patch}")
    window.until("a.settled")
    link = window.marionette.get_url().removeprefix(f"{window.url}/")
    pinned = window.drawn()
    window.marionette.navigate("about:blank")
    window.open(link)
    assert window.ask("[a.selection.token, a.selection.pinned]") == [patch, True]
    assert window.drawn() == pinned


def test_an_uploaded_picture_is_explained_and_a_reload_shows_it_again(window: Window, tmp_path: Path) -> None:
    window.open("?sample=cat")
    Image.linear_gradient("L").resize((600, 900)).convert("RGB").save(tmp_path / "phone.jpg")
    window.upload(tmp_path / "phone.jpg")
    window.until("a?.payload?.header.picture.height === 900")
    window.until_link("upload=phone.jpg.*picture=")
    window.open(window.marionette.get_url().removeprefix(f"{window.url}/"))
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


def test_both_sides_of_compare_have_one_cursor(window: Window) -> None:
    window.open("compare", viewers=2)
    patch = window.point(2, 5)
    window.until(f"b.query === {patch}")
    window.point(2, 5, click=True)
    window.until(f"b.selection.pinned && b.selection.token === {patch}")
    window.until_link(f"token={patch}")
