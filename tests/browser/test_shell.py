"""What a browser shows before Streamlit's programs run, and that these find their server at once."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Browser, Page, Response, expect

from .serving import ROOT


@pytest.mark.parametrize("path", ["", "train"])
def test_words_are_there_before_any_program(browser: Browser, serve: Callable[..., str], path: str) -> None:
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
