"""The tour's panel and its target: they share the window, and the panel is in front."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, expect

from .explorer import PATIENCE, App
from .serving import ROOT

WINDOWS = ((1280, 900), (1280, 720), (390, 844))
# The single outlined control lies entirely between the menu above and the panel below.
FREE = """() => {
  const all = (root) => [...root.querySelectorAll("*")].flatMap((e) => [e, ...(e.shadowRoot ? all(e.shadowRoot) : [])]);
  const outlined = all(document).filter((e) => e.style?.outline.includes("solid"));
  const edge = (part, side) => document.querySelector(`[data-testid=${part}]`).getBoundingClientRect()[side];
  const { top, bottom } = outlined[0]?.getBoundingClientRect() ?? {};
  return outlined.length === 1 && edge("stHeader", "bottom") <= top && bottom <= edge("stBottom", "top");
}"""


@pytest.mark.exhaustive
def test_panel_never_covers_the_control_that_it_points_at(app: App) -> None:
    page = app.page
    see = page.get_by_test_id("stBottom").get_by_role("link", name="See it")
    app.open("?tour=1&sample=cat&checkpoint=cifar10")
    for number in range(1, 8):
        expect(page.get_by_text(f"{number} of 7.")).to_be_visible()
        app.wait_until_idle()
        for width, height in WINDOWS:
            page.set_viewport_size({"width": width, "height": height})
            page.wait_for_function(FREE)
            see.click()
            assert page.evaluate(FREE), f"step {number} in {width} x {height}, after See it"
        if number < 7:
            page.get_by_role("button", name="Next").click()


@pytest.mark.exhaustive
def test_scrolling_away_from_a_step_is_not_undone(app: App) -> None:
    app.open("?tour=1&sample=cat&checkpoint=cifar10")
    app.page.wait_for_function(FREE)
    app.page.mouse.move(800, 300)
    app.page.mouse.wheel(0, -5000)
    at_top = "document.querySelector('[data-testid=stMain]').scrollTop === 0"
    app.page.wait_for_function(at_top)
    app.page.get_by_test_id("stMain").evaluate("(main) => new Promise((done) => setTimeout(done, 700))")
    assert app.page.evaluate(at_top)


def test_menu_and_tour_on_a_phone_are_named_and_large_enough_to_tap(
    browser: Browser, serve: Callable[..., str]
) -> None:
    phone = {"width": 390, "height": 844}
    with browser.new_context(viewport=phone, has_touch=True, is_mobile=True) as context:
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(serve(ROOT / "app.py"))
        expect(page.locator(".readings")).to_contain_text("tap a patch")
        menu = page.get_by_test_id("stExpandSidebarButton")
        assert menu.evaluate("(button) => getComputedStyle(button, '::after').content") == '"Menu"'
        menu.tap()
        expect(page.get_by_role("link", name="Compare")).to_be_in_viewport()
        page.get_by_role("button", name="Collapse sidebar").tap()
        page.get_by_role("button", name="New here?").tap()
        expect(page.get_by_text("1 of 7.")).to_be_in_viewport()
