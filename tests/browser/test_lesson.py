"""The lesson as a class uses it: one file, opened from the disk, without a network."""

import base64
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from playwright.sync_api import Browser, Locator, expect

from vit.checkpoints.checkpoint import Checkpoint
from vit.images import samples
from vit.lesson.page import Language, lesson

from .axe import violations
from .offline import OfflineFile
from .serving import FIND

ROOT = Path(__file__).parents[2]
WORDS = json.loads((ROOT / "vit" / "lesson" / "web" / "words.json").read_text(encoding="utf-8"))
LAST = 8  # index of the last step
NAMES = ("Vision Transformer Rollout Softmax Token token MLP GELU patch query key value", "Abnar Zuidema",
         "Page Up Page Down Home End Enter Space Esc", "tiny", "JPEG PNG", "WebAssembly")  # fmt: skip
SCREENS = {"wide": (1280, 900), "phone": (390, 844)}
PROBABILITY, ATTENTION = 1e-4, 1e-5  # largest differences from torch
# In the model's thread: results of its last pass, in Base64, as Playwright reads long lists number by number.
PASSED = """async () => {
  const { transformer } = await model;
  const { blocks, tokens, space } = transformer;
  const maps = blocks.flatMap(({ attention }) => attention);
  const rows = maps.flatMap((map) => Array.from({ length: tokens }, (_, i) => space.row(map, i).slice()));
  const letters = rows.map((row) => String.fromCharCode(...new Uint8Array(row.buffer)));
  return [[...transformer.classify()], btoa(letters.join(""))];
}"""


class Lesson(OfflineFile):
    """A lesson's file."""

    def __init__(self, browser: Browser, path: Path, screen: str = "wide", scheme: Any = "light"):
        width, height = SCREENS[screen]
        super().__init__(
            browser,
            viewport={"width": width, "height": height},
            color_scheme=scheme,
            reduced_motion="reduce",
            has_touch=screen == "phone",
        )
        self.page.goto(path.as_uri())
        self.wait_until_idle()

    def wait_until_idle(self) -> None:
        """Wait until the model has answered and everything is drawn."""
        self.page.wait_for_function(
            f"() => document.querySelector('main').dataset.state === 'ready' && {FIND}?.settled"
        )

    def step(self, number: int) -> None:
        self.page.locator(".steps button").nth(number).click()
        self.wait_until_idle()

    def look(self, file: Path) -> None:
        """Open a picture."""
        before = self.page.evaluate(f"() => {FIND}.payloadId")
        self.page.locator(".own input").set_input_files(file)
        self.page.wait_for_function(f"(before) => {FIND}.payloadId !== before", arg=before)
        self.wait_until_idle()

    def computes_with(self, engine: str) -> None:
        expect(self.page.locator(".facts")).to_contain_text(f"Here it computes with {engine}")

    def thread(self, code: str, arg: Any = None) -> Any:
        """Evaluate code in the model's thread."""
        return self.page.workers[0].evaluate(code, arg)

    def check_numbers(self, checkpoint: Checkpoint, picture: Image.Image) -> None:
        """Check the results of the last pass against torch."""
        probabilities, letters = self.thread(PASSED)
        with torch.inference_mode():
            output = checkpoint.model(checkpoint.preprocess(picture), output_attentions=True)
        assert output.attentions is not None
        attention = torch.cat(output.attentions).numpy().ravel()
        assert np.abs(np.frombuffer(base64.b64decode(letters), np.float32) - attention).max() <= ATTENTION
        wanted = checkpoint.model.probabilities(output.logits)[0].numpy()
        assert np.abs(np.array(probabilities) - wanted).max() <= PROBABILITY

    @property
    def done(self) -> Locator:
        """Return the sentence shown after the step is done."""
        return self.page.locator(".card .done span")

    def numbers(self, code: str, each: str = "(one) => one") -> np.ndarray:
        return np.array(self.page.evaluate(f"() => {{ const viewer = {FIND}; return [...{code}].map({each}); }}"))


