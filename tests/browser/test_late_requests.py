"""A request that a panel sends by itself at the moment of a click, as a panel with unfinished results does."""

import re
from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from .serving import ROOT
from .waiting import Conversation

# The next request of a page is immediately followed by the one that `again` holds, as when both coincide.
REPEAT = """const send = WebSocket.prototype.send;
WebSocket.prototype.send = function (message) {
  send.call(this, message);
  globalThis.sent = message;
  if (globalThis.again) send.call(this, globalThis.again);
  globalThis.again = undefined;
};"""

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


@pytest.fixture
def ranking(page: Page, conversation: Conversation, serve: Callable[..., str]) -> Callable[[str], None]:
    """Return a function that opens panel Faithfulness with a script; the last request is one of the panel."""

    def open_panel(script: str) -> None:
        page.add_init_script(script)
        page.goto(f"{serve(ROOT / 'app.py')}/?checkpoint=cifar10&sample=cat")
        measure, ranked = page.get_by_role("button", name="Measure it"), page.get_by_text("All methods on this picture")
        expect(measure.or_(ranked)).to_be_visible()
        if measure.is_visible():  # the machine is so busy that the masks take more than a second
            measure.click()
        ranked.click()
        expect(page).to_have_url(re.compile("ranking"))
        conversation.finish()

    return open_panel


@pytest.mark.exhaustive
def test_late_request_of_the_previous_page_does_not_empty_the_next_one(
    page: Page, conversation: Conversation, ranking: Callable[[str], None]
) -> None:
    ranking(REPEAT)
    page.evaluate("again = sent")
    page.get_by_role("link", name="Checkpoints").click()
    expect(page).to_have_url(re.compile("/checkpoints"))
    conversation.finish()
    expect(page.get_by_role("heading", name="Checkpoints", exact=True)).to_be_visible()
    expect(page.get_by_text("Open in Explore").first).to_be_visible()


def test_late_request_of_a_panel_does_not_keep_it_beside_the_next_one(
    page: Page, ranking: Callable[[str], None]
) -> None:
    ranking(ANOTHER_FRAGMENT)
    page.evaluate("late = sent")
    page.get_by_test_id("stMain").get_by_text("Ablation", exact=True).click()
    expect(page.get_by_text("A head that is off outputs")).to_be_visible()
    expect(page.get_by_text("All methods on this picture")).not_to_be_attached()
