"""What people do with the app, in every browser that Playwright does not drive; the details are tested in Chromium."""

from .driven_window import DrivenWindow


def test_errors_of_a_page_are_noticed(window: DrivenWindow) -> None:
    window.open("?sample=cat")
    window.run("console.error('said'); setTimeout(() => { throw new Error('thrown'); });")
    noticed: list[str] = []

    def both() -> bool:
        noticed.extend(window.errors())
        return len(noticed) >= 2

    window.wait(both, "two errors")
    assert [word in one for word, one in zip(("said", "thrown"), noticed, strict=True)] == [True, True]


def test_the_first_view_opens(window: DrivenWindow) -> None:
    window.open()
    assert window.ask("a.payload.tokens") == 257  # as enlarged for newcomers
    window.until("a.stats.draws > 0 && a.page.find('.picture').naturalWidth > 0")
    window.until("document.body.innerText.includes('All attention as NPZ')")  # the whole page


def test_hovering_draws_another_map_and_asks_nothing_of_the_server(window: DrivenWindow) -> None:
    window.open("?sample=cat")
    before = window.drawn()
    window.point(2, 5)
    window.until("a.settled")
    assert window.drawn() != before
    assert window.address == f"{window.url}/?sample=cat"


def test_a_pin_is_in_the_link_which_restores_it(window: DrivenWindow) -> None:
    window.open("?sample=cat")
    patch = window.point(2, 5, click=True)
    window.until_link(f"token={patch}.*pinned=1|pinned=1.*token={patch}")
    window.until("a.settled")
    link, pinned = window.address.removeprefix(f"{window.url}/"), window.drawn()
    window.navigate("about:blank")
    window.open(link)
    assert window.ask("[a.selection.token, a.selection.pinned]") == [patch, True]
    assert window.drawn() == pinned


def test_both_sides_of_compare_have_one_cursor(window: DrivenWindow) -> None:
    window.open("compare", viewers=2)
    patch = window.point(2, 5)
    window.until(f"b.query === {patch}")
    window.point(2, 5, click=True)
    window.until(f"b.selection.pinned && b.selection.token === {patch}")
    window.until_link(f"token={patch}")
