"""The tour: its steps lead to their controls, and its panel and its target share the window."""

import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from .explorer import App
from .page_with_viewer import PATIENCE
from .serving import FIND, ROOT

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
def test_each_tour_step_outlines_a_control_and_detects_its_use(app: App) -> None:
    page, grid = app.page, app.page.locator("canvas.grid")
    uses = (
        app.open_display,
        lambda: page.get_by_role("button", name="Class token").hover(),
        lambda: page.get_by_role("button", name="Attended by").click(),
        lambda: grid.click(position={"x": 150, "y": 150}),
        lambda: grid.click(position={"x": 150, "y": 200}),
        lambda: page.get_by_role("button", name="Rollout").click(),
        lambda: page.get_by_role("radio", name="Faithfulness").click(),
    )
    outlined = """(colour) => {
      const all = (root) =>
        [...root.querySelectorAll("*")].flatMap((e) => [e, ...(e.shadowRoot ? all(e.shadowRoot) : [])]);
      const outlined = all(document).filter((e) => e.style?.outline.includes(colour));
      return outlined.length === 1 && outlined[0].getBoundingClientRect().height > 0;
    }"""
    app.open("?tour=1&sample=cat&checkpoint=cifar10")
    for number, use in enumerate(uses, 1):
        expect(page.get_by_text(f"{number} of 7.")).to_be_visible()
        app.wait_until_idle()
        page.wait_for_function(outlined, arg="rgb(201, 128, 58)")
        expect(page.get_by_text("✓ Done")).to_be_hidden()
        use()
        expect(page.get_by_text("✓ Done")).to_be_visible()
        page.wait_for_function(outlined, arg="rgb(59, 146, 154)")
        if number < len(uses):
            page.get_by_role("button", name="Next").click()
    page.get_by_role("button", name="Done", exact=True).click()
    app.wait_until_idle()
    page.wait_for_function(f"(colour) => !({outlined})(colour)", arg="rgb(")
    app.open("?tour=7&sample=cat&checkpoint=cifar10")  # the last step, once more
    expect(page.get_by_text("7 of 7.")).to_be_visible()
    page.wait_for_function(outlined, arg="rgb(201, 128, 58)")
    expect(page.get_by_text("✓ Done")).to_be_hidden()


@pytest.mark.exhaustive
def test_tour_steps_leave_the_map_in_view(app: App) -> None:
    app.open()
    seen = f"""() => {{
      const {{ top, bottom }} = {FIND}.root.querySelector("canvas.over").getBoundingClientRect();
      const step = document.querySelector("[data-testid=stBottom]");
      return step && 0 <= top && bottom <= step.getBoundingClientRect().top;
    }}"""
    assert not app.page.evaluate(seen)
    for button in ("New here?", "Next"):
        app.page.get_by_role("button", name=button).click()
        app.page.wait_for_function(seen)
        app.wait_until_idle()
        assert app.page.evaluate(seen)
    app.page.get_by_role("button", name="End the tour").click()
    app.wait_until_idle()


@pytest.mark.parametrize(("width", "height"), [pytest.param(1280, 800, marks=pytest.mark.exhaustive), (390, 844)])
def test_tour_step_stays_visible_and_leads_to_its_subject(app: App, width: int, height: int) -> None:
    app.page.set_viewport_size({"width": width, "height": height})
    app.open("?tour=3&sample=cat&block=2&head=0&token=31&pinned=1")
    box = app.page.get_by_test_id("stBottomBlockContainer")

    def sees(step: str, seen: Any) -> None:
        """Whether this element is visible above the step at the bottom of the window."""
        expect(box.get_by_text(step)).to_be_in_viewport(ratio=1)
        app.wait_until_idle()
        area, below = seen.bounding_box(), box.bounding_box()
        assert area and below and area["y"] >= 0 and area["y"] + 80 < below["y"] < height * 0.9

    box.get_by_role("link", name="See").click()
    sees("3 of 7", app.page.locator("canvas.over"))
    for step, panel, where in ((4, "Heads", ".table"), (5, "Layers", None)):
        box.get_by_role("button", name="Next").click()
        expect(box.get_by_text(f"{step} of 7")).to_be_visible()
        app.wait_until_idle()
        chosen = app.page.locator('[data-testid*="segmented_controlActive"], [aria-checked="true"]')
        expect(chosen.filter(has_text=re.compile(f"^{panel}$"))).to_be_visible()
        box.get_by_role("link", name=panel).click()
        sees(f"{step} of 7", app.page.locator(where).first if where else app.page.get_by_text("Decided at block 3"))
    box.get_by_role("link", name="See").click()
    sees("5 of 7", app.page.locator("canvas.grid"))  # the subject of this step


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