@pytest.fixture
def open_lesson(browser: Browser, checkpoint: Checkpoint, tmp_path: Path) -> Iterator[Callable[..., Lesson]]:
    """Return `open_lesson(language="en", screen="wide", scheme="light")`, for the tiny checkpoint or `of`."""
    opened: list[Lesson] = []

    def start(language: Language = "en", of: Checkpoint = checkpoint, **options: Any) -> Lesson:
        path = tmp_path / "lesson.html"
        path.write_bytes(lesson(of, language))
        opened.append(Lesson(browser, path, **options))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_picture_is_opened_its_map_hovered_and_an_exercise_done(
    open_lesson: Callable[..., Lesson], checkpoint: Checkpoint, tmp_path: Path
) -> None:
    opened = open_lesson()
    expect(opened.page.locator("canvas.over")).to_be_visible()  # a sample is shown initially
    opened.page.get_by_label("Patch lines").check()
    expect(opened.done).to_have_text("Done. On to the next one.")

    picture = Image.fromarray(np.random.default_rng(5).integers(0, 256, (45, 70, 3), dtype=np.uint8))
    picture.save(tmp_path / "noise.png")
    opened.look(tmp_path / "noise.png")
    with torch.inference_mode():
        output = checkpoint.model(checkpoint.preprocess(picture), output_attentions=True)
    assert output.attentions is not None
    best = int(output.logits.argmax())
    expect(opened.page.locator(".answer li").first).to_contain_text(checkpoint.labels[best])
    opened.check_numbers(checkpoint, picture)
    opened.computes_with("WebAssembly")

    opened.step(1)  # attention of the last block
    area = opened.page.locator("canvas.over").bounding_box()
    assert area
    opened.page.mouse.move(area["x"] + 2.5 / 4 * area["width"], area["y"] + 1.5 / 4 * area["height"])
    opened.wait_until_idle()
    token = 1 + 1 * 4 + 2
    assert opened.numbers("[viewer.query]") == [token]
    drawn = opened.numbers("viewer.map.values.slice(viewer.map.at, viewer.map.at + viewer.payload.tokens)")
    assert np.allclose(drawn, output.attentions[-1][0].mean(0)[token], atol=0.002)


def test_lesson_has_no_presentation(open_lesson: Callable[..., Lesson]) -> None:
    opened = open_lesson()
    opened.step(4)
    expect(opened.page.get_by_text("reverse the direction")).to_be_visible()
    expect(opened.page.get_by_text("Present", exact=True)).to_be_hidden()
    expect(opened.page.get_by_text("present on the full screen")).to_be_hidden()
    opened.page.locator("canvas.over").press("v")
    expect(opened.page.locator(".presenting")).to_have_count(0)


def test_head_is_explained_with_its_numbers(open_lesson: Callable[..., Lesson]) -> None:
    opened = open_lesson()
    opened.step(6)
    numbers = opened.page.locator(".numbers")
    expect(numbers.locator(".line").first).to_contain_text("Block 2, head 1: patch (row 3, col 3) asks")
    share = numbers.locator(".keys-list button").nth(2)
    name = share.locator("span").inner_text()
    share.click()
    expect(opened.done).to_have_text("Done. On to the next one.")
    expect(numbers.locator(".line").first).to_contain_text(f"{name} is looked at")
    strip = numbers.get_by_role("slider", name="product")
    strip.press("ArrowRight")
    expect(numbers.get_by_text("Channel 2:")).to_be_visible()


def test_bars_are_as_long_as_the_probabilities(open_lesson: Callable[..., Lesson]) -> None:
    opened = open_lesson()
    lengths = opened.numbers(
        "document.querySelectorAll('.answer .bar i')", "(bar) => bar.clientWidth / bar.parentNode.clientWidth"
    )
    shown = opened.numbers("document.querySelectorAll('.answer b')", "(share) => parseFloat(share.textContent) / 100")
    assert np.allclose(lengths, shown, atol=0.01)


def test_finger_reads_the_class_token_and_a_channel(open_lesson: Callable[..., Lesson]) -> None:
    opened = open_lesson(screen="phone")
    opened.step(1)
    opened.page.locator(".tokens button").first.tap()
    assert opened.numbers("[viewer.query]") == [0]
    expect(opened.done).to_contain_text("Done.")
    opened.step(6)
    strip = opened.page.locator(".numbers").get_by_role("slider", name="product")
    strip.scroll_into_view_if_needed()
    strip.tap()
    expect(strip).to_have_attribute("aria-valuenow", re.compile(r"^(?!1$)"))  # one in the middle


@pytest.mark.parametrize("screen", SCREENS)
def test_layout_is_stable_when_an_exercise_is_done(open_lesson: Callable[..., Lesson], screen: str) -> None:
    opened = open_lesson(screen=screen)
    card, box = opened.page.locator(".card"), opened.page.get_by_label("Patch lines")
    box.evaluate("(box) => box.closest('label').scrollIntoView({ block: 'nearest' })")  # as the lesson does
    before = card.bounding_box(), box.bounding_box()
    box.check()
    expect(opened.done).to_contain_text("Done.")
    assert (card.bounding_box(), box.bounding_box()) == before


