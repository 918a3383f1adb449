"""The first moments of a page: text before Streamlit's scripts, and a map before PyTorch."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, Response, expect

from .serving import FIND, ROOT, streamlit
from .waiting import hold_requests


@pytest.mark.parametrize("path", ["", "train"])
def test_text_is_there_before_any_script(browser: Browser, serve: Callable[..., str], path: str) -> None:
    with browser.new_context(java_script_enabled=False) as context:
        page = context.new_page()
        page.goto(f"{serve(ROOT / 'app.py')}/{path}")
        expect(page.get_by_role("heading", name="ViT attention explorer")).to_be_visible()
        expect(page).to_have_title("ViT attention explorer")


@pytest.mark.parametrize("path", ["", "train"])
def test_every_request_of_a_page_is_answered(page: Page, serve: Callable[..., str], path: str) -> None:
    answers: list[Response] = []
    page.on("response", lambda answer: answers.append(answer))
    page.goto(f"{serve(ROOT / 'app.py')}/{path}?token=1")
    expect(page.get_by_test_id("stApp").get_by_role("heading", level=1)).to_be_attached()
    assert answers and [(one.status, one.url) for one in answers if one.status >= 400] == []


@pytest.mark.parametrize("window", [(1280, 800), (390, 844)])
def test_nothing_moves_when_late_scripts_arrive(page: Page, serve: Callable[..., str], window: tuple[int, int]) -> None:
    """The browser fetches the scripts of HTML elements and of the uploader after the page is drawn without them."""
    page.set_viewport_size({"width": window[0], "height": window[1]})
    with hold_requests(page, "**/static/js/Html.*", "**/static/js/FileUploader.*") as held:
        page.goto(serve(ROOT / "app.py"))
        page.wait_for_function(f"() => {FIND}?.stats.draws && !{FIND}.root.matches('[data-waiting]')")
        expect(page.get_by_role("button", name="Answer")).to_be_visible()
        names = "Camera", "Answer"
        seen = [page.locator("canvas.over"), *(page.get_by_role("button", name=name) for name in names)]
        before = [one.bounding_box() for one in seen]
        assert {route.request.url.rpartition("/")[2].partition(".")[0] for route in held} == {"Html", "FileUploader"}
    expect(page.get_by_test_id("stFileUploader")).to_be_visible()
    assert [one.bounding_box() for one in seen] == before


SHIFTS = """
window.shifts = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) window.shifts += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""


@pytest.mark.parametrize("window", [(1280, 800), (390, 844)])
def test_layout_hardly_shifts_while_the_page_loads(
    page: Page, serve: Callable[..., str], window: tuple[int, int]
) -> None:
    page.set_viewport_size({"width": window[0], "height": window[1]})
    page.add_init_script(SHIFTS)
    page.goto(serve(ROOT / "app.py"))
    page.wait_for_function(f"() => {FIND}?.stats.draws && !{FIND}.root.matches('[data-waiting]')")
    expect(page.get_by_role("button", name="Share")).to_be_enabled()
    assert page.evaluate("window.shifts") < 0.05


@pytest.mark.parametrize(
    ("path", "width", "script", "loaded", "below"),
    [
        ("checkpoints", 1280, "DataFrame", "[data-testid=stDataFrame] canvas", "Open in Explore"),
        ("compare", 390, "Checkbox", ".st-key-apart label", "Classes"),
        ("compare?mode=many", 1280, "ImageList", "[data-testid=stImage] img", "Chelsea the cat"),
        ("compare?mode=many", 390, "Selectbox", ".st-key-m_method input", "Measure faithfulness"),
    ],
)
def test_other_pages_reserve_the_space_of_a_late_script(
    page: Page, serve: Callable[..., str], path: str, width: int, script: str, loaded: str, below: str
) -> None:
    page.set_viewport_size({"width": width, "height": 800})
    moved = page.get_by_text(below).first
    with hold_requests(page, f"**/static/js/{script}.*") as held:
        page.goto(f"{serve(ROOT / 'app.py')}/{path}")
        ask = page.get_by_role("button", name="Look at")  # on a busy machine, the sheet asks before it starts
        expect(moved.or_(ask).first).to_be_visible()
        if ask.is_visible():
            ask.click()
        expect(moved).to_be_visible()
        expect(page.get_by_test_id("stApp")).to_have_attribute("data-test-script-state", "notRunning")
        before = moved.bounding_box()
        assert before and held
    expect(page.locator(loaded).first).to_be_attached()
    after = moved.bounding_box()
    assert after and abs(after["y"] - before["y"]) <= 8  # a shorter control is centred in its row


def test_choices_made_before_pytorch_is_loaded_are_kept(page: Page) -> None:
    with streamlit(ROOT / "app.py") as url:
        page.goto(url)
        page.wait_for_function(f"() => {FIND}?.stats.draws && !{FIND}.root.matches('[data-unready], [data-waiting]')")
        page.evaluate(f"() => {{ {FIND}.root.kept = true; }}")
        over = page.locator("canvas.over")
        over.click(position={"x": 60, "y": 40})
        over.press("PageUp")
        chosen = page.evaluate(f"() => {FIND}.selection")
        assert chosen["pinned"]
        expect(page.get_by_role("button", name="All attention as NPZ")).to_be_visible()
        expect(page.get_by_text("Loading PyTorch")).to_have_count(0)
        page.wait_for_function(f"() => {FIND}.settled")
        assert page.evaluate(f"() => {FIND}.root.kept") and page.evaluate(f"() => {FIND}.selection") == chosen
