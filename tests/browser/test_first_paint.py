"""The first moments of a page: text before Streamlit's scripts, and a map before PyTorch."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, Response, Route, expect

from .serving import FIND, ROOT, streamlit
from .waiting import Conversation


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
    held: list[Route] = []
    for late in ("**/static/js/Html.*", "**/static/js/FileUploader.*"):
        page.route(late, lambda route: held.append(route))
    page.set_viewport_size({"width": window[0], "height": window[1]})
    page.goto(serve(ROOT / "app.py"))
    page.wait_for_function(f"() => {FIND}?.stats.draws && !{FIND}.root.matches('[data-waiting]')")
    expect(page.get_by_role("button", name="New here?")).to_be_visible()
    seen = [page.locator("canvas.over"), *(page.get_by_role("button", name=name) for name in ("Camera", "New here?"))]
    before = [one.bounding_box() for one in seen]
    assert {route.request.url.rpartition("/")[2].partition(".")[0] for route in held} == {"Html", "FileUploader"}
    for route in held:
        route.continue_()
    expect(page.get_by_test_id("stFileUploader")).to_be_visible()
    expect(page.locator("#map")).to_be_attached()
    assert [one.bounding_box() for one in seen] == before


@pytest.mark.parametrize(
    ("path", "width", "script", "loaded", "below"),
    [
        ("checkpoints", 1280, "DataFrame", "[data-testid=stDataFrame] canvas", "Open in Explore"),
        ("compare", 390, "Checkbox", ".st-key-apart label", "Classes"),
    ],
)
def test_other_pages_reserve_the_space_of_a_late_script(
    page: Page, serve: Callable[..., str], path: str, width: int, script: str, loaded: str, below: str
) -> None:
    held: list[Route] = []
    page.route(f"**/static/js/{script}.*", lambda route: held.append(route))
    page.set_viewport_size({"width": width, "height": 800})
    page.goto(f"{serve(ROOT / 'app.py')}/{path}")
    moved = page.get_by_text(below).first
    expect(moved).to_be_visible(timeout=60_000)
    expect(page.get_by_test_id("stApp")).to_have_attribute("data-test-script-state", "notRunning", timeout=60_000)
    before = moved.bounding_box()
    assert before and held
    for route in held:
        route.continue_()
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


# The next request of a page is immediately followed by the one that `again` holds, as when both coincide.
REPEAT = """const send = WebSocket.prototype.send;
WebSocket.prototype.send = function (message) {
  send.call(this, message);
  globalThis.sent = message;
  if (globalThis.again) send.call(this, globalThis.again);
  globalThis.again = undefined;
};"""


@pytest.mark.exhaustive
def test_late_request_of_the_previous_page_does_not_empty_the_next_one(
    page: Page, conversation: Conversation, serve: Callable[..., str]
) -> None:
    page.add_init_script(REPEAT)
    page.goto(f"{serve(ROOT / 'app.py')}/?checkpoint=cifar10&sample=cat")
    page.get_by_text("All methods on this picture").click()
    expect(page).to_have_url(re.compile("ranking"))
    conversation.finish()
    page.evaluate("again = sent")  # a fragment's
    page.get_by_role("link", name="Checkpoints").click()
    expect(page).to_have_url(re.compile("/checkpoints"))
    conversation.finish()
    expect(page.get_by_role("heading", name="Checkpoints", exact=True)).to_be_visible()
    expect(page.get_by_text("Open in Explore").first).to_be_visible()


# When the server starts on the next request of a page, it gets the same one for the fragment of the request `late`.
ANOTHER_FRAGMENT = """const send = WebSocket.prototype.send;
const fragmentAt = (message) => {  // where `ClientState.fragment_id` is: field 5, 32 hexadecimal digits
  const text = new TextDecoder("latin1").decode(message);
  return text.search(/\\x2a\\x20[0-9a-f]{32}/) + 2;
};
WebSocket.prototype.send = function (message) {
  send.call(this, message);
  if (globalThis.late) {
    const copy = message.slice(), from = fragmentAt(globalThis.late);
    copy.set(globalThis.late.slice(from, from + 32), fragmentAt(copy));
    this.addEventListener("message", () => send.call(this, copy), { once: true });
  }
  globalThis.late = undefined;
  globalThis.sent = message;
};"""


def test_late_request_of_a_panel_does_not_keep_it_beside_the_next_one(
    page: Page, conversation: Conversation, serve: Callable[..., str]
) -> None:
    """Panel Faithfulness requests more masks by itself, so such a request often follows a click on another panel."""
    page.add_init_script(ANOTHER_FRAGMENT)
    page.goto(f"{serve(ROOT / 'app.py')}/?checkpoint=cifar10&sample=cat")
    page.get_by_text("All methods on this picture").click()
    expect(page).to_have_url(re.compile("ranking"))
    conversation.finish()
    page.evaluate("late = sent")  # a request of the panel's fragment
    page.get_by_test_id("stMain").get_by_text("Ablation", exact=True).click()
    expect(page.get_by_text("A head that is off outputs")).to_be_visible()
    expect(page.get_by_text("All methods on this picture")).not_to_be_attached()