def test_class_token_attention_is_computed_only_on_hover(open_lesson: Callable[..., Lesson]) -> None:
    opened = open_lesson()
    opened.step(1)
    token = opened.page.locator(".tokens button").first
    expect(token).not_to_have_class(re.compile("current"))
    token.hover()
    expect(token).to_have_class(re.compile("current"))
    expect(opened.done).to_contain_text("Done.")


def test_hidden_patches_change_the_answer_and_can_be_restored(open_lesson: Callable[..., Lesson]) -> None:
    opened = open_lesson()
    opened.step(LAST)
    result = opened.page.locator(".result")
    whole = result.inner_text()
    opened.page.get_by_role("button", name="Hide the 2 strongest patches").click()
    expect(result).to_contain_text("Without 2 patches")
    expect(opened.done).to_contain_text("Done.")
    assert len(opened.numbers("viewer.selection.hidden")) == 2
    opened.page.get_by_role("button", name="Show all", exact=True).first.click()
    expect(result).to_have_text(whole)


def test_non_picture_is_reported(open_lesson: Callable[..., Lesson], tmp_path: Path) -> None:
    opened = open_lesson()
    (tmp_path / "text.png").write_text("no picture")
    opened.page.locator(".own input").set_input_files(tmp_path / "text.png")
    expect(opened.page.get_by_role("alert")).to_contain_text("cannot read this file")
    expect(opened.page.locator("canvas.over")).to_be_visible()


@pytest.mark.parametrize("language", ["en", "de", "zh"])
@pytest.mark.parametrize("missing", ["DecompressionStream", "OffscreenCanvas", ""])
def test_browser_that_is_too_old_gets_one_sentence(
    browser: Browser, checkpoint: Checkpoint, tmp_path: Path, language: Language, missing: str
) -> None:
    (tmp_path / "lesson.html").write_bytes(lesson(checkpoint, language))
    context = browser.new_context(java_script_enabled=bool(missing))
    page = context.new_page()
    page.add_init_script(f"delete window.{missing}")
    page.goto((tmp_path / "lesson.html").as_uri())
    expect(page.locator("body")).to_have_text(WORDS["too old"][language], use_inner_text=True)
    context.close()


def test_keyboard_suffices(open_lesson: Callable[..., Lesson]) -> None:
    opened = open_lesson()
    keyboard = opened.page.keyboard

    def go_to(selector: str) -> None:
        for _ in range(60):
            keyboard.press("Tab")
            if opened.page.evaluate("(selector) => document.activeElement.matches(selector)", selector):
                return
        raise AssertionError(f"no Tab leads to {selector}")

    go_to("[data-field=lines]")
    keyboard.press("Space")
    expect(opened.done).to_contain_text("Done.")
    opened.page.locator("h1").click()  # to the start of the page
    for _ in range(3):  # on to the heads
        go_to(".next")
        keyboard.press("Enter")
    expect(opened.page.locator("#step-title")).to_have_text("4. Heads")
    go_to("canvas.grid")
    keyboard.press("ArrowRight")
    expect(opened.done).to_contain_text("Done.")


@pytest.mark.exhaustive
@pytest.mark.parametrize("screen", SCREENS)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(open_lesson: Callable[..., Lesson], screen: str, scheme: str) -> None:
    opened = open_lesson(screen=screen, scheme=scheme)
    assert violations(opened.page) == []
    opened.step(LAST)
    expect(opened.page.locator(".keys-list button").first).to_be_visible()
    assert violations(opened.page) == []
    width = opened.page.evaluate("document.documentElement.scrollWidth")
    assert width <= SCREENS[screen][0]


@pytest.mark.parametrize("language", ["de", "zh"])
def test_every_text_on_the_page_is_in_the_language(
    open_lesson: Callable[..., Lesson], checkpoint: Checkpoint, language: Language
) -> None:
    opened = open_lesson(language)
    english = {texts["en"] for texts in WORDS.values() if texts["en"] != texts[language] and " " in texts["en"]}
    for number in range(LAST + 1):
        opened.step(number)
    page_text = opened.page.evaluate(
        """() => {
          const texts = [document.body.innerText];
          for (const element of document.querySelectorAll("[title], [aria-label], [alt]"))
            if (element.checkVisibility())
              for (const name of ["title", "aria-label", "alt"]) texts.push(element.getAttribute(name) ?? "");
          return texts.join("\\n");
        }"""
    )
    assert not [text for text in english if text in page_text]
    if language == "zh":  # where Latin letters are names
        names = [*NAMES, *checkpoint.labels, *(f"{one.credit} {one.licence}" for one in samples.SAMPLES.values())]
        latin, allowed = (set(re.findall("[A-Za-z]{3,}", text)) for text in (page_text, " ".join(names)))
        assert latin <= allowed, latin - allowed
